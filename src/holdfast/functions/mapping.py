"""`map`: many calls in few requests, their results in the order of the items.

Items are read, and results fetched, only so far ahead of the caller: a generator without end can be
mapped, and memory stays bounded.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import time
import weakref
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Generic, Literal, Self, TypeVar

from holdfast.client.methods.calls import CHUNK_BYTES, CHUNK_CALLS, make_set_id
from holdfast.core.calls.values import FunctionSpec
from holdfast.errors import HoldfastError
from holdfast.functions.codec import CallCodec
from holdfast.functions.connection import CONNECTION
from holdfast.functions.failures import CallFailed
from holdfast.functions.handles import ask_results, read_outcome
from holdfast.functions.patience import Patience, choose_wait_seconds
from holdfast.functions.presence import PRESENCE
from holdfast.wire.calls import CallResult

if TYPE_CHECKING:
    from holdfast.functions.presence import OpenedSet

R = TypeVar("R")
AHEAD_CALLS = 50_000
_FIRST_CHUNK = 100  # so that work begins at once; later chunks are ten times larger
_CHUNK_SECONDS = 0.05  # a slow generator's items are not held back for a full chunk
_PAGE = 1000


class MapResults(Iterator[R], Generic[R]):
    """The results of a map, in order. id: the id of its call set. The first calls are submitted at
    once.

    An item's failure is raised when its turn comes, and the next item can still be asked for. An
    error of the items' own source is raised after the results of the items before it, and ends the
    map.
    """

    def __init__(
        self,
        spec: FunctionSpec,
        codec: CallCodec,
        texts: Iterator[str],
        errors: Literal["raise", "return"],
    ) -> None:
        self.id = make_set_id()
        self._spec, self._codec, self._texts, self._errors = spec, codec, texts, errors
        self._submitted = self._fetched = 0
        self._more = True  # items may be left
        self._broken: BaseException | None = None  # the exception of the items' source
        self._pid, self._client = os.getpid(), CONNECTION.client
        self._chunk = _FIRST_CHUNK
        self._page: deque[CallResult] = deque()
        _OPEN.add(self)
        self._submit()
        PRESENCE.add(self)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> R:
        patience = Patience()
        while not self._page:
            room = self._submitted - self._fetched < AHEAD_CALLS
            if self._more and room:
                self._submit()
            if self._fetched >= self._submitted and not self._more:
                if self._broken is not None:
                    broken, self._broken = self._broken, None
                    raise broken
                raise StopIteration
            self._fetch(0.0 if self._more and room else choose_wait_seconds())
            if not self._page:
                patience.look(self.id, self._fetched)
        found = self._page.popleft()
        try:
            value: R = read_outcome(self._codec, self.id, found)
        except CallFailed as failure:
            if self._errors == "return":
                return failure  # type: ignore[return-value]  # asked for by the caller
            raise
        return value

    def find_open(self) -> OpenedSet | None:
        """Return the client that opened the set, the set's id and its number of calls, as long as
        more may come."""
        mine = self._more and self._submitted and self._pid == os.getpid()
        return (self._client, self.id, self._submitted) if mine else None

    def close(self, cut: str) -> None:
        """Read no more items. Calls that were submitted go on. cut: the reason."""
        if (opened := self.find_open()) is not None:
            self._more = False
            client, set_id, count = opened
            with contextlib.suppress(HoldfastError):
                client.append_calls(set_id, count, [], count=count, cut=cut)

    def let_go(self) -> None:
        """Read no more items, because the call that submitted them has ended (SETS-1)."""
        self.close("the call that submitted it ended before all items were submitted")

    def cancel(self) -> None:
        """Read no more items, and cancel the calls that have not ended."""
        if self._more:
            self._more = False
            with contextlib.suppress(HoldfastError):
                client = CONNECTION.client
                client.append_calls(self.id, self._submitted, [], count=self._submitted)
        CONNECTION.client.cancel_calls(self.id)

    def _submit(self) -> None:
        """Submit the next chunk of the map's calls."""
        chunk = self._read_chunk()
        if self._broken is not None and not (chunk or self._submitted):
            raise self._broken
        first, total = self._submitted, self._submitted + len(chunk)
        count = None if self._more else total
        client = CONNECTION.client
        cut = "" if self._broken is None else f"the source of its items raised {self._say_broken()}"
        opens = first == 0
        if opens:
            client.create_call_set(self._spec, chunk, set_id=self.id, count=None if cut else count)
            first, chunk = total, []
        if cut or not opens:
            client.append_calls(self.id, first, chunk, count=count, cut=cut)
        self._submitted = total
        self._chunk = min(10 * self._chunk, CHUNK_CALLS)

    def _read_chunk(self) -> list[str]:
        chunk: list[str] = []
        size, until = 0, time.monotonic() + _CHUNK_SECONDS
        while len(chunk) < self._chunk and size < CHUNK_BYTES:
            try:
                text = next(self._texts, None)
            except Exception as broken:  # of the caller's own, or an item that does not fit
                self._broken, text = broken, None
            if text is None:
                self._more = False
                break
            chunk.append(text)
            size += len(text)
            if time.monotonic() > until:
                break
        return chunk

    def _say_broken(self) -> str:
        kind = type(self._broken).__name__
        try:
            return f"{kind}: {self._broken}"
        except Exception:  # a `__str__` of the user's own
            return kind

    def _fetch(self, wait_seconds: float) -> None:
        first = self._fetched
        answer = ask_results(self.id, wait_seconds, awaited=first, first=first, limit=_PAGE)
        self._page.extend(answer.results)
        self._fetched += len(answer.results)


_OPEN: weakref.WeakSet[MapResults[Any]] = weakref.WeakSet()


@atexit.register
def close_all() -> None:
    """Close the sets of maps that this process leaves unfinished."""
    for opened in list(_OPEN):
        opened.close("its program ended before all items were submitted")
