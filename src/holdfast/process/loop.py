"""The parts that poll loops of long-lived parents share: a handler for each descriptor, caught
signals, notes, and mishaps that end neither the loop nor its other parts.

EPOLL-1  A descriptor is dropped before it is closed. A child that was forked meanwhile holds a copy
         of it, so the kernel goes on reporting it, and a closed number cannot be unregistered any
         more. A descriptor that is reported without a handler is said once and polled no longer.
"""

import contextlib
import functools
import os
import select
import signal
import socket
import time
import traceback
from collections.abc import Callable, Mapping
from functools import partial
from typing import TypeVar

import msgspec

from holdfast.wire.frames import FrameReader, encode_frame

_READ_BYTES = 1 << 18
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_MAX_SAID = 1000
T = TypeVar("T")


def catch_signals() -> int:
    """Catch `SIGNALS` from now on; return a descriptor from which their numbers are read."""
    read_fd, write_fd = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    signal.set_wakeup_fd(write_fd, warn_on_full_buffer=False)
    for number in SIGNALS:
        signal.signal(number, lambda *_: None)
    return read_fd


def write_instant(seconds: float) -> str:
    """Return a time, in seconds since 1970, as every log writes it: ISO 8601, in UTC, with
    milliseconds."""
    return f"{_write_second(int(seconds))}.{int(seconds * 1000) % 1000:03d}Z"


@functools.lru_cache(maxsize=1)
def _write_second(second: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))


def write_note(fd: int, source: str, sentence: str, fields: Mapping[str, object]) -> bool:
    """Write one line to a log: JSON, and text on a terminal. Return False where that fails (a full
    disk), or would have to wait (a paused terminal, a full pipe), because a log must not hold up
    the program."""
    words = {key: value for key, value in fields.items() if value is not None}
    at = write_instant(time.time())
    words = {"at": at, "from": source, "message": sentence, **words}
    line = msgspec.json.encode(words) + b"\n"
    if os.isatty(fd):
        told = " ".join(f"{key}={value}" for key, value in fields.items() if value is not None)
        line = f"{at} {source} {sentence}{'  ' if told else ''}{told}\n".encode(errors="replace")
    poll = select.poll()
    poll.register(fd, select.POLLOUT)
    try:
        return bool(poll.poll(0)) and os.write(fd, line) == len(line)
    except OSError:
        return False


class Mishaps:
    """Exceptions that a loop survives. Each traceback is passed to `note` once."""

    def __init__(self, note: Callable[[str], None]) -> None:
        self.count = 0
        self._note = note
        self._said: set[str] = set()

    def survive(self, act: Callable[[], T], otherwise: T) -> T:
        """Return `act()`, or `otherwise` where it raises."""
        try:
            return act()
        except Exception:
            self.count += 1
            self.say_once(f"a part of the loop failed and is passed over: {traceback.format_exc()}")
            return otherwise

    def say_once(self, sentence: str) -> None:
        """Note a sentence unless it was noted before, because a sentence that recurs fills a
        disk."""
        if sentence not in self._said and len(self._said) < _MAX_SAID:
            self._said.add(sentence)
            self._note(sentence)


class Poller:
    """One epoll with a handler for each descriptor, which is called with the events."""

    def __init__(self, mishaps: Mishaps) -> None:
        self._mishaps = mishaps
        self._epoll = select.epoll()
        self._handlers: dict[int, Callable[[int], None]] = {}
        self._masks: dict[int, int] = {}
        self._dropped: set[int] = set()  # in this round, which may have fetched their events before

    def fileno(self) -> int:
        """Return a descriptor that is readable when `poll` has something to do; it can be nested in
        any poll(2)."""
        return self._epoll.fileno()

    def handle(self, fd: int, handler: Callable[[int], None]) -> None:
        """Call `handler` when there is something to read. Raises OSError (no memory)."""
        self._epoll.register(fd, select.EPOLLIN)
        self._handlers[fd], self._masks[fd] = handler, select.EPOLLIN

    def want_to_write(self, fd: int, wanted: bool) -> None:
        """Set whether the handler of a descriptor is also called when there is room to write."""
        mask = select.EPOLLIN | (select.EPOLLOUT if wanted else 0)
        if self._masks[fd] != mask:
            self._epoll.modify(fd, mask)
            self._masks[fd] = mask

    def drop(self, fd: int) -> None:
        """Stop polling a descriptor. Call this before the descriptor is closed (EPOLL-1)."""
        if self._handlers.pop(fd, None) is not None:
            del self._masks[fd]
            self._dropped.add(fd)
            with contextlib.suppress(OSError):  # closed too early: `poll` drops it
                self._epoll.unregister(fd)

    def poll(self, seconds: float) -> None:
        """Wait for events, at most for `seconds`, and call their handlers, surviving each."""
        self._dropped.clear()
        for fd, events in self._epoll.poll(seconds):
            handler = self._handlers.get(fd)
            if handler is not None:
                self._mishaps.survive(partial(handler, events), None)
            elif fd not in self._dropped:
                self._mishaps.say_once(
                    f"descriptor {fd} is polled without a handler: it is dropped"
                )
                self._mishaps.survive(self._renew, None)

    def _renew(self) -> None:
        """Make a new epoll under the descriptor number of the old epoll, with the descriptors that
        have a handler."""
        with select.epoll() as fresh:
            for fd, mask in self._masks.items():
                fresh.register(fd, mask)
            os.dup2(fresh.fileno(), self._epoll.fileno(), inheritable=False)

    def close(self) -> None:
        """Close the epoll. The descriptors stay open."""
        self._epoll.close()


class FrameLine:
    """One end of a line of frames between two processes of a machine. It never blocks.

    ended: the other end has hung up, as `read_frames` found. unsent: bytes that wait until the other end
    has read more.
    """

    def __init__(self, line: socket.socket) -> None:
        line.setblocking(False)
        self._line = line
        self._reader = FrameReader()
        self.unsent = bytearray()
        self.ended = False

    def fileno(self) -> int:
        """Return the descriptor to poll."""
        return self._line.fileno()

    def queue_frame(self, body: bytes) -> None:
        """Queue a frame for `flush`."""
        self.unsent += encode_frame(body)

    def flush(self) -> bool:
        """Send as many queued bytes as the other end accepts now. Returns whether some are left."""
        try:
            while self.unsent:
                sent = self._line.send(self.unsent[: 1 << 16])
                del self.unsent[:sent]
        except BlockingIOError:
            pass
        except OSError:
            self.unsent.clear()  # the other end is gone, which the next `hear` finds
        return bool(self.unsent)

    def read_frames(self) -> list[bytes]:
        """Return the frames that have come. Raises ValidationError for bytes that are no frames."""
        try:
            data = self._line.recv(_READ_BYTES)
        except BlockingIOError:
            return []
        except OSError:
            data = b""
        self.ended = not data
        return self._reader.feed(data)

    def close(self) -> None:
        """Close this end."""
        self._line.close()
