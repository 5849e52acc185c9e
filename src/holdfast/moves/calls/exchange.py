"""Carry out one exchange with executors: apply their reports, choose the calls that each executor
gets next, and answer.

A store calls `record_reports`, the moves' `judge` where it is needed, `choose`, `number` and `answer`, in
this order. It reads the rows that each step needs, and writes the changes gathered in `moves`.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol

import msgspec

from holdfast.core.calls.feeds import choose_feed
from holdfast.core.calls.unable import AppHosts
from holdfast.core.calls.values import FunctionSpec
from holdfast.core.ids import TaskKey
from holdfast.moves.calls.calls import CallMoves, CallSetRow, OpenBatch
from holdfast.moves.calls.pieces import BATCH_PIECES, Piece, Ranges, count_calls, cut_heads
from holdfast.wire.calls import MAX_BATCH_CALLS, Batch, CallOrder, ExecutorReport, SetInfo

HOST_PIECES = 4 * BATCH_PIECES
"""Most pieces in the batches of one answer to a host, because its agent accepts at most 64 MiB."""


class Standing(msgspec.Struct, frozen=True):
    """The lease of an executor. live: it has not run out. takes: the executor may get calls."""

    live: bool = False
    takes: bool = False


class Head(msgspec.Struct, kw_only=True):
    """A feed with ready calls: the facts that `choose_feed` needs. pieces: its first ready calls,
    whose rows are locked."""

    id: int
    family_name: str
    model: str | None
    vram_gb: float
    head_priority: int
    head_age_seconds: float
    unserved_seconds: float
    cold_wait_seconds: float
    pieces: list[Piece]

    @property
    def ready(self) -> int:
        """Return how many calls are known to be ready."""
        return count_calls(self.pieces)


class Taking(msgspec.Struct, kw_only=True):
    """A batch to hand out. turn: position of the executor's report in this exchange. head: the
    feed. batch: the number of the new batch, once it is known."""

    turn: int
    head: Head
    pieces: list[Piece]
    batch: int = 0


class HeardReport(Protocol):
    """One executor's report, with its host, its family, and the hosts that may run its calls."""

    @property
    def host_id(self) -> str: ...
    @property
    def family(self) -> str: ...
    @property
    def report(self) -> ExecutorReport: ...
    @property
    def hosts(self) -> AppHosts: ...


class Exchange:
    """The decisions of one exchange.

    turns: the executors' reports. standings: the lease of each of these executors, in their order.
    batches: every open batch of these executors, whose rows are locked.
    """

    def __init__(
        self,
        now: datetime,
        turns: Sequence[HeardReport],
        standings: Sequence[Standing],
        batches: Sequence[OpenBatch],
    ) -> None:
        self.now = now
        self.turns = turns
        self.standings = standings
        self.moves = CallMoves(now)
        self.takings: list[Taking] = []
        self.taken: list[tuple[int, Piece]] = []  # whole ranges, by feed
        self.cut: list[tuple[int, Piece]] = []  # what is left of a range
        self.unheard: list[list[OpenBatch]] = [[] for _ in turns]
        self._mine: list[dict[int, OpenBatch]] = [
            {
                batch.id: batch
                for batch in batches
                if _holds(batch, turn.report.key) and batch.host_id == turn.host_id
            }
            for turn in turns
        ]

    def record_reports(self) -> None:
        """Record every reported end, returned call and closing report."""
        for turn, mine, unheard in zip(self.turns, self._mine, self.unheard, strict=True):
            report = turn.report
            for ends in report.ends:
                if ends.batch in mine:
                    self.moves.take_ends(mine[ends.batch], ends.ends, turn.hosts)
            for number, first in report.returned:
                if number in mine and number not in self.moves.gone:
                    self.moves.give_back(mine[number], first)
            open_ones = [b for b in mine.values() if b.id not in self.moves.gone]
            if report.closing is not None:
                self.moves.close_executor(open_ones, report.closing)
                continue
            for batch in open_ones:
                self.moves.note_busy(batch, report.busy if batch.id == report.busy_batch else "")
            # The executor has received a batch of which it reports ends or returns.
            unheard += [b for b in open_ones if b.id not in report.held and not b.ended]

    def _want(self, i: int) -> int:
        report = self.turns[i].report
        if report.closing is not None or not self.standings[i].takes:
            return 0
        # The executor asked before it knew of these batches, so they count against its wish.
        return min(report.want, MAX_BATCH_CALLS) - sum(b.size for b in self.unheard[i])

    def choose(self, heads: Sequence[Head]) -> None:
        """Choose the feed for each executor, and cut its batch out of the feed's locked pieces."""
        left = {head.id: list(head.pieces) for head in heads}
        sent: Counter[str] = Counter()  # pieces, by host
        for turn, unheard in zip(self.turns, self.unheard, strict=True):
            sent[turn.host_id] += sum(len(batch.pieces) for batch in unheard)
        for i, turn in enumerate(self.turns):
            want = self._want(i)
            if want <= 0 or sent[turn.host_id] >= HOST_PIECES:
                continue
            offered = [h for h in heads if h.family_name == turn.family and left[h.id]]
            head = choose_feed(offered, turn.report.loaded, turn.report.free_gb)
            if head is not None:
                here = left[head.id]
                pieces, rest = cut_heads(here, want)
                left[head.id] = rest + here[len(pieces) :]
                self.takings.append(Taking(turn=i, head=head, pieces=pieces))
                sent[turn.host_id] += len(pieces)
        for head in heads:
            kept = {piece.place: piece for piece in left[head.id]}
            self.taken += [(head.id, p) for p in head.pieces if p.place not in kept]
            self.cut += [
                (head.id, kept[p.place])
                for p in head.pieces
                if p.place in kept and kept[p.place].first != p.first
            ]

    def number(self, numbers: Iterable[tuple[str, int]]) -> None:
        """Set the numbers of the new batches. numbers: (executor's job, number of a batch)."""
        given: dict[str, list[int]] = {}
        for job_id, number in numbers:
            given.setdefault(job_id, []).append(number)
        for taking in self.takings:
            taking.batch = given[self.turns[taking.turn].report.key.job_id].pop(0)

    @property
    def sent_pieces(self) -> list[Piece]:
        """Return the calls that the answers send, for which a store loads arguments and sets."""
        again = [piece for held in self.unheard for batch in held for piece in batch.pieces]
        return again + [piece for taking in self.takings for piece in taking.pieces]

    def answer(
        self, i: int, sets: Mapping[int, CallSetRow], pages: Mapping[tuple[int, int], Sequence[str]]
    ) -> dict[str, Any]:
        """Return the fields of the answer to one report: new batches, recorded ends, dropped
        batches, cancelled calls with their reasons, and killed calls."""
        report, mine = self.turns[i].report, self._mine[i]
        batches = [make_batch(b.id, b.pieces, sets, pages) for b in self.unheard[i]]
        batches += [make_batch(t.batch, t.pieces, sets, pages) for t in self.takings if t.turn == i]
        recorded = [(ends.batch, end.position) for ends in report.ends for end in ends.ends]
        dropped = [number for number in report.held if number not in mine]
        gone = self.moves.gone
        open_ = [batch for batch in mine.values() if batch.id not in gone]
        stops = {
            place: stop.reason
            for b in open_
            for stop in b.cancelled
            for place in _list_open(b, [(stop.first, stop.last)])
        }
        return {
            "batches": batches,
            "recorded": recorded,
            "dropped": dropped,
            "cancelled": list(stops),
            "cancel_reasons": list(stops.values()),
            "killed": [place for b in open_ for place in _list_open(b, b.killed)],
        }


def _holds(batch: OpenBatch, key: TaskKey) -> bool:
    return (batch.job_id, batch.task_rank, batch.epoch) == (key.job_id, key.rank, key.epoch)


def _list_open(batch: OpenBatch, asked: Ranges) -> list[tuple[int, int]]:
    """Return (batch, position) of the calls at the positions `asked` that have not ended."""
    if not asked:
        return []
    return [
        (batch.id, position)
        for a, b in batch.left
        for c, d in asked
        for position in range(max(a, c), min(b, d))
    ]


def _as_placed(spec: FunctionSpec) -> FunctionSpec:
    """Return a declaration without its host labels, because they have done their work once a host
    is chosen."""
    return msgspec.structs.replace(spec, host_labels={}) if spec.host_labels else spec


def make_batch(
    number: int,
    pieces: Sequence[Piece],
    sets: Mapping[int, CallSetRow],
    pages: Mapping[tuple[int, int], Sequence[str]],
) -> Batch:
    """Return a batch as it goes to its executor."""
    places: dict[int, int] = {}
    orders: list[CallOrder] = []
    for piece in pieces:
        place = places.setdefault(piece.set_n, len(places))
        args = pages[piece.set_n, piece.page]
        attempt, page = piece.attempts + 1, piece.page
        orders += [
            CallOrder(place, index, attempt, args[index - page])
            for index in range(piece.first, piece.last)
        ]
    rows = [sets[n] for n in places]
    infos = [SetInfo(id=row.id, spec=_as_placed(row.spec), out_dir=row.out_dir) for row in rows]
    return Batch(id=number, model=rows[0].spec.model if rows else None, sets=infos, calls=orders)
