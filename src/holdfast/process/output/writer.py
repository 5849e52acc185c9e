"""The pipes of programs, and the log writer that reads them, as their owner holds them.

A program that holds its log file itself can cut the file: `echo x > /dev/stderr` opens it anew and
empties it. Such a program also has to deal with a full disk alone. So a program gets a pipe, as a
terminal's programs get the terminal, and a process of its own (`output.program`) appends the bytes
from the pipe to the file.

LOGS-4  Where no log writer can be started, a program gets its files directly.
- The owner keeps the reading end of each pipe, so a log writer that is killed costs nothing:
  its programs wait until the next one reads on.
LOGS-6  The end of a program is reported after its output is in its files, or after `DRAIN_SECONDS`.
        Output of a process outside its tree after its end is not waited for.
"""

from __future__ import annotations

import os
import select
import socket
import sys
from collections import deque
from collections.abc import Callable
from pathlib import Path

import msgspec

from holdfast.process.loop import Mishaps, Poller
from holdfast.process.spawn import Child, SpawnRequest, spawn
from holdfast.wire.guardian import StreamEnd

DRAIN_SECONDS = 10.0
_AGAIN_SECONDS = 1.0
_MAX_FAILURES = 3  # in a row, before programs are given their files
_LEAVE_SECONDS = 2.0
_PROGRAM = Path(__file__).with_name("program.py")
_WRITABLE = 0o622  # for a task that became another user and opens /dev/stderr


class Streams:
    """The pipes of one program. ends: file → how its stream ended, once both are closed."""

    __slots__ = ("ends", "finished_at", "name", "paths", "reading", "writing")

    def __init__(self, name: int, paths: list[str]) -> None:
        self.name = name
        self.paths = paths
        self.ends: list[StreamEnd] | None = None
        self.finished_at: float | None = None
        self.reading: list[int] = []
        self.writing: list[int] = []
        try:
            for _ in paths:
                read_fd, write_fd = os.pipe2(os.O_CLOEXEC)
                self.reading.append(read_fd)
                self.writing.append(write_fd)
                os.set_blocking(read_fd, False)
                os.fchmod(write_fd, _WRITABLE)
        except OSError:
            self.close()
            raise

    def close_writing(self) -> None:
        """Close the writing ends, so that the program alone holds them."""
        for fd in self.writing:
            os.close(fd)
        self.writing = []

    def close(self) -> None:
        """Close the reading and the writing ends of the pipes."""
        self.close_writing()
        for fd in self.reading:
            os.close(fd)
        self.reading = []


class OutputHome:
    """The log writer of one nursery, started with the first program that has a log.

    ended: called with each program's pipes once all of their output is written. spare: called with
    the pid of each log writer, which belongs to no program.
    """

    def __init__(
        self,
        poller: Poller,
        mishaps: Mishaps,
        ended: Callable[[Streams], None],
        spare: Callable[[int], None],
    ) -> None:
        self._poller = poller
        self._mishaps = mishaps
        self._ended = ended
        self._spare = spare
        self._child: Child | None = None
        self._line: socket.socket | None = None
        self._last_name = self._failures = 0
        self._streams: dict[int, Streams] = {}
        self._unsent: deque[tuple[bytes, list[int]]] = deque()
        self._start_at = 0.0

    def open(self, request: SpawnRequest) -> tuple[SpawnRequest, Streams | None]:
        """Return the request with pipes for its logs, and the pipes. The request is returned
        unchanged where no pipes can be made (LOGS-4), or it has no logs."""
        paths = [path for path in dict.fromkeys((request.stdout, request.stderr)) if path]
        if not paths or self._failures >= _MAX_FAILURES:
            return request, None
        if self._line is None and not self._streams:
            self._start()
        if self._line is None:
            return request, None
        try:
            streams = Streams(self._last_name + 1, paths)
        except OSError:
            return request, None  # the start itself reports the shortage
        if min(streams.writing) <= 2:  # this process was started without standard streams
            streams.close()
            return request, None
        self._last_name += 1
        ends = dict(zip(paths, streams.writing, strict=True))
        pipes = [ends.get(path or "", -1) for path in (request.stdout, request.stderr)]
        made = {"stdout_pipe": pipes[0], "stderr_pipe": pipes[1]}
        return msgspec.structs.replace(request, **made), streams

    def follow(self, streams: Streams) -> None:
        """Have the log writer read the pipes of a started program to their end."""
        streams.close_writing()
        self._streams[streams.name] = streams
        self._send(*_name_open(streams))

    def finish(self, streams: Streams, now: float) -> None:
        """Have the log writer read a program's pipes once more and close them, because the
        program's tree is over."""
        streams.finished_at = now
        self._send(b"end\0%d" % streams.name, [])

    def take_exit(self, pid: int, now: float) -> bool:
        """Note that a child was reaped. Returns whether it was the log writer."""
        if self._child is None or pid != self._child.pid:
            return False
        early = now - self._child.started_at < _AGAIN_SECONDS
        self._failures = self._failures + 1 if early else 0
        self._start_at = now + (_AGAIN_SECONDS if early else 0.0)
        self._drop_line()
        self._child = None
        self._mishaps.say_once("the log writer has ended; another goes on where it was")
        return True

    def turn(self, now: float) -> float:
        """Do the work that is due; return when to be called again."""
        if self._child is None and self._streams and now >= self._start_at:
            self._start()
            self._start_at = now + _AGAIN_SECONDS
        due = self._start_at if self._child is None and self._streams else float("inf")
        for streams in list(self._streams.values()):
            if streams.finished_at is None:
                continue
            late_at = streams.finished_at + DRAIN_SECONDS
            if now >= late_at:
                why = "the log writer did not come to the end of its output"
                self._take_ends(streams, [StreamEnd(reason=why) for _ in streams.paths])
            else:
                due = min(due, late_at)
        return due

    def close(self) -> None:
        """Tell the log writer to end, and wait for that for a moment."""
        self._drop_line()
        child, self._child = self._child, None
        if child is None:
            return
        if child.error_fd >= 0:
            os.close(child.error_fd)
        if child.pidfd >= 0:
            watch = select.poll()
            watch.register(child.pidfd, select.POLLIN)
            watch.poll(_LEAVE_SECONDS * 1000)
            os.close(child.pidfd)
        for streams in self._streams.values():
            streams.close()

    # ---- how

    def _start(self) -> None:
        """Start a log writer, and pass it all open pipes."""
        try:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        except OSError as error:
            self._fail(error)
            return
        ours.setblocking(False)
        fd = theirs.fileno()
        request = SpawnRequest(
            argv=(sys.executable, "-I", "-S", str(_PROGRAM), str(fd)),
            env={},
            pass_fds=(fd,),
            parent_death_signal=0,  # LOGW-2
        )
        try:
            self._child = spawn(request)
            self._poller.handle(ours.fileno(), self._serve)
        except OSError as error:
            ours.close()
            self._fail(error)
            return
        finally:
            theirs.close()
        self._spare(self._child.pid)
        self._line = ours
        self._unsent.clear()
        for streams in self._streams.values():
            self._send(*_name_open(streams))
            if streams.finished_at is not None:
                self._send(b"end\0%d" % streams.name, [])

    def _fail(self, error: OSError) -> None:
        self._failures += 1
        self._mishaps.say_once(f"no log writer can be started, so tasks hold their logs: {error}")

    def _drop_line(self) -> None:
        line, self._line = self._line, None
        if line is not None:
            self._poller.drop(line.fileno())
            line.close()
        self._unsent.clear()

    def _send(self, message: bytes, fds: list[int]) -> None:
        if self._line is not None:
            self._unsent.append((message, fds))
            self._flush()

    def _flush(self) -> None:
        assert self._line is not None
        try:
            while self._unsent:
                message, fds = self._unsent[0]
                if fds:
                    socket.send_fds(self._line, [message], fds)
                else:
                    self._line.send(message)
                self._unsent.popleft()
        except BlockingIOError:
            pass
        except OSError:
            self._unsent.clear()  # the writer has ended; its exit is reaped later
        self._poller.want_to_write(self._line.fileno(), bool(self._unsent))

    def _serve(self, events: int) -> None:
        if self._line is None:
            return
        self._flush()
        while True:
            try:
                data = self._line.recv(1 << 16)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self._drop_line()
                return
            name, *words = data.split(b"\0")
            streams = self._streams.get(int(name))
            if streams is not None:
                self._failures = 0
                self._take_ends(streams, _read_ends(words))
            if self._line is None:
                return

    def _take_ends(self, streams: Streams, ends: list[StreamEnd]) -> None:
        del self._streams[streams.name]
        streams.ends = ends
        streams.close()
        self._ended(streams)


def _name_open(streams: Streams) -> tuple[bytes, list[int]]:
    words = [b"open", b"%d" % streams.name, *map(os.fsencode, streams.paths)]
    return b"\0".join(words), streams.reading


def _read_ends(words: list[bytes]) -> list[StreamEnd]:
    return [
        StreamEnd(size=int(size), lost_bytes=int(lost), reason=reason.decode(errors="replace"))
        for size, lost, reason in zip(words[::3], words[1::3], words[2::3], strict=True)
    ]
