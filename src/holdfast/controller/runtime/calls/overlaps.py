"""What overlaps between two requests of a host: said again because the answer was still on its way.

OVERLAP-1  A batch that was handed out after a request came is held by its executor as far as that
           request goes: it cannot name it yet, and it asks for these calls, not for others beside
           them. A later request that does not name it gets it again.
OVERLAP-2  An end that was recorded is answered for without the store: it is final.
OVERLAP-3  An executor that is over is handed nothing: what it asked for before may come after its
           last report, which gave back its calls, and its lease lasts until its task's end is told.
           A batch that is handed to it would lie for `CLOSING_SECONDS`, and a call be charged that
           never began.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from holdfast.core.ids import TaskKey
from holdfast.store.port.calls.calls import ExecutorTurn, ExecutorTurned
from holdfast.wire.calls import BatchEnds, ExecutorReport

_MAX_BATCHES = 8
"""Of one executor; two are in flight."""
_MAX_OVER = 1000


class Overlap:
    """What was answered to one executor lately."""

    def __init__(self) -> None:
        self._handed: dict[int, tuple[int, int]] = {}  # in which exchange, and how many calls
        self._recorded: dict[int, set[int]] = {}

    def trim(self, turn: ExecutorTurn, arrived: int) -> tuple[ExecutorTurn, list[tuple[int, int]]]:
        """Return the turn as the store need see it, and ends that were recorded before. arrived: how
        many exchanges there had been when its request came."""
        report = turn.report
        on_way = {
            batch: size
            for batch, (at, size) in self._handed.items()
            if at > arrived and batch not in report.held
        }
        fresh, repeated = self._split(report)
        if not on_way and not repeated:
            return turn, []
        want = max(0, report.want - sum(on_way.values()))
        report = msgspec.structs.replace(
            report, held=[*report.held, *on_way], want=want, ends=fresh
        )
        return msgspec.structs.replace(turn, report=report), repeated

    def _split(self, report: ExecutorReport) -> tuple[list[BatchEnds], list[tuple[int, int]]]:
        fresh: list[BatchEnds] = []
        repeated: list[tuple[int, int]] = []
        for each in report.ends:
            known = self._recorded.get(each.batch)
            if not known:
                fresh.append(each)
                continue
            ends = [end for end in each.ends if end.position not in known]
            repeated += [(each.batch, e.position) for e in each.ends if e.position in known]
            if ends:
                fresh.append(BatchEnds(batch=each.batch, ends=ends))
        return fresh, repeated

    def note(self, turned: ExecutorTurned, exchange: int) -> None:
        """Note the store's answer in an exchange, by its number."""
        for batch in turned.batches:
            self._handed[batch.id] = exchange, len(batch.calls)
        for number, position in turned.recorded:
            self._recorded.setdefault(number, set()).add(position)
        kept: dict[int, Any]
        for kept in (self._handed, self._recorded):
            while len(kept) > _MAX_BATCHES:
                del kept[next(iter(kept))]


class OverExecutors:
    """The executors whose last report came lately."""

    def __init__(self) -> None:
        self._keys: dict[TaskKey, None] = {}

    def __contains__(self, key: TaskKey) -> bool:
        return key in self._keys

    def note(self, reports: Iterable[ExecutorReport]) -> None:
        """Note those of which this is the last report, before it is on record."""
        self._keys |= dict.fromkeys(r.key for r in reports if r.closing is not None)
        while len(self._keys) > _MAX_OVER:
            del self._keys[next(iter(self._keys))]

    def trim(self, turn: ExecutorTurn) -> ExecutorTurn:
        """Return the turn without what it asks for, where its executor is over (OVERLAP-3)."""
        report = turn.report
        if not report.want or report.key not in self._keys:
            return turn
        return msgspec.structs.replace(turn, report=msgspec.structs.replace(report, want=0))


def add_recorded(turned: ExecutorTurned, repeated: Sequence[tuple[int, int]]) -> ExecutorTurned:
    """Return an answer that takes the repeated ends as recorded too."""
    if not repeated:
        return turned
    return msgspec.structs.replace(turned, recorded=(*turned.recorded, *repeated))
