"""Calls in memory: the same moves on dictionaries."""

from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

import msgspec

from holdfast.core.calls.decide import HELD_SECONDS, PolicyOf, default_policy
from holdfast.core.calls.feeds import ColdWaitOf
from holdfast.core.calls.values import MAX_SET_CALLS, CallState, Family, FunctionSpec, find_family
from holdfast.core.endings.rules import OperatorRule
from holdfast.core.states import TaskState
from holdfast.moves.calls.calls import CALL_LOST, CallMoves, OpenBatch
from holdfast.moves.calls.exchange import Exchange, Standing
from holdfast.moves.calls.host_calls import sum_counts
from holdfast.moves.calls.pieces import Piece, list_ranges, make_pages, subtract_ranges
from holdfast.moves.calls.sets import (
    ABSENT,
    ask_to_stop,
    check_growth,
    check_same,
    check_same_owner,
    expand_runs,
    name_running,
    split_pieces,
    stand_call,
)
from holdfast.store.memory.call_rows import MemoryCallSet, MemoryFeed
from holdfast.store.memory.calls.tables import CallTables, row_of
from holdfast.store.port.calls.calls import (
    CLOSING_SECONDS,
    BusyCall,
    CallOutput,
    CallSetOrigin,
    CallStanding,
    ExecutorTurn,
    ExecutorTurned,
    Feed,
    RunningCalls,
)
from holdfast.store.port.clock import Now
from holdfast.wire.calls import BUSY_LONG, CallResult, CallSetView


class MemoryCalls(CallTables):
    """`CallStore` in memory."""

    # ---- sets

    async def create_set(
        self,
        set_id: str,
        spec: FunctionSpec,
        queue: str,
        *,
        count: int | None = None,
        args: Sequence[str] = (),
        singles: bool = False,
        origin: CallSetOrigin | None = None,
        owner: str = "",
        now: Now = None,
    ) -> CallSetView:
        at = self.state.at(now)
        n = self.by_id.get(set_id)
        if n is None:
            n = next(self.numbers)
            made = MemoryCallSet(
                n=n,
                id=set_id,
                owner=owner,
                feed=self._find_feed(find_family(spec, queue), spec).id,
                queue=queue,
                spec=spec,
                count=None,
                origin=origin,
                created_at=at,
                heard_at=at,
                singles=singles,
            )
            check_growth(made.view(), [(0, len(args))], count)
            self.sets[n], self.by_id[set_id], self.pages[n] = made, n, {}
            self.runs[n] = []
        check_same(set_id, self.sets[n].spec, spec)
        check_same_owner(set_id, self.sets[n].owner, owner)
        return self._grow(self.sets[n], 0, args, count, at)

    def _find_feed(self, family: Family, spec: FunctionSpec) -> MemoryFeed:
        key = (family.name, spec.model or "")
        feed = self.feeds.get(key)
        if feed is None:
            feed = self.feeds[key] = MemoryFeed(
                id=len(self.feeds) + 1,
                family=family,
                model=spec.model,
                vram_gb=spec.vram_gb,
                cold_wait_seconds=spec.cold_wait_seconds,
            )
        feed.vram_gb, feed.cold_wait_seconds = spec.vram_gb, spec.cold_wait_seconds
        return feed

    async def append_calls(
        self,
        set_id: str,
        first: int,
        args: Sequence[str],
        *,
        count: int | None = None,
        cut: str = "",
        now: Now = None,
    ) -> CallSetView:
        return self._grow(self.get_set(set_id), first, args, count, self.state.at(now), cut)

    async def close_absent(
        self, silent_seconds: float, *, limit: int = 1000, now: Now = None
    ) -> list[str]:
        at = self.state.at(now)
        before = at - timedelta(seconds=silent_seconds)
        open_ = [r for r in self.sets.values() if r.count is None and r.origin is None]
        silent = [row for row in open_ if row.heard_at < before][:limit]
        for row in silent:
            row.count, row.absent, row.cut = row.submitted, True, "" if row.singles else ABSENT
            self.count(row.n, (0, 0, 0), at)
        return [row.id for row in silent]

    def _grow(
        self,
        row: MemoryCallSet,
        first: int,
        args: Sequence[str],
        count: int | None,
        at: datetime,
        cut: str = "",
    ) -> CallSetView:
        if row.absent:
            row.count, row.ended_at, row.absent, row.cut = None, None, False, ""
        row.heard_at = at
        there = [(page, page + len(texts)) for page, texts in self.pages[row.n].items()]
        spans = subtract_ranges((first, first + len(args)), there)
        check_growth(row.view(), spans, count)
        ord_, rank = next(self.order), 100 - row.spec.priority
        moves = CallMoves(at)
        for begin, end, texts in make_pages(args, first, spans):
            self.pages[row.n][begin] = texts
            row.submitted += end - begin
            piece = Piece(row.n, begin, end, begin, rank, ord_, 0, at.timestamp())
            if row.cancelled_at is None:
                self.put_ready(row.feed, piece)
            else:
                moves.cancel_piece(piece, row.cancel_reason)
        if row.count is None and count is not None:
            row.count, row.cut = count, cut
        self.write(moves)
        if row.count == row.ended and row.ended_at is None:
            self.count(row.n, (0, 0, 0), at)
        return row.view()

    async def read_set(self, set_id: str) -> CallSetView:
        return self._show(self.get_set(set_id))

    async def list_sets(
        self,
        *,
        before: str | None = None,
        limit: int = 100,
        project: str | None = None,
        owner: str | None = None,
    ) -> list[CallSetView]:
        found = [
            row
            for row in self.sets.values()
            if (before is None or row.id < before)
            and project in (None, row.spec.project)
            and owner in (None, row.owner)
        ]
        return [
            self._show(row) for row in sorted(found, key=lambda row: row.id, reverse=True)[:limit]
        ]

    async def read_results(
        self,
        set_id: str,
        *,
        first: int = 0,
        limit: int = 1000,
        indices: Sequence[int] | None = None,
        states: Sequence[CallState] = (),
    ) -> list[CallResult]:
        runs = self.runs[self.get_set(set_id).n]
        rows = [msgspec.structs.asdict(run) for run in sorted(runs, key=lambda run: run.first)]
        if indices is not None:
            return expand_runs(rows, wanted=frozenset(indices))[:limit]
        if states:
            asked = [row for row in rows if row["state"] in [int(s) for s in states]]
            return expand_runs(asked, first=first)[:limit]
        return expand_runs(rows, first=first, last=first + limit, gapless=True)

    async def read_call(self, set_id: str, index: int) -> CallStanding:
        row = self.get_set(set_id)
        feed = next(f for f in self.feeds.values() if f.id == row.feed)
        found = stand_call(
            set_id,
            index,
            await self.read_results(set_id, indices=[index]),
            [
                {"due_at": c.due_at, "attempts": c.piece.attempts}
                for c in self.waiting
                if (c.piece.set_n, c.piece.first) == (row.n, index)
            ],
            [p for p in feed.ready if p.set_n == row.n and p.first <= index < p.last],
            [*self.batches.values()],
            row.n,
        )
        if found["phase"] == "ended":
            runs = self.runs[row.n]
            found["ended_at"] = next(r.ended_at for r in runs if r.first <= index < r.last)
        if found["phase"] == "ready":
            ahead = 0
            for piece in feed.ready:
                if piece.set_n == row.n and piece.first <= index < piece.last:
                    found["ahead"] = min(10_000, ahead + index - piece.first)
                ahead += piece.size
        return CallStanding(spec=row.spec, family=feed.family, **found)

    async def find_outputs(self, set_id: str, index: int, attempt: int) -> list[CallOutput]:
        row = self.get_set(set_id)
        family = next(f.family.name for f in self.feeds.values() if f.id == row.feed)
        found = [
            CallOutput(
                job_id=job_id, job_attempt=number, stream=stream, start=span.start, end=span.end
            )
            for (job_id, number, _, stream), log in self.state.streams.items()
            for span in log.outputs
            if (span.set_id, span.attempt) == (set_id, attempt)
            and span.first <= index < span.last
            and self.state.jobs[job_id].spec.executor == family
        ]
        streams = ("stdout", "stderr")
        return sorted(
            found, key=lambda o: (o.job_id, o.job_attempt, streams.index(o.stream), o.start)
        )

    async def read_failures(self, set_id: str, index: int) -> list[Mapping[str, object]]:
        found = self.failures.get((self.get_set(set_id).n, index), [])
        place = ("set_n", "index")
        return [
            {n: getattr(row, n) for n in row.__struct_fields__ if n not in place}
            | {"host": self._name_host(row.host_id)}
            for row in found
        ]

    def _name_host(self, host_id: str) -> str | None:
        host = self.state.hosts.get(host_id)
        return None if host is None else host.name

    async def read_running(self) -> list[RunningCalls]:
        first: dict[str, int] = {}  # job -> the feed of its first batch
        for batch in sorted(self.batches.values(), key=lambda b: b.id):
            first.setdefault(batch.job_id, batch.feed)
        counts = Counter(first.values())
        feeds = sorted((f for f in self.feeds.values() if counts[f.id]), key=lambda f: f.id)
        return [RunningCalls(family=f.family, model=f.model, calls=counts[f.id]) for f in feeds]

    async def read_busy(self) -> list[BusyCall]:
        names = {n: row.id for n, row in self.sets.items()}
        families = {feed.id: feed.family for feed in self.feeds.values()}
        return [
            BusyCall(
                call=name_running(batch, names),
                waits_for="" if batch.busy == BUSY_LONG else batch.busy,
                family=families[batch.feed],
                host_id=batch.host_id,
                job_id=batch.job_id,
                batch=batch.id,
            )
            for batch in sorted(self.batches.values(), key=lambda b: b.id)
            if batch.busy
        ]

    def _show(self, row: MemoryCallSet) -> CallSetView:
        held = any(p.set_n == row.n for b in self.batches.values() for p in b.pieces)
        return row.view(running=held and row.ended_at is None)

    async def read_feeds(
        self, *, cold_wait_of: ColdWaitOf | None = None, now: Now = None
    ) -> list[Feed]:
        at = self.state.at(now)
        heads = [(feed, self.look_at(feed, at, cold_wait_of)) for feed in self.feeds.values()]
        return [
            Feed(
                id=feed.id,
                family=feed.family,
                model=feed.model,
                vram_gb=feed.vram_gb,
                ready=head.ready,
                head_priority=head.head_priority,
                head_age_seconds=head.head_age_seconds,
                unserved_seconds=head.unserved_seconds,
                cold_wait_seconds=head.cold_wait_seconds,
            )
            for feed, head in heads
            if head is not None
        ]

    # ---- the exchange

    async def exchange(
        self,
        turns: Sequence[ExecutorTurn],
        *,
        policy_of: PolicyOf | None = None,
        rules: Sequence[OperatorRule] = (),
        cold_wait_of: ColdWaitOf | None = None,
        now: Now = None,
    ) -> list[ExecutorTurned]:
        at = self.state.at(now)
        standings = [self._stand(turn) for turn in turns]
        ex = Exchange(at, turns, standings, [*self.batches.values()])
        ex.take()
        self.state.host_calls = sum_counts(self.state.host_calls, ex.moves.counted)
        self.judge(ex.moves, policy_of, rules)
        touched = self.write(ex.moves)
        looks = (self.look_at(feed, at, cold_wait_of) for feed in self.feeds.values())
        ex.choose([head for head in looks if head is not None])
        self._claim(ex, at)
        rows = {n: row_of(found) for n, found in self.sets.items()}
        pages = {(n, p): texts for n, found in self.pages.items() for p, texts in found.items()}
        answers = [ex.answer(i, rows, pages) for i in range(len(turns))]
        return [
            ExecutorTurned(
                key=turns[i].report.key,
                **answer,
                lost=not standings[i].live,
                touched_sets=touched if i == 0 else (),
                ready_again=bool(ex.moves.ready),
            )
            for i, answer in enumerate(answers)
        ]

    def _stand(self, turn: ExecutorTurn) -> Standing:
        task = self.state.task_for(turn.report.key)
        if (
            task is None
            or not task.state.holds_lease
            or (task.host_id, task.incarnation) != (turn.host_id, turn.incarnation)
        ):
            return Standing()
        return Standing(live=True, takes=task.state in (TaskState.RESERVED, TaskState.RUNNING))

    def _claim(self, ex: Exchange, at: datetime) -> None:
        feeds = {feed.id: feed for feed in self.feeds.values()}
        for feed, piece in (*ex.taken, *ex.cut):
            feeds[feed].ready = [p for p in feeds[feed].ready if p.place != piece.place]
        for feed, piece in ex.cut:
            self.put_ready(feed, piece)
        keys = [ex.turns[taking.turn].report.key for taking in ex.takings]
        ex.number((key.job_id, next(self.numbers)) for key in keys)
        for taking in ex.takings:
            key = ex.turns[taking.turn].report.key
            feeds[taking.head.id].served_at = at
            self.batches[taking.batch] = OpenBatch(
                id=taking.batch,
                job_id=key.job_id,
                task_rank=key.rank,
                epoch=key.epoch,
                host_id=ex.turns[taking.turn].host_id,
                feed=taking.head.id,
                pieces=taking.pieces,
                began_at=at,
            )

    async def return_batches(
        self,
        leading_since: datetime,
        *,
        policy_of: PolicyOf | None = None,
        rules: Sequence[OperatorRule] = (),
        now: Now = None,
    ) -> int:
        at = self.state.at(now)
        patience = timedelta(seconds=CLOSING_SECONDS)
        moves, returned = CallMoves(at), 0
        for batch in [*self.batches.values()]:
            task = self.state.tasks.get(batch.job_id, {}).get(batch.task_rank)
            if task is not None and task.epoch == batch.epoch and task.state.holds_lease:
                continue
            since = batch.left_at
            if since is None:
                batch.left_at = at
            elif since <= at - patience and leading_since < at - patience:
                returned += 1
                moves.return_batch(batch, batch.left[0][0] if batch.left else -1, CALL_LOST)
        self.judge(moves, policy_of, rules)
        self.write(moves)
        return returned

    # ---- requests and upkeep

    async def release_due(
        self, *, limit: int = 10_000, policy_of: PolicyOf | None = None, now: Now = None
    ) -> int:
        at = self.state.at(now)
        due = sorted((c for c in self.waiting if c.due_at <= at), key=lambda c: c.due_at)[:limit]
        moves = CallMoves(at)
        sets = {n: row_of(row) for n, row in self.sets.items()}
        held = moves.release(
            [(c.feed, c.held, c.piece) for c in due], sets, policy_of or default_policy
        )
        self.waiting = [c for c in self.waiting if c not in due]
        until = at + timedelta(seconds=HELD_SECONDS)
        self.waiting += [msgspec.structs.replace(c, due_at=until) for c in due if c.piece in held]
        self.write(moves)
        return len(due) - len(held)

    async def find_due(self) -> datetime | None:
        return min((call.due_at for call in self.waiting), default=None)

    async def cancel_calls(
        self,
        set_id: str,
        indices: Sequence[int] | None = None,
        *,
        reason: str = "",
        hard: bool = False,
        now: Now = None,
    ) -> CallSetView:
        row, at = self.get_set(set_id), self.state.at(now)
        asked = None if indices is None else list_ranges(indices)
        if row.ended_at is not None:
            return row.view()
        moves = CallMoves(at)
        feed = next(f for f in self.feeds.values() if f.id == row.feed)
        mine = [piece for piece in feed.ready if piece.set_n == row.n]
        found, rest = split_pieces(mine, asked)
        feed.ready = [piece for piece in feed.ready if piece.set_n != row.n]
        for piece in rest:
            self.put_ready(feed.id, piece)
        back = [c.piece for c in self.waiting if c.piece.set_n == row.n]
        waiting, _ = split_pieces(back, asked)
        self.waiting = [c for c in self.waiting if c.piece not in waiting]
        for piece in (*found, *waiting):
            moves.cancel_piece(piece, reason)
        for batch in self.batches.values():
            ask_to_stop(batch, row.n, asked, reason, hard=hard)
        if asked is None:
            row.cancelled_at, row.cancel_reason = at, reason
            row.count = row.submitted if row.count is None else row.count
        self.write(moves)
        if row.ended_at is None:
            self.count(row.n, (0, 0, 0), at)
        return self._show(row)

    async def retry_calls(
        self, set_id: str, indices: Sequence[int] | None = None, *, now: Now = None
    ) -> CallSetView:
        row, moves = self.get_set(set_id), CallMoves(self.state.at(now))
        asked = None if indices is None else list_ranges(indices)
        spans = [(0, MAX_SET_CALLS)] if asked is None else asked
        runs = [
            run
            for run in self.runs[row.n]
            if run.state != CallState.SUCCEEDED
            and any(first < run.last and run.first < last for first, last in spans)
        ]
        pages = sorted(self.pages[row.n])
        rows = [
            {**msgspec.structs.asdict(r), "page": pages[bisect_right(pages, r.first) - 1]}
            for r in runs
        ]
        rank, ord_ = 100 - row.spec.priority, next(self.order)
        freed = moves.revive(row.n, row.feed, rank, ord_, rows, asked)
        if freed:
            self.runs[row.n] = [run for run in self.runs[row.n] if run not in runs]
            row.cancelled_at, row.cancel_reason, row.ended_at = None, "", None
            for key in [
                (n, i)
                for n, i in self.charges
                if n == row.n and any(p.first <= i < p.last for p in freed)
            ]:
                del self.charges[key]
            self.write(moves)
        return self._show(row)

    async def prune_sets(self, history_days: float, *, limit: int = 1000, now: Now = None) -> int:
        before = self.state.at(now) - timedelta(days=history_days)
        old = [
            r
            for r in self.sets.values()
            if r.ended_at is not None and r.ended_at < before and not self.is_of_run(r, before)
        ]
        for row in old[:limit]:
            del self.sets[row.n], self.by_id[row.id], self.pages[row.n], self.runs[row.n]
            for table in (self.charges, self.failures):
                for key in [key for key in table if key[0] == row.n]:
                    table.pop(key, None)
        return len(old[:limit])
