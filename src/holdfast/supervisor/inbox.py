"""Messages of one process that wait for the script, and the script's waits for them."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from holdfast.errors import ValidationError
from holdfast.supervisor.futures import Future
from holdfast.supervisor.values import decode_value
from holdfast.wire.bus import Assembler

MAX_WAITING_MESSAGES = 10_000
MAX_WAITING_BYTES = 256 << 20

Filter = Callable[[Any], Any]
# Shared by all inboxes: each use is a few instructions, and there are thousands of them.
_lock = threading.Lock()


class Target(Protocol):
    """Where one message goes."""

    accept: Filter | None  # None takes any

    def settle(self, index: int, value: Any) -> bool:
        """Take it, from the process of that index; False when it is not wanted any more."""

    def fail(self, error: BaseException) -> None:
        """It will not come."""


class _One:
    """A single future as a target."""

    __slots__ = ("accept", "future")

    def __init__(self, future: Future[Any], accept: Filter | None) -> None:
        self.future = future
        self.accept = accept

    def settle(self, index: int, value: Any) -> bool:
        return self.future.set_result(value)

    def fail(self, error: BaseException) -> None:
        self.future.set_exception(error)


class Gather:
    """One message from each of many; the future's value is the list of them, in the order of the processes."""

    __slots__ = ("_left", "_values", "accept", "future")

    def __init__(self, count: int, future: Future[list[Any]], accept: Filter | None) -> None:
        self.future = future
        self.accept = accept
        self._left = count
        self._values: list[Any] = [None] * count

    def settle(self, index: int, value: Any) -> bool:
        """Take one; the last completes it. Inboxes call it one at a time, under their lock."""
        if self.future.done():
            return False
        self._values[index] = value
        self._left -= 1
        if self._left == 0:
            self.future.set_result(self._values)
        return True

    def fail(self, error: BaseException) -> None:
        """One that will not come fails the whole."""
        self.future.set_exception(error)


class Inbox:
    """A bounded buffer with filters. Any thread may wait; the bus's thread fills it.

    INBOX-1  A message goes to the oldest wait whose filter takes it, else into the buffer; never to two, never to none.
    INBOX-2  What does not fit any more is counted and reported (`dropped`), the oldest first; never silently.
    """

    __slots__ = ("_assembler", "_bytes", "_end", "_index", "_messages", "_waits", "dropped")

    def __init__(self, index: int = 0) -> None:
        """`index`: whose messages they are, among those of one gather."""
        self._index = index
        self._assembler: Assembler | None = None
        self._messages: deque[bytes] | None = None
        self._bytes = 0
        # A list: a script waits for thousands of processes, most with one wait each, and an empty deque has ten times its size.
        self._waits: list[Target] | None = None
        self._end: BaseException | None = None
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._messages) if self._messages is not None else 0

    def wait(self, target: Target) -> None:
        """Give `target` the first message that it accepts, one that waits already before one that comes."""
        with _lock:
            if self._messages is not None and self._take_waiting(target, self._messages):
                return
            if self._end is None:
                if self._waits is None:
                    self._waits = [target]
                else:
                    self._waits.append(target)
                return
            end = self._end
        target.fail(end)

    def _take_waiting(self, target: Target, messages: deque[bytes]) -> bool:
        """Give it the first one in the buffer that it accepts. False where it still has to wait."""
        for at, data in enumerate(messages):
            try:
                value = decode_value(data)
                wanted = target.accept is None or target.accept(value)
            except Exception as error:
                if isinstance(error, ValidationError):
                    self._remove(at)
                target.fail(error)
                return True
            if wanted:
                if target.settle(self._index, value):  # else it was cancelled, or failed as a whole: the message stays
                    self._remove(at)
                return True
        return False

    def add_part(self, data: bytes, part: int, last: bool) -> bool:
        """Take a part of a message. False when something was dropped for it."""
        if part or not last:
            if self._assembler is None:
                self._assembler = Assembler()
            whole = self._assembler.add(data, part, last)
            if whole is None:
                return True
            data, self._assembler = whole, None
        return self._add(data)

    def _add(self, data: bytes) -> bool:
        with _lock:
            waits = self._waits
            if waits is not None:
                entry = self._match(data, waits)
                if entry is not None:
                    return True
            if self._messages is None:
                self._messages = deque()
            self._messages.append(data)
            self._bytes += len(data)
            fits = True
            while len(self._messages) > MAX_WAITING_MESSAGES or (
                self._bytes > MAX_WAITING_BYTES and len(self._messages) > 1
            ):
                self._bytes -= len(self._messages.popleft())
                self.dropped += 1
                fits = False
        return fits

    def _match(self, data: bytes, waits: list[Target]) -> Target | None:
        """Hand a message to the oldest wait that takes it (INBOX-1)."""
        try:
            value = decode_value(data)
        except ValidationError as error:
            target = waits.pop(0)
            self._drop_empty()
            target.fail(error)
            return target
        for at, target in enumerate(waits):
            if target.accept is not None:
                try:
                    if not target.accept(value):
                        continue
                except Exception as error:
                    del waits[at]
                    self._drop_empty()
                    target.fail(error)
                    return self._match(data, waits) if waits else None
            del waits[at]
            if target.settle(self._index, value):
                self._drop_empty()
                return target
            self._drop_empty()
            return self._match(data, waits) if waits else None  # it was cancelled: on to the next
        return None

    def _drop_empty(self) -> None:
        if not self._waits:
            self._waits = None

    def _remove(self, at: int) -> None:
        assert self._messages is not None
        self._bytes -= len(self._messages[at])
        del self._messages[at]
        if not self._messages:
            self._messages = None

    def cancel(self, future: Future[Any]) -> None:
        """Forget the wait of a cancelled future."""
        with _lock:
            if self._waits is not None:
                kept = [target for target in self._waits if not (isinstance(target, _One) and target.future is future)]
                self._waits = kept or None

    def end(self, error: BaseException) -> None:
        """No more will come: fail every wait, now and later. What is in the buffer stays."""
        with _lock:
            if self._end is not None:
                return
            self._end = error
            waits, self._waits = self._waits, None
        for target in waits or ():
            target.fail(error)


def receive_one(inbox: Inbox, accept: Filter | None, about: str, whom: Any) -> Future[Any]:
    """A future for one message."""
    future: Future[Any] = Future(about, whom, on_cancel=inbox.cancel)
    inbox.wait(_One(future, accept))
    return future
