"""Handles of submitted calls, through which a program asks for their results and waits for them."""

from __future__ import annotations

import time
from collections.abc import Collection, Generator, Iterable, Iterator
from typing import Any, Generic, TypeVar

from holdfast.core.calls.texts import lengthen
from holdfast.core.calls.values import CallState
from holdfast.functions.codec import CallCodec
from holdfast.functions.connection import CONNECTION
from holdfast.functions.failures import CallFailed, read_failure
from holdfast.functions.patience import Patience, choose_wait_seconds, find_hold_up
from holdfast.functions.running import context
from holdfast.wire.calls import CallResult, CallResults

R = TypeVar("R")
BRIEF_SECONDS = 0.1
_INDICES = 500  # the most indices in one request
_ROUND_SECONDS = 0.25  # the wait for one set, where calls of several are awaited


class CallHandle(Generic[R]):
    """A submitted call. id: `SET.INDEX`. Also awaitable."""

    def __init__(self, codec: CallCodec, set_id: str, index: int) -> None:
        self._codec, self.set_id, self.index = codec, set_id, index
        self._found: CallResult | None = None

    def __repr__(self) -> str:
        return f"<CallHandle {self.id}>"

    @property
    def id(self) -> str:
        """Return the call's name."""
        return f"{self.set_id}.{self.index}"

    def result(self, timeout: float | None = None) -> R:
        """Return the result once the call has ended.

        Raises:
            CallFailed: the call failed for good.
            CallCancelled: the call was cancelled.
            TimeoutError: the call has not ended after `timeout` seconds; it goes on.
        """
        value: R = read_outcome(self._codec, self.set_id, self._wait(timeout))
        return value

    def exception(self, timeout: float | None = None) -> CallFailed | None:
        """Return the failure of the call once it has ended, None for a success. Raises TimeoutError."""
        found = self._wait(timeout)
        return None if found.state == CallState.SUCCEEDED else make_failure(self.set_id, found)

    def done(self) -> bool:
        """Return whether the call has ended."""
        return self._found is not None or bool(_ask([self], 0.0))

    def cancel(self, reason: str = "", *, hard: bool = False) -> None:
        """Cancel the call: at once where it waits. A running call is told (`context().cancelled`,
        with the reason) and, after a grace or with `hard` at once, ended with its executor."""
        CONNECTION.client.cancel_calls(self.set_id, [self.index], reason, hard=hard)

    def logs(self, attempt: int | None = None) -> str:
        """Return the output of the call so far, stdout before stderr: of its last attempt, or of
        the attempt with this number. `Client.call_logs` follows the output, and yields bytes."""
        texts = {"stdout": b"", "stderr": b""}
        for line in CONNECTION.client.call_logs(self.set_id, self.index, attempt=attempt):
            texts[line.stream] += line.data
        return b"".join(texts.values()).decode(errors="replace")

    @property
    def attempts(self) -> int:
        """Return the number of attempts made; 0 before the call's end is known here."""
        return 0 if self._found is None else self._found.attempts

    def __await__(self) -> Generator[Any, Any, R]:
        import asyncio  # late, because few callers await one

        return asyncio.to_thread(self.result).__await__()

    def learn(self, found: CallResult) -> None:
        """Note the call's end, which is final."""
        self._found = found

    @property
    def ended(self) -> bool:
        """Return whether the call's end is known here."""
        return self._found is not None

    def _wait(self, timeout: float | None) -> CallResult:
        until = None if timeout is None else time.monotonic() + timeout
        patience, longest = Patience(), choose_wait_seconds()
        if context().hosted and self._found is None:
            _ask([self], 0.0 if timeout is not None and timeout <= 0 else BRIEF_SECONDS)
        with context().waiting_for("" if self._found is not None else self.id):
            while self._found is None:
                left = longest if until is None else until - time.monotonic()
                _ask([self], max(0.0, min(left, longest)))
                if self._found is None and until is not None and time.monotonic() >= until:
                    hold_up = find_hold_up(self.set_id, self.index) if timeout else ""
                    raise TimeoutError(
                        f"call {self.id} has not ended after {timeout:g} s; it goes on"
                        + (f": {hold_up}" if hold_up else "")
                    )
                if self._found is None:
                    patience.look(self.set_id, self.index)
        return self._found


def read_outcome(codec: CallCodec, set_id: str, found: CallResult) -> Any:
    """Return the result of an ended call. Raises CallFailed."""
    if found.state != CallState.SUCCEEDED:
        raise make_failure(set_id, found)
    return codec.decode_result(lengthen(found.value, CONNECTION.fetch))


def make_failure(set_id: str, found: CallResult) -> CallFailed:
    """Return the exception of a call that did not succeed."""
    return read_failure(
        f"{set_id}.{found.index}",
        lengthen(found.value, CONNECTION.fetch),
        cancelled=found.state == CallState.CANCELLED,
        attempts=found.attempts,
        reason=found.reason,
    )


def _ask(handles: Collection[CallHandle[Any]], wait_seconds: float) -> list[CallHandle[Any]]:
    """Ask for the ends of calls of one set; return the handles whose ends are known now."""
    by_index = {handle.index: handle for handle in handles}
    first = next(iter(handles))
    answer = ask_results(first.set_id, wait_seconds, awaited=first.index, indices=list(by_index))
    ended = []
    for found in answer.results:
        handle = by_index.get(found.index)
        if handle is not None:
            handle.learn(found)
            ended.append(handle)
    return ended


def ask_results(set_id: str, wait_seconds: float, *, awaited: int, **asked: Any) -> CallResults:
    """Ask for results, and wait for some. awaited: the index of one of the calls. A running call
    that asks is reported to its executor as waiting for that call, unless the results are there
    almost at once."""
    client, caller = CONNECTION.client, context()
    if wait_seconds > BRIEF_SECONDS and caller.hosted:
        answer = client.call_results(set_id, **asked, wait_seconds=BRIEF_SECONDS)
        if answer.results:
            return answer
    with caller.waiting_for(f"{set_id}.{awaited}" if wait_seconds > BRIEF_SECONDS else ""):
        return client.call_results(set_id, **asked, wait_seconds=wait_seconds)


def as_completed(
    handles: Iterable[CallHandle[R]], timeout: float | None = None
) -> Iterator[CallHandle[R]]:
    """Yield the handles as their calls end, each once.

    Raises:
        TimeoutError: not all have ended after `timeout` seconds.
    """
    waiting: dict[str, dict[int, CallHandle[R]]] = {}
    for handle in handles:
        waiting.setdefault(handle.set_id, {})[handle.index] = handle
    until = None if timeout is None else time.monotonic() + timeout
    quiet = False  # the last round over all sets brought nothing
    patience = Patience()
    while waiting:
        came = False
        for set_id in list(waiting):
            wanted = waiting[set_id]
            ended: list[CallHandle[R]] = [handle for handle in wanted.values() if handle.ended]
            if not ended:
                alone = len(waiting) == 1 and len(wanted) <= _INDICES
                wait = choose_wait_seconds() if alone else _ROUND_SECONDS if quiet else 0.0
                if until is not None:
                    wait = max(0.0, min(wait, until - time.monotonic()))
                ended = _ask_all(list(wanted.values()), wait)
            for handle in ended:
                del wanted[handle.index]
                yield handle
            came = came or bool(ended)
            if not wanted:
                del waiting[set_id]
        quiet = not came
        if came:
            patience.renew()
        elif waiting:
            set_id, wanted = next(iter(waiting.items()))
            patience.look(set_id, min(wanted))
        if waiting and quiet and until is not None and time.monotonic() >= until:
            left = sum(map(len, waiting.values()))
            raise TimeoutError(f"{left} calls have not ended after {timeout:g} s; they go on")


def _ask_all(handles: list[CallHandle[R]], wait_seconds: float) -> list[CallHandle[R]]:
    ended: list[CallHandle[R]] = []
    for first in range(0, len(handles), _INDICES):
        ended += _ask(handles[first : first + _INDICES], 0.0 if ended else wait_seconds)
    return ended
