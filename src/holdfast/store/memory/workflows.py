"""Runs of workflows in memory."""

import copy
from collections.abc import Collection, Sequence
from datetime import datetime, timedelta

import msgspec

from holdfast.core.records import shared_fields
from holdfast.core.workflows import advance
from holdfast.core.workflows.advance import Advance, NodeRow
from holdfast.core.workflows.records import NodeRecord, NodeWork, RunRecord
from holdfast.moves import workflows as moves
from holdfast.moves.workflows import Broken, NewRun, Post, Processed
from holdfast.store.memory.state import InMemory, MemoryWorkflowRun
from holdfast.store.port.clock import Now


class MemoryWorkflows(InMemory):
    """`WorkflowStore` in memory."""

    async def submit_run(self, new: NewRun, *, now: Now = None) -> RunRecord:
        s, at, digest = self.state, self.state.at(now), moves.hash_run(new)
        if new.id in s.runs:
            if s.runs[new.id].spec_hash != digest:
                works = await self.read_works(new.id, range(len(new.spec.nodes)))
                kept = [work.spec for work in works.values()]
                raise moves.refuse_repeat(await self.get_run(new.id), kept, new)
            return self._record(new.id)
        row, nodes = moves.make_rows(new)
        children: dict[int, list[int]] = {}
        for number, above in enumerate(new.parents):
            for parent in above:
                children.setdefault(parent, []).append(number)
        s.runs[new.id] = MemoryWorkflowRun(
            row=row,
            nodes={node.number: node for node in nodes},
            specs=[node.without_secrets() for node in new.spec.nodes],
            secrets=moves.list_secrets(new),
            parents=new.parents,
            children=children,
            spec_hash=digest,
            out_dir=new.out_dir,
            owner=new.owner,
            labels=new.spec.labels,
            created_at=at,
        )
        a = self._load(new.id, at)
        advance.begin_run(a)
        self._write(a, moves.list_posts(a))
        return self._record(new.id)

    async def get_run(self, run_id: str) -> RunRecord:
        return self._record(run_id)

    async def list_runs(
        self,
        *,
        states: Collection[str] = (),
        project: str | None = None,
        owner: str | None = None,
        name: str | None = None,
        before: str | None = None,
        limit: int = 100,
    ) -> list[RunRecord]:
        found = [
            self._record(run_id)
            for run_id, run in sorted(self.state.runs.items(), reverse=True)
            if (not states or run.row.state in states)
            and project in (None, run.row.project)
            and owner in (None, run.owner)
            and name in (None, run.row.name)
            and (before is None or run_id < before)
        ]
        return found[:limit]

    async def count_nodes(self, run_id: str) -> dict[str, int]:
        counts: dict[str, int] = {}
        run = self.state.runs.get(run_id)
        for node in () if run is None else run.nodes.values():
            counts[node.state.value] = counts.get(node.state.value, 0) + 1
        return counts

    async def list_nodes(
        self, run_id: str, *, states: Collection[str] = (), after: int = -1, limit: int = 1000
    ) -> list[NodeRecord]:
        run = self.state.runs.get(run_id)
        found = [
            self._node(run_id, node)
            for number, node in ({} if run is None else run.nodes).items()
            if number > after and (not states or node.state in states)
        ]
        return found[:limit]

    async def find_node(self, run_id: str, name: str) -> NodeRecord:
        for node in self._run(run_id).nodes.values():
            if node.name == name:
                return self._node(run_id, node)
        raise moves.no_node(run_id, name)

    async def read_works(self, run_id: str, numbers: Collection[int]) -> dict[int, NodeWork]:
        run = self.state.runs.get(run_id)
        if run is None:
            return {}
        return {n: self._work(run, run.nodes[n]) for n in numbers if n in run.nodes}

    async def read_secrets(
        self, run_id: str, numbers: Collection[int]
    ) -> dict[int, dict[str, str]]:
        run = self.state.runs.get(run_id)
        return {} if run is None else {n: run.secrets[n] for n in numbers if n in run.secrets}

    async def read_parents(
        self, run_id: str, numbers: Collection[int], names: Collection[str]
    ) -> dict[str, NodeWork]:
        run = self._run(run_id)
        above = {parent for number in numbers for parent in run.parents[number]}
        found = [self._work(run, run.nodes[n]) for n in above if run.nodes[n].name in names]
        return {work.name: work for work in found}

    async def cancel_run(
        self, run_id: str, reason: str, *, hard: bool = False, now: Now = None
    ) -> RunRecord:
        self._run(run_id)
        a = self._load(run_id, self.state.at(now))
        if advance.cancel_run(a, reason, hard=hard):
            self._write(a, moves.list_posts(a))
        return self._record(run_id)

    async def restart_run(
        self, run_id: str, reason: str, *, origins: Sequence[str] = (), now: Now = None
    ) -> RunRecord:
        numbers = {node.name: node.number for node in self._run(run_id).nodes.values()}
        for name in origins:
            if name not in numbers:
                raise moves.no_node(run_id, name)
        a = self._load(run_id, self.state.at(now))
        advance.restart_run(a, reason, [numbers[name] for name in origins])
        self._write(a, moves.list_posts(a))
        return self._record(run_id)

    async def answer_node(
        self, run_id: str, name: str, answer: str, by: str, *, now: Now = None
    ) -> NodeRecord:
        node = await self.find_node(run_id, name)
        run = self._run(run_id)
        moves.check_answer(run_id, self._work(run, run.nodes[node.number]), answer)
        a = self._load(run_id, self.state.at(now))
        moves.answer_node(a, node.number, answer, by)
        self._write(a, moves.list_posts(a))
        return await self.find_node(run_id, name)

    async def read_outbox(self, *, runs: int = 64, rows: int = 500, now: Now = None) -> list[Post]:
        at = self.state.at(now)
        by_run: dict[str, list[Post]] = {}
        for post in self.state.outbox.values():
            if post.due_at is not None and post.due_at <= at:
                by_run.setdefault(post.run, []).append(post)
        chosen = sorted(by_run.values(), key=lambda posts: posts[0].n)[:runs]
        return [post for posts in sorted(chosen, key=lambda p: p[0].run) for post in posts[:rows]]

    async def record_posts(
        self, run_id: str, found: Sequence[Processed], *, now: Now = None
    ) -> RunRecord | None:
        return self._process(run_id, found, self.state.at(now))

    async def postpone_post(
        self, post: Post, error: str, delay_seconds: float, *, counted: bool = True, now: Now = None
    ) -> None:
        kept = self.state.outbox.get(post.n)
        if kept is not None:
            due = self.state.at(now) + timedelta(seconds=delay_seconds)
            self.state.outbox[post.n] = msgspec.structs.replace(
                kept, tries=kept.tries + counted, error=error, due_at=due
            )

    async def set_aside(self, post: Post, error: str, *, now: Now = None) -> RunRecord | None:
        at = self.state.at(now)
        self.state.set_aside.append(
            msgspec.structs.replace(post, tries=post.tries + 1, error=error)
        )
        broken = Processed(post=post, change=Broken(moves.say_set_aside(post, error)))
        run = self._process(post.run, [broken], at)
        project = "default" if run is None else run.project
        self.state.log([moves.set_aside_event(post, project, error)], at)
        return run

    async def prune_runs(self, history_days: float, *, limit: int = 100, now: Now = None) -> int:
        before = self.state.at(now) - timedelta(days=history_days)
        ended = ((run.row.ended_at, run_id) for run_id, run in self.state.runs.items())
        old = [run_id for at, run_id in ended if at is not None and at < before][:limit]
        for run_id in old:
            del self.state.runs[run_id]
            for n in [n for n, post in self.state.outbox.items() if post.run == run_id]:
                del self.state.outbox[n]
        return len(old)

    # ---- rows

    def _run(self, run_id: str) -> MemoryWorkflowRun:
        if run_id not in self.state.runs:
            raise moves.no_run(run_id)
        return self.state.runs[run_id]

    def _load(self, run_id: str, at: datetime) -> Advance:
        run = self.state.runs[run_id]
        nodes = [copy.copy(node) for node in run.nodes.values()]
        return Advance(copy.copy(run.row), nodes, run.children, at)

    def _write(self, a: Advance, posts: Sequence[Post]) -> None:
        run = self.state.runs[a.run.id]
        run.row = a.run
        for number, node in a.changed.items():
            run.nodes[number] = node
        for post in posts:
            due = post.due_at or a.now
            self.state.post(post.run, post.node, post.kind, post.ref, due)
        self.state.log(moves.list_events(a), a.now)

    def _process(self, run_id: str, found: Sequence[Processed], at: datetime) -> RunRecord | None:
        mine = [item for item in found if self.state.outbox.pop(item.post.n, None) is not None]
        late = moves.find_late(found, {item.post.n for item in mine})
        if run_id not in self.state.runs:
            return None
        a = self._load(run_id, at)
        moves.apply_late(a, late)
        self._write(a, moves.apply_processed(a, mine))
        return self._record(run_id)

    def _record(self, run_id: str) -> RunRecord:
        run = self._run(run_id)
        failed = None if run.row.failed_node is None else run.nodes[run.row.failed_node].name
        fields = shared_fields(run.row, RunRecord) | {"failed_node": failed}
        return RunRecord(
            **fields,
            owner=run.owner,
            out_dir=run.out_dir,
            labels=run.labels,
            created_at=run.created_at,
        )

    def _node(self, run_id: str, node: NodeRow) -> NodeRecord:
        parents = tuple(sorted(self.state.runs[run_id].parents[node.number]))
        return NodeRecord(run=run_id, parents=parents, **shared_fields(node, NodeRecord))

    def _work(self, run: MemoryWorkflowRun, node: NodeRow) -> NodeWork:
        return NodeWork(spec=run.specs[node.number], **shared_fields(node, NodeWork))
