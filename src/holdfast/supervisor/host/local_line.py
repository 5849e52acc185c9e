"""The manager's Unix socket, over which user processes exchange messages with the script.

- A process identifies itself by the secret that the manager gave it. Only the manager's
  user can open the socket's folder.
- Messages that a process never reads are bounded by `MAILBOX_BYTES`; beyond that messages
  are dropped, counted and reported.
LOCAL-3  The messages that a process sent before it ended are read before its end is reported.
"""

from __future__ import annotations

import os
import select
import socket
import tempfile
from collections import deque
from collections.abc import Callable

from holdfast.bounds import UNREADABLE
from holdfast.errors import ValidationError
from holdfast.process.loop import Mishaps, Poller
from holdfast.supervisor.host.leftovers import FOLDER_PREFIX
from holdfast.wire.bus.local import Enter, FromProcess, Part, decode_from_process, encode_local
from holdfast.wire.frames import FrameReader, encode_frame

MAILBOX_BYTES = 256 << 20
_READ_BYTES = 1 << 20
_BACKLOG = 512
_MAX_FOLDER_BYTES = 96  # the kernel takes 107 for the whole address


def make_line_folder() -> str:
    """Make a folder (0700) for the socket, in /tmp where the usual one has too long a name."""
    folder = tempfile.mkdtemp(prefix=FOLDER_PREFIX)
    if len(os.fsencode(folder)) > _MAX_FOLDER_BYTES:
        os.rmdir(folder)
        folder = tempfile.mkdtemp(prefix=FOLDER_PREFIX, dir="/tmp")
    return folder


class Mailbox:
    """The messages to and from one process, whether it has dialled yet or not."""

    def __init__(self, token: str) -> None:
        self.token = token
        self.queue: deque[bytes] = deque()
        self.queued_bytes = 0
        self.dropped = 0
        self._skipping = False  # the rest of a message that was dropped
        self.callers: list[_Caller] = []

    def post(self, data: bytes, part: int, last: bool) -> bool:
        """Queue a part of a message for the process. Returns False where the message was dropped."""
        if part and self._skipping:
            return True  # counted already
        self._skipping = False
        if self.queued_bytes + len(data) > MAILBOX_BYTES and self.queue:
            self.dropped += 1
            self._skipping = not last
            return False
        frame = encode_frame(encode_local(Part(data, part, last)))
        self.queue.append(frame)
        self.queued_bytes += len(frame)
        if self.callers:
            self.callers[-1].flush()
        return True


class _Caller:
    """One connection of a process to the host manager."""

    def __init__(self, line: LocalLine, talk: socket.socket) -> None:
        self.line = line
        self.talk = talk
        self.reader = FrameReader()
        self.mailbox: Mailbox | None = None
        self.writing = memoryview(b"")

    def flush(self) -> None:
        """Send the queued messages, as far as the process reads them."""
        box = self.mailbox
        if box is None or box.callers[-1] is not self:
            return
        try:
            while self.writing or box.queue:
                if not self.writing:
                    frame = box.queue.popleft()
                    box.queued_bytes -= len(frame)
                    self.writing = memoryview(frame)
                sent = self.talk.send(self.writing)
                self.writing = self.writing[sent:]
        except BlockingIOError:
            pass
        except OSError:
            return  # its end is read by `read`
        self.line.poller.want_to_write(self.talk.fileno(), bool(self.writing or box.queue))

    def serve(self, events: int) -> None:
        """Read and write as far as possible without waiting."""
        if events & select.EPOLLOUT:
            self.flush()
        if events & ~select.EPOLLOUT and not self.read():
            self.line.hang_up(self)

    def read(self) -> bool:
        """Read the messages that were sent. Returns False once the process hung up or broke the
        protocol."""
        try:
            data = self.talk.recv(_READ_BYTES)
        except BlockingIOError:
            return True
        except OSError:
            data = b""
        if not data:
            return False
        try:
            for frame in self.reader.feed(data):
                self._take(decode_from_process(frame))
        except (ValidationError, LookupError, *UNREADABLE):
            self.line.refused += 1
            return False
        return True

    def _take(self, message: FromProcess) -> None:
        if isinstance(message, Enter):
            box = self.line.boxes[message.token]
            self.mailbox = box
            box.callers.append(self)
            self.flush()
        elif self.mailbox is None:
            raise ValidationError("it speaks before it named itself")
        else:
            self.line.deliver(self.mailbox, message)


class LocalLine:
    """The listening socket and the connections to it."""

    def __init__(
        self, folder: str, deliver: Callable[[Mailbox, Part], None], note: Callable[[str], None]
    ) -> None:
        self.deliver = deliver
        self.boxes: dict[str, Mailbox] = {}
        self.refused = 0
        self.path = f"{folder}/line"
        self._listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        self._listening.bind(self.path)
        self._listening.listen(_BACKLOG)
        self._callers: set[_Caller] = set()
        self.poller = Poller(Mishaps(note))
        self.poller.handle(self._listening.fileno(), lambda _: self._accept())

    def fileno(self) -> int:
        """Return the descriptor that is readable when `serve` has something to do."""
        return self.poller.fileno()

    def add(self, token: str) -> Mailbox:
        """Make the mailbox of a process that is about to start."""
        box = self.boxes[token] = Mailbox(token)
        return box

    def serve(self) -> None:
        """Serve every connection as far as possible without waiting."""
        self.poller.poll(0)

    def drain(self, box: Mailbox) -> None:
        """Read the messages that an ended process had sent before (LOCAL-3), and forget the
        process."""
        self._accept()
        for caller in list(self._callers):
            if caller.mailbox is None and not caller.read():
                self.hang_up(caller)
        for caller in list(box.callers):
            while caller in box.callers:
                if not _has_more(caller.talk) or not caller.read():
                    self.hang_up(caller)
        self.boxes.pop(box.token, None)

    def close(self) -> None:
        """Hang up on every process. The folder is left to its maker."""
        for caller in list(self._callers):
            self.hang_up(caller)
        self.poller.close()
        self._listening.close()

    def _accept(self) -> None:
        while True:
            try:
                talk, _ = self._listening.accept()
            except OSError:
                return  # none waits, or no descriptor is left and they are served later
            talk.setblocking(False)
            os.set_inheritable(talk.fileno(), False)
            caller = _Caller(self, talk)
            self._callers.add(caller)
            self.poller.handle(talk.fileno(), caller.serve)

    def hang_up(self, caller: _Caller) -> None:
        """Close a connection; messages queued for its process wait for the process's next
        connection."""
        self._callers.discard(caller)
        self.poller.drop(caller.talk.fileno())
        caller.talk.close()
        box = caller.mailbox
        if box is not None and caller in box.callers:
            box.callers.remove(caller)


def _has_more(talk: socket.socket) -> bool:
    """Return whether a connection has bytes to read now, or has ended."""
    poll = select.poll()
    poll.register(talk.fileno(), select.POLLIN)
    return bool(poll.poll(0))
