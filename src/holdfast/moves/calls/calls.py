"""The moves of calls: record ends, close batches, decide on failed calls, return calls to their
feed.

`CallMoves` gathers the changes, and both stores write them. A success needs only its batch. A
failed call needs its set and its charges, so it is decided on in a second step (`judge`).
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec

from holdfast.core.calls.decide import CallDecision, CallJudge, CallOutcome, PolicyOf, decide_call
from holdfast.core.calls.unable import AppHosts, decide_unable
from holdfast.core.calls.values import CallCharges, CallState, FunctionSpec
from holdfast.core.causes import Cause
from holdfast.core.facts import TaskFacts
from holdfast.moves.calls.explain import explain_end
from holdfast.moves.calls.host_calls import HostCalls
from holdfast.moves.calls.pieces import (
    Piece,
    Ranges,
    add_ranges,
    count_calls,
    cut_positions,
    find_position,
    list_ranges,
    place_pieces,
    subtract_ranges,
)
from holdfast.wire.calls import CallEnd, Closing

NO_HOSTS = AppHosts()
CALL_LOST = TaskFacts(lost="lease_lapsed")
"""The facts of an executor's end for which no report came."""


class StopRange(msgspec.Struct, frozen=True, array_like=True):
    """The positions `[first, last)` of calls in a batch that were ordered to stop, and why."""

    first: int
    last: int
    reason: str = ""


class OpenBatch(msgspec.Struct, kw_only=True):
    """A batch of calls that an executor has and has not finished.

    job_id, task_rank, epoch, host_id: the executor that has it. pieces: its calls, whose order
    gives their positions. ended: positions of calls of this batch that have ended or were given
    back. cancelled: positions of calls that were ordered to stop. killed: positions of stopped
    calls that are ended at once. began_at: the time it was handed out. busy: why the executor
    accepts no further calls while one of this batch runs: `BUSY_LONG`, or the call that the running
    one waits for.
    """

    id: int
    job_id: str
    task_rank: int
    epoch: int
    host_id: str
    feed: int
    pieces: list[Piece]
    ended: Ranges = []
    cancelled: list[StopRange] = []
    killed: Ranges = []
    began_at: datetime
    left_at: datetime | None = None
    busy: str = ""

    @property
    def size(self) -> int:
        """Return the number of calls with which the batch was handed out."""
        return count_calls(self.pieces)

    @property
    def left(self) -> Ranges:
        """Return the positions of calls that have not ended."""
        return subtract_ranges((0, self.size), self.ended)

    @property
    def stopping(self) -> Ranges:
        """Return the positions of calls that were ordered to stop."""
        return [(stop.first, stop.last) for stop in self.cancelled]

    def find_stop(self, position: int) -> StopRange | None:
        """Return the order to stop the call at a position, None where there is none."""
        return next((s for s in self.cancelled if s.first <= position < s.last), None)


class CallSetRow(msgspec.Struct, kw_only=True, frozen=True):
    """The fields of a call set that decisions on its calls need. n: the set's number in the
    store."""

    n: int
    id: str
    spec: FunctionSpec
    queue: str
    cancelled_at: datetime | None = None
    cancel_reason: str = ""
    out_dir: str = ""


class CallRun(msgspec.Struct, kw_only=True):
    """A run of neighbouring calls `[first, last)` of one set that ended in the same way."""

    set_n: int
    first: int
    last: int
    state: CallState
    attempts: int
    results: list[str] | None = None
    reason: str = ""


class WaitingCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call that waits for its retry. held: a kill switch holds the retry."""

    feed: int
    piece: Piece
    due_at: datetime
    held: bool = False


class FailureRow(msgspec.Struct, frozen=True, kw_only=True):
    """A failed attempt of a call."""

    set_n: int
    index: int
    attempt: int
    host_id: str
    job_id: str
    cause: str
    rule: str
    charged_to: str
    reason: str
    detail: str
    began_at: datetime
    ended_at: datetime


class BadEnd(msgspec.Struct, frozen=True, kw_only=True):
    """A failed attempt of a call, to be decided on by `judge`.

    end: the end that the executor reported; None where the executor itself ended, by `facts`. stop:
    the order to stop the call, if any. hosts: the hosts that may run the call.
    """

    batch: OpenBatch
    piece: Piece
    index: int
    stop: StopRange | None
    end: CallEnd | None = None
    facts: TaskFacts | None = None
    closing: Closing | None = None
    hosts: AppHosts = AppHosts()


class CallMoves:
    """The changes to calls in one transaction, gathered by the functions here."""

    def __init__(self, now: datetime) -> None:
        self.now = now
        self.runs: list[CallRun] = []
        self.undone: dict[int, list[int]] = {}  # by set: succeeded, failed, cancelled
        self.bad: list[BadEnd] = []
        self.returned: list[tuple[int, Piece]] = []  # by feed, to be ready or cancelled
        self.ready: list[tuple[int, Piece]] = []  # by feed
        self.waiting: list[WaitingCall] = []
        self.failures: list[FailureRow] = []
        self.charges: dict[tuple[int, int], CallCharges] = {}
        self.changed: dict[int, OpenBatch] = {}
        self.gone: set[int] = set()
        self.counted: dict[str, HostCalls] = {}
        self._cancelled_pieces: list[tuple[str, Piece]] = []  # with the reason

    # ---- first step: needs the batches alone

    def take_ends(
        self, batch: OpenBatch, ends: Iterable[CallEnd], hosts: AppHosts = NO_HOSTS
    ) -> None:
        """Record ends of calls of an open batch. Ends of positions that it does not have, or that
        have ended already, are ignored (CALLSET-1). hosts: the hosts that may run its calls."""
        size, ended = batch.size, batch.ended
        fresh = {e.position: e for e in ends if 0 <= e.position < size}
        for first, last in ended if fresh else ():
            for position in [p for p in fresh if first <= p < last]:
                del fresh[position]
        if not fresh:
            return
        counted = self.counted.get(batch.host_id, HostCalls())
        self.counted[batch.host_id] = counted.add(fresh.values())
        for at, piece in place_pieces(batch.pieces):
            self._take_run(batch, piece, at, fresh, hosts)
        self._settle(batch, add_ranges(ended, list_ranges(sorted(fresh))))

    def _take_run(
        self, batch: OpenBatch, piece: Piece, at: int, fresh: Mapping[int, CallEnd], hosts: AppHosts
    ) -> None:
        run: CallRun | None = None
        for index in range(piece.first, piece.last):
            end = fresh.get(at + index - piece.first)
            if end is None:
                run = None
            elif end.error:
                run = None
                position = at + index - piece.first
                stop = batch.find_stop(position)
                bad = BadEnd(batch=batch, piece=piece, index=index, stop=stop, end=end, hosts=hosts)
                self.bad.append(bad)
            elif run is not None and run.results is not None:
                run.results.append(end.value)
                run.last = index + 1
            else:
                run = CallRun(
                    set_n=piece.set_n,
                    first=index,
                    last=index + 1,
                    state=CallState.SUCCEEDED,
                    attempts=piece.attempts + 1,
                    results=[end.value],
                )
                self.runs.append(run)

    def _settle(self, batch: OpenBatch, ended: Ranges) -> None:
        batch.ended = ended
        if batch.left:
            self.changed[batch.id] = batch
        else:
            self.changed.pop(batch.id, None)
            self.gone.add(batch.id)

    def close_executor(self, batches: Sequence[OpenBatch], closing: Closing) -> None:
        """Record the last report of an executor that ends: the call that ran counts as failed, and
        the others return to their feed uncharged (CALLSET-2).

        A model that was being loaded for no call in particular is charged to the first that waited
        for it, because a loader that always fails would otherwise be tried for ever.
        """
        loading = closing.loading and closing.batch < 0
        for batch in batches:
            position = closing.position if batch.id == closing.batch else -1
            if loading and batch.left:
                position, loading = batch.left[0][0], False
            self.return_batch(batch, position, closing.facts, closing)

    def note_busy(self, batch: OpenBatch, busy: str) -> None:
        """Record why an executor accepts no further calls while it runs one of this batch."""
        if batch.busy != busy and batch.id not in self.gone:
            batch.busy = busy
            self.changed[batch.id] = batch

    def return_batch(
        self, batch: OpenBatch, position: int, facts: TaskFacts, closing: Closing | None = None
    ) -> None:
        """Return a batch's calls to their feed; the call at `position`, if it has not ended, counts
        as failed by `facts`."""
        left = batch.left
        found = find_position(batch.pieces, position) if position >= 0 else None
        if found is not None and any(a <= position < b for a, b in left):
            piece, index = found
            stop = batch.find_stop(position)
            bad = BadEnd(batch=batch, piece=piece, index=index, stop=stop, facts=facts)
            self.bad.append(msgspec.structs.replace(bad, closing=closing))
            left = add_ranges((), [s for span in left for s in _without(span, position)])
        self._return(batch, left)
        self.changed.pop(batch.id, None)
        self.gone.add(batch.id)

    def give_back(self, batch: OpenBatch, first: int) -> None:
        """Return the calls from position `first` on to their feed, because their executor has not
        begun them and will not. In the batch they count as ended, so that a repeat changes nothing
        (CALLSET-4)."""
        span = (max(0, first), batch.size)
        left = subtract_ranges(span, batch.ended) if span[0] < span[1] else []
        if left:
            self._return(batch, left)
            self._settle(batch, add_ranges(batch.ended, left))

    def _return(self, batch: OpenBatch, left: Ranges) -> None:
        """Make calls ready again in their old places; cancel those that were ordered to stop."""
        for span in left:
            for taken in subtract_ranges(span, batch.stopping):
                pieces = cut_positions(batch.pieces, taken)
                self.returned += [(batch.feed, piece) for piece in pieces]
            for stop in batch.cancelled:
                taken = (max(span[0], stop.first), min(span[1], stop.last))
                if taken[0] < taken[1]:
                    pieces = cut_positions(batch.pieces, taken)
                    self._cancelled_pieces += [(stop.reason, piece) for piece in pieces]

    # ---- second step: needs the sets and the charges

    @property
    def needs_judging(self) -> bool:
        """Return whether `judge` has to be called."""
        return bool(self.bad or self.returned or self._cancelled_pieces)

    @property
    def judged_sets(self) -> list[int]:
        """Return the numbers of the sets that `judge` needs."""
        pieces = [piece for _, piece in (*self.returned, *self._cancelled_pieces)]
        return sorted({p.set_n for p in pieces} | {bad.piece.set_n for bad in self.bad})

    @property
    def judged_calls(self) -> list[tuple[int, int]]:
        """Return the (set, index) of the calls whose charges `judge` needs."""
        return sorted({(bad.piece.set_n, bad.index) for bad in self.bad})

    def judge(
        self,
        sets: Mapping[int, CallSetRow],
        charges: Mapping[tuple[int, int], CallCharges],
        judge: CallJudge,
        saved: Collection[tuple[int, int]] = (),
    ) -> None:
        """Decide on every call that failed or returned to its feed.

        sets, charges: as `judged_sets` and `judged_calls` name them. saved: (set, index) of calls
        with a checkpoint.
        """
        for feed, piece in self.returned:
            row = sets[piece.set_n]
            if row.cancelled_at is None:
                self.ready.append((feed, piece))
            else:
                self.cancel_piece(piece, row.cancel_reason)
        for reason, piece in self._cancelled_pieces:
            self.cancel_piece(piece, reason or sets[piece.set_n].cancel_reason)
        for bad in self.bad:
            row = sets[bad.piece.set_n]
            call = row.n, bad.index
            before = charges.get(call, CallCharges())
            self._judge_one(bad, row, before, judge, saved=call in saved)
        self.returned, self._cancelled_pieces, self.bad = [], [], []

    def _judge_one(
        self, bad: BadEnd, row: CallSetRow, charges: CallCharges, judge: CallJudge, *, saved: bool
    ) -> None:
        found, detail, value = explain_end(bad.end, bad.facts, judge)
        seconds = bad.end.seconds if bad.end is not None else _lasted(bad, self.now)
        if found.cause is Cause.APP_UNUSABLE and bad.end is not None:
            decision = decide_unable(found.message, charges, bad.batch.host_id, bad.hosts)
        else:
            decision = decide_call(
                found,
                charges,
                judge.policy_of(row.queue, row.spec),
                name=f"{row.id}.{bad.index}",
                chance=judge.chance(),
                lasted_seconds=max(0.0, seconds),
                own_limit=_names_limit(row.spec) and not (bad.closing and bad.closing.loading),
                left=saved or bool(bad.closing and bad.closing.step is not None),
            )
        asked = bad.stop is not None or row.cancelled_at is not None
        outcome = CallOutcome.CANCELLED if asked else decision.outcome
        again = msgspec.structs.replace(
            bad.piece.cut(bad.index, bad.index + 1), attempts=min(bad.piece.attempts + 1, 32_000)
        )
        self.failures.append(_failure(bad, decision, detail, seconds, self.now))
        self.charges[row.n, bad.index] = decision.charges
        feed = bad.batch.feed
        if outcome is CallOutcome.READY:
            self.ready.append((feed, msgspec.structs.replace(again, since=self.now.timestamp())))
        elif outcome is CallOutcome.WAIT:
            due = self.now + timedelta(seconds=decision.delay_seconds)
            held = decision.held
            self.waiting.append(WaitingCall(feed=feed, piece=again, due_at=due, held=held))
        elif outcome is CallOutcome.CANCELLED:
            why = row.cancel_reason if bad.stop is None else bad.stop.reason or row.cancel_reason
            reason = why if asked else decision.reason
            self._end(again, CallState.CANCELLED, reason or "cancelled", [value])
        else:
            self._end(again, CallState.FAILED, decision.reason, [value])

    def cancel_piece(self, piece: Piece, reason: str) -> None:
        """Cancel waiting calls."""
        self._end(piece, CallState.CANCELLED, reason or "cancelled", None)

    def _end(self, piece: Piece, state: CallState, reason: str, results: list[str] | None) -> None:
        self.runs.append(
            CallRun(
                set_n=piece.set_n,
                first=piece.first,
                last=piece.last,
                state=state,
                attempts=piece.attempts,
                results=results,
                reason=reason,
            )
        )

    # ---- requests

    def release(
        self,
        due: Iterable[tuple[int, bool, Piece]],
        sets: Mapping[int, CallSetRow],
        policy_of: PolicyOf,
    ) -> list[Piece]:
        """Make calls ready whose back-off is over; return those that a kill switch still holds.

        due: for each call its feed, whether a kill switch held it, and the call.
        """
        still: list[Piece] = []
        for feed, held, piece in due:
            row = sets[piece.set_n]
            if row.cancelled_at is not None:
                self.cancel_piece(piece, row.cancel_reason)
            elif held and policy_of(row.queue, row.spec).held is not None:
                still.append(piece)
            else:
                since = self.now.timestamp()
                self.ready.append((feed, msgspec.structs.replace(piece, since=since)))
        return still

    def revive(
        self,
        n: int,
        feed: int,
        rank: int,
        ord: int,
        runs: Iterable[Mapping[str, Any]],
        asked: Ranges | None,
    ) -> list[Piece]:
        """Make calls of failed and cancelled runs ready again at the back of their feed, and return
        them. asked: the indices to revive, None for all; the other calls stay ended."""
        freed: list[Piece] = []
        for run in runs:
            span = (run["first"], run["last"])
            kept = [] if asked is None else subtract_ranges(span, asked)
            gone = subtract_ranges(span, kept)
            place = (run["page"], rank, ord, run["attempts"], self.now.timestamp())
            freed += [Piece(n, first, last, *place) for first, last in gone]
            counts = self.undone.setdefault(n, [0, 0, 0])
            counts[run["state"] - 1] -= span[1] - span[0]
            self.runs += [
                CallRun(
                    set_n=n,
                    first=first,
                    last=last,
                    state=CallState(run["state"]),
                    attempts=run["attempts"],
                    results=None,
                    reason=run["reason"],
                )
                for first, last in kept
            ]
        self.ready += [(feed, piece) for piece in freed]
        return freed

    def count(self) -> dict[int, tuple[int, int, int]]:
        """Return how many calls of each set succeeded, failed and were cancelled."""
        found = {n: list(counts) for n, counts in self.undone.items()}
        for run in self.runs:
            counts = found.setdefault(run.set_n, [0, 0, 0])
            counts[run.state - 1] += run.last - run.first
        return {n: (a, b, c) for n, (a, b, c) in sorted(found.items())}


def _names_limit(spec: FunctionSpec) -> bool:
    return isinstance(spec.time_limit_seconds, int | float)


def _without(span: tuple[int, int], position: int) -> Ranges:
    return subtract_ranges(span, [(position, position + 1)])


def _lasted(bad: BadEnd, now: datetime) -> float:
    ran = bad.facts.runtime_seconds if bad.facts is not None else 0.0
    since = (now - bad.batch.began_at).total_seconds()
    return min(ran, since) if ran > 0 else since


def _failure(
    bad: BadEnd, decision: CallDecision, detail: str, seconds: float, now: datetime
) -> FailureRow:
    return FailureRow(
        set_n=bad.piece.set_n,
        index=bad.index,
        attempt=min(bad.piece.attempts + 1, 32_000),
        host_id=bad.batch.host_id,
        job_id=bad.batch.job_id,
        cause=str(decision.cause),
        rule=decision.rule,
        charged_to=decision.charged_to,
        reason=decision.reason,
        detail=detail,
        began_at=now - timedelta(seconds=max(0.0, seconds)),
        ended_at=now,
    )
