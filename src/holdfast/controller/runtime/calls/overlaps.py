"""Handle requests of one host that overlap: a request repeats reports whose answer was still on its
way when the request was made.

OVERLAP-1  A batch handed out after a request arrived counts as held by its executor for that
           request: the executor cannot name the batch yet, and asks for these very calls, not for
           others beside them. A later request that does not name the batch gets it again.
OVERLAP-2  An end that was recorded is confirmed without asking the store, because it is final.
OVERLAP-3  An executor that has ended is handed nothing. A request that it made earlier may arrive
           after its last report, which gave back its calls, and its lease lasts until its task's
           end is reported. A batch handed to it would lie for `CLOSING_SECONDS`, and a call that
           never began would be charged.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from holdfast.core.ids import TaskKey
from holdfast.store.postgres.calls.values import ExecutorTurn, ExecutorTurned
from holdfast.wire.calls import BatchEnds, ExecutorReport

_MAX_BATCHES = 8
"""The most batches remembered for one executor; two are in flight."""
_MAX_OVER = 1000


class Overlap:
    """The recent answers to one executor."""

    def __init__(self) -> None:
        self._handed: dict[
            int, tuple[int, int]
        ] = {}  # batch → its exchange and its number of calls
        self._recorded: dict[int, set[int]] = {}

    def trim(self, turn: ExecutorTurn, arrived: int) -> tuple[ExecutorTurn, list[tuple[int, int]]]:
        """Return the part of the turn that the store must see, and the ends in it that were
        recorded before, as batch and position. arrived: the number of exchanges made when the
        turn's request arrived."""
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

    def note_answer(self, turned: ExecutorTurned, exchange: int) -> None:
        """Note the store's answer. exchange: the number of the exchange that brought it."""
        for batch in turned.batches:
            self._handed[batch.id] = exchange, len(batch.calls)
        for number, position in turned.recorded:
            self._recorded.setdefault(number, set()).add(position)
        kept: dict[int, Any]
        for kept in (self._handed, self._recorded):
            while len(kept) > _MAX_BATCHES:
                del kept[next(iter(kept))]


class OverExecutors:
    """The executors whose last report came recently."""

    def __init__(self) -> None:
        self._keys: dict[TaskKey, None] = {}

    def __contains__(self, key: TaskKey) -> bool:
        return key in self._keys

    def note_executors(self, reports: Iterable[ExecutorReport]) -> None:
        """Note the executors whose last report is among these, before it is on record."""
        self._keys |= dict.fromkeys(r.key for r in reports if r.closing is not None)
        while len(self._keys) > _MAX_OVER:
            del self._keys[next(iter(self._keys))]

    def trim(self, turn: ExecutorTurn) -> ExecutorTurn:
        """Return the report of one executor; where the executor has ended, without its request for
        calls (OVERLAP-3)."""
        report = turn.report
        if not report.want or report.key not in self._keys:
            return turn
        return msgspec.structs.replace(turn, report=msgspec.structs.replace(report, want=0))


def add_recorded(turned: ExecutorTurned, repeated: Sequence[tuple[int, int]]) -> ExecutorTurned:
    """Return an answer that lists the repeated ends as recorded too."""
    if not repeated:
        return turned
    return msgspec.structs.replace(turned, recorded=(*turned.recorded, *repeated))
