"""The tables of calls in memory."""

import random
from bisect import insort
from collections.abc import Collection, Sequence
from datetime import datetime
from itertools import count as counter

import msgspec

from holdfast.core.calls.decide import CallJudge, PolicyOf, default_policy
from holdfast.core.calls.feeds import ColdWaitOf, find_cold_wait
from holdfast.core.calls.values import CallCharges
from holdfast.core.endings.rules import OperatorRule
from holdfast.moves.calls.calls import CallMoves, CallSetRow, FailureRow, OpenBatch, WaitingCall
from holdfast.moves.calls.checkpoints import CallKept
from holdfast.moves.calls.exchange import Head
from holdfast.moves.calls.pieces import Piece
from holdfast.moves.calls.sets import no_set, tell_end
from holdfast.store.memory.call_rows import MemoryCallSet, MemoryFeed, MemoryRun
from holdfast.store.memory.state import InMemory, MemoryState


class CallTables(InMemory):
    """The tables of calls, and the writes of the moves' changes to them."""

    def __init__(self, state: MemoryState) -> None:
        super().__init__(state)
        self.sets = state.call_sets
        self.by_id: dict[str, int] = {}
        self.feeds: dict[tuple[str, str], MemoryFeed] = {}
        self.pages: dict[int, dict[int, list[str]]] = {}
        self.batches: dict[int, OpenBatch] = {}
        self.runs: dict[int, list[MemoryRun]] = {}
        self.waiting: list[WaitingCall] = []
        self.charges: dict[tuple[int, int], CallCharges] = {}
        self.kept: dict[tuple[str, int], CallKept] = {}
        self.failures: dict[tuple[int, int], list[FailureRow]] = {}
        self.numbers = counter(1)
        self.order = counter(1)

    def get_set(self, set_id: str) -> MemoryCallSet:
        """Return a set's row. Raises NotFound."""
        n = self.by_id.get(set_id)
        if n is None:
            raise no_set(set_id)
        return self.sets[n]

    async def find_known_values(self, names: Collection[str]) -> set[str]:
        texts = [text for pages in self.pages.values() for page in pages.values() for text in page]
        texts += [run.results or "" for runs in self.runs.values() for run in runs]
        for run in self.state.runs.values():
            texts += [node.result or "" for node in run.nodes.values()]
            texts += [msgspec.json.encode(spec).decode() for spec in run.specs]
        return {name for name in names if any(name in text for text in texts)}

    def is_of_run(self, row: MemoryCallSet, before: datetime) -> bool:
        """Return whether the set belongs to a workflow run that goes on or ended after `before`."""
        run = None if row.origin is None else self.state.runs.get(row.origin.run)
        return run is not None and (run.row.ended_at is None or run.row.ended_at >= before)

    def look_at(
        self, feed: MemoryFeed, at: datetime, cold_wait_of: ColdWaitOf | None
    ) -> Head | None:
        """Return the facts of a feed for the choice of the next batch; None without ready calls."""
        if not feed.ready:
            return None
        first, served = feed.ready[0], feed.served_at
        own, queue = feed.cold_wait_seconds, feed.family.queue
        return Head(
            id=feed.id,
            family_name=feed.family.name,
            model=feed.model,
            vram_gb=feed.vram_gb,
            head_priority=100 - first.rank,
            head_age_seconds=max(0.0, at.timestamp() - first.since),
            unserved_seconds=1e9 if served is None else max(0.0, (at - served).total_seconds()),
            cold_wait_seconds=find_cold_wait(own, queue, cold_wait_of),
            pieces=list(feed.ready),
        )

    def put_ready(self, feed: int, piece: Piece) -> None:
        """Put a range in its place."""
        found = next(f for f in self.feeds.values() if f.id == feed)
        insort(found.ready, piece, key=lambda p: p.place)

    def judge(
        self, moves: CallMoves, policy_of: PolicyOf | None, rules: Sequence[OperatorRule]
    ) -> None:
        """Decide on calls that failed or returned to their feed."""
        if moves.needs_judging:
            sets = {n: row_of(self.sets[n]) for n in moves.judged_sets}
            judge = CallJudge(policy_of or default_policy, rules, random.random)
            saved = {
                (self.by_id[set_id], index) for set_id, index in self.kept if set_id in self.by_id
            }
            moves.judge(sets, self.charges, judge, saved)

    def write(self, moves: CallMoves) -> tuple[str, ...]:
        """Write the changes of the moves; return the ids of sets with new ends."""
        for run in moves.runs:
            results = None if run.results is None else msgspec.json.encode(run.results).decode()
            self.runs[run.set_n].append(
                MemoryRun(
                    first=run.first,
                    last=run.last,
                    state=int(run.state),
                    attempts=run.attempts,
                    results=results,
                    reason=run.reason,
                    ended_at=moves.now,
                )
            )
        for number in moves.gone:
            self.batches.pop(number, None)
        for feed, piece in moves.ready:
            self.put_ready(feed, piece)
        self.waiting += moves.waiting
        self.charges |= moves.charges
        for row in moves.failures:
            self.failures.setdefault((row.set_n, row.index), []).append(row)
        return tuple(self.count(n, counts, moves.now) for n, counts in moves.count().items())

    def count(self, n: int, counts: tuple[int, int, int], at: datetime) -> str:
        """Add to a set's counts, and end the set once all its calls have ended; return its id."""
        row = self.sets[n]
        row.succeeded += counts[0]
        row.failed += counts[1]
        row.cancelled += counts[2]
        if row.count == row.ended:
            if row.ended_at is None:
                self.state.log([tell_end(row.view(), row.queue)], at)
            row.ended_at = at
            if row.origin is not None:
                self.state.post(row.origin.run, row.origin.node, "call_set", row.id, at)
        return row.id


def row_of(found: MemoryCallSet) -> CallSetRow:
    """Return the fields of a set that decisions need."""
    return CallSetRow(
        n=found.n,
        id=found.id,
        spec=found.spec,
        queue=found.queue,
        cancelled_at=found.cancelled_at,
        cancel_reason=found.cancel_reason,
        out_dir="" if found.origin is None else found.origin.out_dir,
    )
