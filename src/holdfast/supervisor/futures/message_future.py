"""Futures for messages: a message whose future is dropped or cancelled goes back to its inbox."""

import contextlib
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from holdfast.supervisor.futures import future as futures
from holdfast.supervisor.futures.future import Future, Source

# Calls that put messages back. A future may be dropped in a thread that holds any lock, so another
# thread makes them, or the next reader, which must not find a later message first.
_returns: deque[tuple[Callable[..., Any], tuple[Any, ...]]] = deque()
_returning = threading.Lock()


def return_soon(function: Callable[..., Any], *arguments: Any) -> None:
    """Queue a call that puts a message back before the next message is read. Never blocks and never
    raises."""
    _returns.append((function, arguments))
    # Python is ending and starts no thread any more: there are no readers either.
    with contextlib.suppress(RuntimeError):
        futures.run_soon(take_returns, None)


def take_returns(_: Any = None) -> None:
    """Run all queued calls that put messages back."""
    while _returns or _returning.locked():
        with _returning:
            if _returns:
                function, arguments = _returns.popleft()
                function(*arguments)


class MessageFuture(Future[Any]):
    """A future for a message of a source. A message that no caller read goes back to its source."""

    __slots__ = ("_claimed", "turn")

    def __init__(self, about: str, whom: Any, source: Source) -> None:
        super().__init__(about, whom, source=source)
        self._claimed = False  # a caller has the value
        self.turn = 0  # grows with every message that a wait took, to restore their order

    def __del__(self) -> None:
        if self._source is not None and self.done() and not self._claimed and self._has_value():
            return_soon(self._source.give_back, self._value, self.turn)

    def _claim(self) -> Any:
        with futures.settle_lock:
            self._claimed = self._has_value()
        return super()._claim()

    def _abandon(self) -> None:
        return_soon(MessageFuture.stop_waiting, self)

    def _give_back(self) -> None:
        with futures.settle_lock:
            if self._claimed or not self._has_value():
                return
            value = self._withdraw()
        if self._source is not None:
            self._source.give_back(value, self.turn)


futures.renew_after_fork(globals(), _returning=threading.Lock)
