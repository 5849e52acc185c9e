"""Futures for messages: what comes when nobody has, or looks at, the future any more goes back to
where it came from."""

from __future__ import annotations

import contextlib
import os
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from holdfast.supervisor.script import futures
from holdfast.supervisor.script.futures import Future, Source

# What goes back. Whoever drops a future may have any lock, so the work is another thread's, or the
# next reader's, who must not find a later message first.
_returns: deque[tuple[Callable[..., Any], tuple[Any, ...]]] = deque()
_returning = threading.Lock()


def return_soon(function: Callable[..., Any], *arguments: Any) -> None:
    """Have `function(*arguments)` put something back, before anybody reads the next message. Never
    blocks and never raises."""
    _returns.append((function, arguments))
    with contextlib.suppress(
        RuntimeError
    ):  # Python is ending and starts no thread any more: nobody reads either
        futures.run_soon(take_returns, None)


def take_returns(_: Any = None) -> None:
    """Have all of it back where it belongs."""
    while _returns or _returning.locked():
        with _returning:
            if _returns:
                function, arguments = _returns.popleft()
                function(*arguments)


class MessageFuture(Future[Any]):
    """A future for messages of a source, which gets back what nobody looked at."""

    __slots__ = ("_claimed", "turn")

    def __init__(self, about: str, whom: Any, source: Source) -> None:
        super().__init__(about, whom, source=source)
        self._claimed = False  # somebody has the value in hand
        self.turn = 0  # grows with every message that a wait took: what goes back keeps its order

    def __del__(self) -> None:
        if self._source is not None and self.done() and not self._claimed and self._has_value():
            return_soon(self._source.give_back, self._value, self.turn)

    def _claim(self) -> Any:
        with futures._lock:
            self._claimed = self._has_value()
        return super()._claim()

    def _abandon(self) -> None:
        return_soon(MessageFuture._stop_waiting, self)

    def _give_back(self) -> None:
        with futures._lock:
            if self._claimed or not self._has_value():
                return
            value = self._withdraw()
        if self._source is not None:
            self._source.give_back(value, self.turn)


def _begin_anew() -> None:
    """In a forked child: a thread that it does not have may have held the lock."""
    global _returning
    _returning = threading.Lock()


os.register_at_fork(after_in_child=_begin_anew)
