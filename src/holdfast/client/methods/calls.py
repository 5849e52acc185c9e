"""Calls of Python functions: submitted in sets, their results read as they come.

`holdfast.task` is built on these methods; arguments and results are JSON texts here.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from holdfast.client.follow import Follow
from holdfast.client.late import LateModule, on_calls
from holdfast.client.rest import (
    PageCall,
    RestCall,
    ResultPage,
    ask,
    path_to,
    query_of,
    read_as,
    read_nothing,
)
from holdfast.client.scripts import Script, gives_each, gives_one, runs, take_answer
from holdfast.core.ids import ENTROPY_BITS, make_id

if TYPE_CHECKING:
    from holdfast.core.calls.values import FunctionSpec
    from holdfast.wire import calls as wire
else:
    wire = LateModule("holdfast.wire.calls")
CHUNK_CALLS, CHUNK_BYTES = 10_000, 4 * 1024 * 1024
RESULTS_WAIT_SECONDS = 20


def make_set_id() -> str:
    """Return the id of a new call set."""
    return make_id(time.time_ns() // 1_000_000, secrets.randbits(ENTROPY_BITS))


class CallMethods:
    """The client's methods about calls of Python functions."""

    @gives_one
    def create_call_set(
        self,
        spec: FunctionSpec,
        args: Sequence[str] = (),
        *,
        set_id: str | None = None,
        count: int | None = None,
        singles: bool = False,
    ) -> RestCall[wire.CallSetView]:
        """Create a call set with its first calls, at most 10 000.

        Args:
            args: the arguments of each call as JSON text: an object of parameters by name.
            set_id: an id from `make_set_id`; a repeat with the same id changes nothing.
            count: how many calls the set will have; with None it stays open for more, as long as
                `append_calls` is called every minute, with an empty list where there are no calls.
            singles: True for a set of single calls, to which no more need come.
        """
        body = wire.NewCallSet(
            id=set_id or make_set_id(), spec=spec, count=count, args=list(args), singles=singles
        )
        return ask(on_calls.CREATE_SET, body=body)

    @gives_one
    def append_calls(
        self,
        set_id: str,
        first: int,
        args: Sequence[str],
        *,
        count: int | None = None,
        cut: str = "",
    ) -> RestCall[wire.CallSetView]:
        """Add calls to an open set at the indices from `first`, at most 10 000. `count` closes it; cut:
        why that are fewer than were meant to come, so that the set has failed."""
        return _append(set_id, first, args, count, cut)

    @runs
    def submit_calls(
        self, spec: FunctionSpec, args: Iterable[str], *, set_id: str | None = None
    ) -> Script[wire.CallSetView]:
        """Submit a call for each of `args`, in as few requests as their sizes allow; the first calls
        run while later ones are still made."""
        name, first = set_id or make_set_id(), 0
        view: wire.CallSetView | None = None
        for chunk, last in _cut(args):
            count = first + len(chunk) if last else None
            if view is None:
                new = wire.NewCallSet(id=name, spec=spec, count=count, args=chunk)
                created = ask(on_calls.CREATE_SET, body=new)
                view = yield from take_answer(created)
            else:
                view = yield from take_answer(_append(name, first, chunk, count))
            first += len(chunk)
        assert view is not None  # there is always a last chunk, which may be empty
        return view

    @gives_each
    def call_sets(
        self, *, project: str | None = None, owner: str | None = None, page_size: int | None = None
    ) -> PageCall[wire.CallSetView]:
        """Yield call sets, newest first."""
        return ask(on_calls.LIST_SETS, project=project, owner=owner, limit=page_size)

    @gives_one
    def call_set(self, set_id: str) -> RestCall[wire.CallSetView]:
        """Return one call set and its counts."""
        return ask(on_calls.GET_SET, set_id)

    @gives_one
    def call_results(
        self,
        set_id: str,
        *,
        first: int = 0,
        limit: int | None = None,
        indices: Sequence[int] | None = None,
        states: Sequence[str] = (),
        wait_seconds: float = 0.0,
    ) -> RestCall[wire.CallResults]:
        """Return the results of the calls from `first` on that have ended without a gap; or of
        `indices` those that ended; or of calls in `states` ("failed", …), by index.

        wait_seconds: how long to wait for the first of them, up to 25.
        """
        which = None if indices is None else ",".join(map(str, indices))
        return ask(
            on_calls.GET_RESULTS,
            set_id,
            first=first or None,
            limit=limit,
            index=which,
            state=list(states),
            wait=f"{wait_seconds:.3f}" if wait_seconds > 0 else None,
        )

    @gives_each
    def each_result(self, set_id: str, *, first: int = 0) -> PageCall[wire.CallResult]:
        """Yield the result of each call in the order of their indices, waiting for those to come."""
        path = path_to(on_calls.GET_RESULTS, set_id)
        query = (("first", str(first)), ("wait", str(RESULTS_WAIT_SECONDS)))
        return RestCall("GET", path, _read_page, query, cursor_name="first")

    @gives_one
    def call_view(self, set_id: str, index: int) -> RestCall[wire.CallView]:
        """Return one call: its state, its failed attempts, and why it is where it is."""
        return ask(on_calls.GET_CALL, set_id, str(index))

    @gives_each
    def call_logs(
        self,
        set_id: str,
        index: int,
        *,
        attempt: int | None = None,
        stream: str = "both",
        follow: bool = False,
    ) -> Follow[wire.CallLogLine]:
        """Yield what a call printed: in its last attempt, or in `attempt`; `follow` goes on until the
        call has ended, through all attempts to come. A lost connection gives no byte twice."""
        from holdfast.client.call_logs import CallLogFollower

        query = query_of(attempt=attempt, stream=stream, follow=follow or None)
        path = path_to(on_calls.GET_CALL_LOGS, set_id, str(index))
        return Follow(CallLogFollower(RestCall("GET", path, read_nothing, query)))

    @gives_one
    def cancel_calls(
        self,
        set_id: str,
        indices: Sequence[int] | None = None,
        reason: str = "",
        *,
        hard: bool = False,
    ) -> RestCall[wire.CallSetView]:
        """Cancel these calls, or all of the set: at once those that wait; those that run are told and,
        after a grace or with `hard` at once, ended with their executors."""
        return ask(on_calls.CANCEL_CALLS, set_id, body=_change(indices, reason, hard=hard))

    @gives_one
    def retry_calls(
        self, set_id: str, indices: Sequence[int] | None = None
    ) -> RestCall[wire.CallSetView]:
        """Make failed and cancelled calls ready again with fresh budgets: these, or all of the set."""
        return ask(on_calls.RETRY_CALLS, set_id, body=_change(indices))

    @runs
    def put_value(self, data: bytes) -> Script[str]:
        """Keep a large argument of calls, and return its name, the SHA-256 of its bytes."""
        name = hashlib.sha256(data).hexdigest()
        yield RestCall("PUT", path_to(on_calls.PUT_VALUE, name), read_nothing, body=data)
        return name

    @gives_one
    def value(self, sha256: str) -> RestCall[bytes]:
        """Return the bytes of a large argument or result."""
        return RestCall("GET", path_to(on_calls.GET_VALUE, sha256), bytes)


def _append(
    set_id: str, first: int, args: Sequence[str], count: int | None, cut: str = ""
) -> RestCall[wire.CallSetView]:
    body = wire.MoreCalls(first=first, args=list(args), count=count, cut=cut[:1000])
    return ask(on_calls.APPEND_CALLS, set_id, body=body)


def _change(
    indices: Sequence[int] | None, reason: str = "", *, hard: bool = False
) -> wire.CallsChange:
    named = None if indices is None else list(indices)
    return wire.CallsChange(indices=named, reason=reason, hard=hard)


def _cut(args: Iterable[str]) -> Iterator[tuple[list[str], bool]]:
    """Cut arguments into chunks of bounded size. Yields each chunk, and whether it is the last."""
    chunk: list[str] = []
    size = 0
    for each in args:
        if chunk and (len(chunk) >= CHUNK_CALLS or size + len(each) > CHUNK_BYTES):
            yield chunk, False
            chunk, size = [], 0
        chunk.append(each)
        size += len(each)
    yield chunk, True


def _read_page(data: bytes) -> ResultPage[wire.CallResult]:
    found = read_as(wire.CallResults)(data)
    return ResultPage(found.results, None if found.ended else str(found.next))
