"""Messages of one process that wait for the script, and the script's waits for messages."""

from __future__ import annotations

import itertools
import threading
import weakref
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from holdfast.errors import ValidationError
from holdfast.supervisor.futures.future import Future, renew_after_fork
from holdfast.supervisor.futures.message_future import MessageFuture, return_soon, take_returns
from holdfast.supervisor.line.values import decode_value, encode_value
from holdfast.wire.bus.messages import Assembler

MAX_WAITING_MESSAGES = 10_000
MAX_WAITING_BYTES = 256 << 20

Filter = Callable[[Any], Any]
# Shared by all inboxes: each use is a few instructions, and there are thousands of them.
_lock = threading.Lock()
_turns = itertools.count(1)  # of messages that waits took (INBOX-4)
_MIN_WAITS = 16  # fewer are not searched for waits that are over
_WAITS_AT_ONCE = 256  # waits of one gather, registered under one hold of the lock


class MessageWait:
    """A wait for messages, for as long as the script keeps its future (INBOX-3)."""

    __slots__ = ("_future", "accept")

    def __init__(
        self, future: Callable[[], MessageFuture | None], accept: Filter | None = None
    ) -> None:
        self._future = future
        self.accept = accept  # None takes any

    @property
    def over(self) -> bool:
        """Return True once the script has dropped the future, or the future is done."""
        future = self._future()
        return future is None or future.done()

    def take_message(self, index: int, value: Any, turn: int = 0) -> bool:
        """Give the wait a message of the process with that index. Returns False where the wait does
        not want it. turn: the place of a message that came back, in the order of arrival."""
        future = self._future()
        if future is None:
            return False
        future.turn = turn or next(_turns)
        return future.set_result(value)

    def fail(self, error: BaseException) -> None:
        """Fail the wait, because no message will come."""
        future = self._future()
        if future is not None:
            future.set_exception(error)


class Gather(MessageWait):
    """A wait for one message from each of many processes. The future's value is the list of
    messages, in the order of the processes.

    When the future fails, or is cancelled or dropped, the messages that it had taken go back to the
    front of the buffers they came from.
    """

    __slots__ = ("__weakref__", "_inboxes", "_left", "_values")

    def __init__(self, inboxes: Sequence[Inbox], accept: Filter | None) -> None:
        super().__init__(lambda: None, accept)
        self._inboxes = inboxes
        self._left = len(inboxes)
        self._values: dict[int, Any] = {}

    def begin(self, about: str, whom: Any) -> Future[list[Any]]:
        """Wait for a message from every process; return the future of their list."""
        future = MessageFuture(about, whom, self)
        self._future = weakref.ref(future, lambda _: return_soon(Gather.undo, self))
        if not self._inboxes:
            future.set_result([])
        take_returns()
        for at in range(0, len(self._inboxes), _WAITS_AT_ONCE):
            if self.over:
                break
            self._wait_for(self._inboxes[at : at + _WAITS_AT_ONCE])
        return future

    def _wait_for(self, inboxes: Sequence[Inbox]) -> None:
        """Register this wait with the inbox of each process. Inboxes without messages and other
        waits take a quick path."""
        alone = (self,)
        with _lock:
            others = [inbox for inbox in inboxes if not inbox.wait_alone(alone)]
        for inbox in others:
            inbox.wait(self)

    def take_message(self, index: int, value: Any, turn: int = 0) -> bool:
        """Add the message of one process; the last process's message completes the future. Inboxes
        call this one after the other, under their lock."""
        future = self._future()
        if future is None or future.done():
            return False
        values = self._values
        values[index] = value
        self._left -= 1
        if self._left == 0 and future.set_result([values[at] for at in range(len(values))]):
            self._values = {}
        return True

    def fail(self, error: BaseException) -> None:
        """Fail the future, because one message will not come."""
        future = self._future()
        if future is not None and future.set_exception(error):
            return_soon(Gather.undo, self)

    def cancel(self, future: Future[Any]) -> None:
        """Give all messages back, because the future was cancelled."""
        self.undo()

    def give_back(self, value: list[Any], turn: int = 0) -> None:
        """Take back all messages: the future was completed just after its waiter had stopped."""
        for inbox, message in zip(self._inboxes, value, strict=True):
            inbox.give_back(message)

    def undo(self) -> None:
        """Give the messages taken so far back to their inboxes."""
        with _lock:
            taken, self._values = self._values, {}
        for index, value in taken.items():
            self._inboxes[index].give_back(value)


class Inbox:
    """A bounded buffer with filters. Any thread may wait; the bus's thread fills the buffer.

    INBOX-1  A message goes to the oldest wait whose filter accepts it, else into the buffer; never
             to two places, never to none.
    INBOX-2  Beyond the limits the oldest messages are dropped, counted (`dropped`) and reported.
    INBOX-3  A wait takes nothing once its future was dropped (after a timeout, say).
    INBOX-4  Messages that waits had taken, but that no caller read, come first again, in the order
             in which they had come.
    """

    __slots__ = (
        "_assembler",
        "_bytes",
        "_end",
        "_index",
        "_messages",
        "_returned",
        "_waits",
        "dropped",
    )

    def __init__(self, index: int = 0) -> None:
        """Make an empty inbox. index: the place of its process among those of one gather."""
        self._index = index
        self._assembler: Assembler | None = None
        self._messages: deque[bytes] | None = None
        # The turns of messages that came back, which stand first in the buffer.
        self._returned: list[int] | None = None
        self._bytes = 0
        # A script waits for thousands of processes at once, mostly with one wait for each: those
        # share one tuple, because the garbage collector would also look at one made for each.
        self._waits: tuple[MessageWait, ...] = ()
        self._end: BaseException | None = None
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._messages) if self._messages is not None else 0

    def wait(self, target: MessageWait) -> None:
        """Give `target` the first message that it accepts, from the buffer now or on arrival
        later."""
        take_returns()
        with _lock:
            if self._messages is not None and self._take_waiting(target, self._messages):
                return
            if self._end is None:
                self._waits += (target,)
                count = len(self._waits)
                if count >= _MIN_WAITS and count & (count - 1) == 0:  # at 16, 32 and so on
                    self._drop_over()
                return
            end = self._end
        target.fail(end)

    def wait_alone(self, alone: tuple[MessageWait]) -> bool:
        """Register the wait where there are no messages and no other waits; return whether it was
        registered. The caller has the lock."""
        if self._messages is not None or self._waits or self._end is not None:
            return False
        self._waits = alone
        return True

    def _take_waiting(self, target: MessageWait, messages: deque[bytes]) -> bool:
        """Give the wait the first message of the buffer that it accepts. Returns False where there
        is none."""
        for at, data in enumerate(messages):
            try:
                value = decode_value(data)
            except ValidationError as error:
                self._remove(at)
                target.fail(error)
                return True
            try:
                wanted = target.accept is None or target.accept(value)
            except Exception as error:
                target.fail(error)
                return True
            if wanted:
                back = self._returned
                turn = back[at] if back is not None and at < len(back) else 0
                # A message stays where its wait was cancelled, or failed as a whole.
                if target.take_message(self._index, value, turn):
                    self._remove(at)
                return True
        return False

    def add_part(self, data: bytes, part: int, last: bool) -> None:
        """Add a part of a message; the last part completes the message."""
        if part or not last:
            if self._assembler is None:
                self._assembler = Assembler()
            whole = self._assembler.add(data, part, last)
            if whole is None:
                return
            data, self._assembler = whole, None
        with _lock:
            if self._waits and self._match(data):
                return
            if self._messages is None:
                self._messages = deque()
            self._messages.append(data)
            self._bytes += len(data)
            while len(self._messages) > MAX_WAITING_MESSAGES or (
                self._bytes > MAX_WAITING_BYTES and len(self._messages) > 1
            ):
                self._remove(0)  # INBOX-2
                self.dropped += 1

    def _match(self, data: bytes) -> bool:
        """Give a message to the oldest wait that accepts it (INBOX-1). Returns False where no wait
        does."""
        try:
            value = decode_value(data)
        except ValidationError as error:
            return self._fail_oldest(error)
        at = 0
        while at < len(self._waits):
            target = self._waits[at]
            if target.accept is not None:
                try:
                    if not target.over and not target.accept(value):
                        at += 1
                        continue
                except Exception as error:
                    self._drop_wait(at)
                    target.fail(error)
                    continue
            self._drop_wait(at)
            if target.take_message(
                self._index, value
            ):  # else the wait was cancelled: try the next one
                return True
        return False

    def _fail_oldest(self, error: ValidationError) -> bool:
        """Fail the wait that would have received a message which cannot be decoded. Returns False
        where there is none."""
        self._drop_over()
        if not self._waits:
            return False
        target = self._waits[0]
        self._drop_wait(0)
        target.fail(error)
        return True

    def _drop_wait(self, at: int) -> None:
        self._waits = self._waits[:at] + self._waits[at + 1 :]

    def _drop_over(self) -> None:
        self._waits = tuple(wait for wait in self._waits if not wait.over)

    def _remove(self, at: int) -> None:
        assert self._messages is not None
        self._bytes -= len(self._messages[at])
        del self._messages[at]
        if self._returned is not None and at < len(self._returned):
            del self._returned[at]
            self._returned = self._returned or None
        if not self._messages:
            self._messages = None

    def cancel(self, future: Future[Any]) -> None:
        """Forget the wait of a cancelled future."""
        with _lock:
            self._drop_over()

    def give_back(self, value: Any, turn: int = 0) -> None:
        """Take back a message that its waiter never read; it comes first again (INBOX-4)."""
        data = encode_value(value)
        with _lock:
            if self._waits and self._match(data):
                return
            if self._messages is None:
                self._messages = deque()
            if self._returned is None:
                self._returned = []
            at = bisect_left(self._returned, turn)
            self._returned.insert(at, turn)
            self._messages.insert(at, data)
            self._bytes += len(data)

    def end(self, error: BaseException) -> None:
        """Fail every wait, now and later, because no more messages come. The buffer stays."""
        with _lock:
            if self._end is not None:
                return
            self._end = error
            waits, self._waits = self._waits, ()
        for target in waits:
            target.fail(error)


def has_doubled(before: int, now: int) -> bool:
    """Return True if a growing count reached or passed 1, 2, 4 and so on, at which it is reported
    again."""
    return now.bit_length() > before.bit_length()


def receive_one(inbox: Inbox, accept: Filter | None, about: str, whom: Any) -> Future[Any]:
    """Return a future for one message."""
    future = MessageFuture(about, whom, inbox)
    inbox.wait(MessageWait(weakref.ref(future), accept))
    return future


renew_after_fork(globals(), _lock=threading.Lock)
