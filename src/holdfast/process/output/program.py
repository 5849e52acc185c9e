"""The log writer, a program: it reads the pipes that programs write to, and appends to their logs.

Run by its path, without the package, so that it starts in milliseconds and stays small. Its owner
talks to it over a socket (`output.writer`), and keeps the reading end of each pipe: output that
programs wrote while no log writer lived waits there for the next one.

LOGW-1  A byte that was read is appended to its file, or counted as lost, with the reason. Where a
        byte was lost the file has a hole, so that the offsets of all others stay true.
LOGW-2  A log writer outlives its owner until every pipe has ended, for `_ORPHAN_SECONDS` at most.
"""

import os
import select
import signal
import socket
import sys
import time

_READ_BYTES = 1 << 16  # as much as a pipe holds
_TURNS = 16  # reads of one pipe before the others' turn: the largest pipe that a user may have
_ORPHAN_SECONDS = 30.0
_FLAGS = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK
_MESSAGE_BYTES = 1 << 16


class Stream:
    """One pipe, and the file that its output goes to, which is opened with the first byte."""

    def __init__(self, fd: int, path: bytes) -> None:
        self.fd = fd
        self.path = path
        self.file = -1
        self.size = self.lost = 0
        self.reason = ""
        self.ended = False

    def pump(self) -> bool:
        """Write the bytes in the pipe, a bounded part at a time. Returns whether the pipe has
        ended."""
        for _ in range(_TURNS):
            try:
                data = os.read(self.fd, _READ_BYTES)
            except BlockingIOError:
                return False
            if not data:
                return True
            self._write(data)
        return False

    def _write(self, data: bytes) -> None:
        done = 0
        try:
            if self.file < 0:
                self.file = os.open(self.path, _FLAGS, 0o600)
                self.size = max(self.size, os.fstat(self.file).st_size)
            while done < len(data):
                done += os.write(self.file, data[done:] if done else data)
        except OSError as error:
            self.lost += len(data) - done
            self.reason = os.strerror(error.errno or 0)
            if self.file >= 0:
                try:
                    os.ftruncate(self.file, self.size + len(data))
                except OSError:
                    pass
        self.size += len(data)

    def close(self) -> None:
        """Close the pipe and the file, and note whether the file still has its name."""
        self.ended = True
        os.close(self.fd)
        if self.file >= 0:
            if os.fstat(self.file).st_nlink == 0:
                self.lost, self.reason = self.size, "its log file was removed while it ran"
            os.close(self.file)


class LogWriter:
    """All streams, by their descriptors, and the programs that they belong to."""

    def __init__(self, line: socket.socket) -> None:
        self._line = line
        self._epoll = select.epoll()
        self._epoll.register(line.fileno(), select.EPOLLIN)
        self._streams: dict[int, tuple[bytes, Stream]] = {}
        self._programs: dict[bytes, list[Stream]] = {}  # all of a program's, ended ones too
        self._unsaid: list[bytes] = []
        self._leave_at = 0.0

    def run(self) -> None:
        """Serve until the owner is gone and every pipe has ended (LOGW-2)."""
        while not self._leave_at or (self._streams and time.monotonic() < self._leave_at):
            for fd, _ in self._epoll.poll(1.0 if self._leave_at or self._unsaid else -1):
                if fd == self._line.fileno():
                    self._hear()
                elif fd in self._streams:
                    name, stream = self._streams[fd]
                    if stream.pump():
                        self._end(name, stream)
            self._say()

    def _hear(self) -> None:
        while True:
            try:
                data, fds, _, _ = socket.recv_fds(self._line, _MESSAGE_BYTES, 2)
            except BlockingIOError:
                return
            except OSError:
                data, fds = b"", []
            if not data:
                self._epoll.unregister(self._line.fileno())
                self._leave_at = time.monotonic() + _ORPHAN_SECONDS
                return
            word, name, *paths = data.split(b"\0")
            if word == b"open":
                self._programs[name] = [Stream(*pair) for pair in zip(fds, paths, strict=True)]
                for stream in self._programs[name]:
                    self._streams[stream.fd] = name, stream
                    self._epoll.register(stream.fd, select.EPOLLIN)
            else:
                for stream in self._programs.get(name, []):
                    if not stream.ended:  # nothing more comes than the pipe holds now
                        stream.pump()
                        self._end(name, stream)

    def _end(self, name: bytes, stream: Stream) -> None:
        """Close a stream; report its program once all of the program's streams have ended."""
        del self._streams[stream.fd]
        self._epoll.unregister(stream.fd)
        stream.close()
        streams = self._programs[name]
        if not all(other.ended for other in streams):
            return
        del self._programs[name]
        words = [name]
        for other in streams:
            words += [b"%d" % other.size, b"%d" % other.lost, other.reason.encode()]
        self._unsaid.append(b"\0".join(words))

    def _say(self) -> None:
        try:
            while self._unsaid:
                self._line.send(self._unsaid[0])
                del self._unsaid[0]
        except BlockingIOError:
            pass  # tried again
        except OSError:
            self._unsaid.clear()  # the owner is gone


def main() -> None:
    """Serve the socket whose descriptor is the argument."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    os.umask(0o077)
    with socket.socket(fileno=int(sys.argv[1])) as line:
        line.setblocking(False)
        LogWriter(line).run()


if __name__ == "__main__":
    main()
