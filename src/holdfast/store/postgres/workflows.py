"""Runs of workflows, their nodes, and the outbox by which they advance.

The invariants are FLOW-1…5 (`core.workflows.advance`) and POST-1 (`moves.workflows`), and:

POST-2  A post that fails is tried again later and delays no other post. After `SET_ASIDE_TRIES`
        tries it is set aside with an alarm, and its run fails.
"""

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec

from holdfast.core.workflows import advance
from holdfast.core.workflows.advance import Advance, NodeRow, RunRow, find_rows
from holdfast.core.workflows.records import NodeRecord, NodeWork, RunRecord
from holdfast.core.workflows.values import NodeSpec
from holdfast.moves import workflows as moves
from holdfast.moves.workflows import Broken, NewRun, Post, Processed, hash_run, make_rows
from holdfast.store.clock import Now
from holdfast.store.postgres.connection.parts import OnSession, reads, transacts
from holdfast.store.postgres.connection.session import Rows, Tx, to_json
from holdfast.store.postgres.moves import write_events

INSERT_ROWS = 5000
SCAN_RUNS = 4096
MOST_COMPARED = 1000
"""Most nodes of a run that are compared to explain how a repeat differs."""


class PostgresWorkflows(OnSession):
    """Runs of workflows on record. Both stores pass `tests/store/conformance/workflows.py`."""

    @transacts
    async def submit_run(self, tx: Tx, new: NewRun, *, now: Now = None) -> RunRecord:
        """Write a run, and the posts that start the nodes without parents; the secrets of its jobs
        are stored apart. A repeated call changes nothing. Raises Conflict where the id names
        another workflow."""
        at = await tx.now(now)
        digest = hash_run(new)
        if await tx.one("insert_run", **_run_params(new), spec_hash=digest, now=at) is None:
            if await tx.value("read_run_hash", id=new.id) != digest:
                numbers = list(range(min(MOST_COMPARED, len(new.spec.nodes))))
                rows = await tx.rows("read_works", run=new.id, numbers=numbers)
                kept = [_to_work(row).spec for row in rows]
                raise moves.refuse_repeat(await _read_run(tx, new.id), kept, new)
            return await _read_run(tx, new.id)
        run, nodes = make_rows(new)
        a = Advance(run, nodes, {}, at)
        advance.begin_run(a)
        specs = [msgspec.json.encode(node.without_secrets()).decode() for node in new.spec.nodes]
        for first in range(0, len(nodes), INSERT_ROWS):
            part = nodes[first : first + INSERT_ROWS]
            await tx.run("insert_nodes", run=new.id, **_node_params(part, specs))
        secrets = [
            {"number": number, "secrets": values}
            for number, values in moves.list_secrets(new).items()
        ]
        if secrets:
            await tx.run("insert_node_secrets", run=new.id, rows=to_json(secrets))
        edges = [(above, n) for n, parents in enumerate(new.parents) for above in parents]
        for first in range(0, len(edges), INSERT_ROWS * 10):
            chunk = edges[first : first + INSERT_ROWS * 10]
            sides = {"parents": [p for p, _ in chunk], "children": [c for _, c in chunk]}
            await tx.run("insert_flow_edges", run=new.id, **sides)
        await _write_posts(tx, moves.list_posts(a), at)
        await write_events(tx, moves.list_events(a), at)
        return await _read_run(tx, new.id)

    @reads
    async def get_run(self, tx: Tx, run_id: str) -> RunRecord:
        """Return a run. Raises NotFound."""
        return await _read_run(tx, run_id)

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
        """Return runs, the newest first."""
        params = {"states": list(states) or None, "project": project, "owner": owner, "name": name}
        return await self.session.list_of(
            RunRecord, "list_runs", **params, before=before, limit=limit
        )

    async def count_nodes(self, run_id: str) -> dict[str, int]:
        """Return state → number of nodes."""
        rows = await self.session.rows("count_nodes", run=run_id)
        return {row["state"]: row["count"] for row in rows}

    async def list_nodes(
        self, run_id: str, *, states: Collection[str] = (), after: int = -1, limit: int = 1000
    ) -> list[NodeRecord]:
        """Return the nodes whose number is above `after`, by number."""
        params = {"states": list(states) or None, "after": after, "limit": limit, "name": None}
        return await self.session.list_of(NodeRecord, "list_nodes", run=run_id, **params)

    @reads
    async def find_node(self, tx: Tx, run_id: str, name: str) -> NodeRecord:
        """Return a node by its name. Raises NotFound."""
        return await _find_node(tx, run_id, name)

    async def read_works(self, run_id: str, numbers: Collection[int]) -> dict[int, NodeWork]:
        """Return nodes by number, with their specs and results."""
        rows = await self.session.rows("read_works", run=run_id, numbers=list(numbers))
        return {row["number"]: _to_work(row) for row in rows}

    async def read_secrets(
        self, run_id: str, numbers: Collection[int]
    ) -> dict[int, dict[str, str]]:
        """Return the secrets of nodes' jobs by number; nodes without secrets are missing. Secrets
        are kept as long as their run."""
        rows = await self.session.rows("read_node_secrets", run=run_id, numbers=list(numbers))
        return {row["number"]: row["secrets"] for row in rows}

    async def read_parents(
        self, run_id: str, numbers: Collection[int], names: Collection[str]
    ) -> dict[str, NodeWork]:
        """Return name → node, for the names among `names` that are parents of one of these
        nodes."""
        if not names:
            return {}
        rows = await self.session.rows(
            "read_parents", run=run_id, numbers=list(numbers), names=list(names)
        )
        return {row["name"]: _to_work(row) for row in rows}

    @transacts
    async def cancel_run(
        self, tx: Tx, run_id: str, reason: str, *, hard: bool = False, now: Now = None
    ) -> RunRecord:
        """Cancel a run; a run that has ended stays as it is. Raises NotFound."""
        run = await _lock_run(tx, run_id)
        if run is None:
            raise moves.no_run(run_id)
        nodes = await tx.list_of(NodeRow, "load_unended_nodes", run=run_id, numbers=[])
        a = Advance(run, nodes, {}, await tx.now(now))
        if advance.cancel_run(a, reason, hard=hard):
            await _write(tx, a, moves.list_posts(a))
        return await _read_run(tx, run_id)

    @transacts
    async def restart_run(
        self, tx: Tx, run_id: str, reason: str, *, origins: Sequence[str] = (), now: Now = None
    ) -> RunRecord:
        """Restart the nodes that did not succeed, and the nodes `origins` with their descendants.

        Raises:
            NotFound: no such run, or node. Conflict: the run goes on, or no node is to be
            restarted.
        """
        run = await _lock_run(tx, run_id)
        if run is None:
            raise moves.no_run(run_id)
        nodes = await tx.list_of(NodeRow, "load_all_nodes", run=run_id)
        numbers = {node.name: node.number for node in nodes}
        for name in origins:
            if name not in numbers:
                raise moves.no_node(run_id, name)
        children = _group(await tx.rows("load_all_edges", run=run_id))
        a = Advance(run, nodes, children, await tx.now(now))
        advance.restart_run(a, reason, [numbers[name] for name in origins])
        await _write(tx, a, moves.list_posts(a))
        return await _read_run(tx, run_id)

    @transacts
    async def answer_node(
        self, tx: Tx, run_id: str, name: str, answer: str, by: str, *, now: Now = None
    ) -> NodeRecord:
        """Answer the question that a node asks a person, which ends the node.

        Raises:
            NotFound: no such node. Conflict: the node asks nothing now. ValidationError: the answer
            is not one of its choices.
        """
        run = await _lock_run(tx, run_id)
        if run is None:
            raise moves.no_run(run_id)
        node = await _find_node(tx, run_id, name)
        rows = await tx.rows("read_works", run=run_id, numbers=[node.number])
        moves.check_answer(run_id, _to_work(rows[0]), answer)
        children = _group(await tx.rows("load_children", run=run_id, numbers=[node.number]))
        numbers = [node.number, *children.get(node.number, ())]
        nodes = await tx.list_of(NodeRow, "load_nodes", run=run_id, numbers=numbers)
        a = Advance(run, nodes, children, await tx.now(now))
        moves.answer_node(a, node.number, answer, by)
        await _write(tx, a, moves.list_posts(a))
        return await _find_node(tx, run_id, name)

    @reads
    async def read_outbox(
        self, tx: Tx, *, runs: int = 64, rows: int = 500, now: Now = None
    ) -> list[Post]:
        """Return posts that are due, ordered by run and age: of at most `runs` runs, and at most
        `rows` of each run, so that a large run delays no other."""
        params = {"runs": runs, "rows": rows, "scan": SCAN_RUNS, "now": await tx.now(now)}
        return await tx.list_of(Post, "read_outbox", **params)

    @transacts
    async def record_posts(
        self, tx: Tx, run_id: str, found: Sequence[Processed], *, now: Now = None
    ) -> RunRecord | None:
        """Delete processed posts of one run and apply their changes, in one transaction. A post
        that was deleted before changes nothing again (POST-1), except that work which it submitted
        for a cancelled node is stopped. Return None where the run no longer exists."""
        return await _record(tx, run_id, found, await tx.now(now))

    @transacts
    async def postpone_post(
        self,
        tx: Tx,
        post: Post,
        error: str,
        delay_seconds: float,
        *,
        counted: bool = True,
        now: Now = None,
    ) -> None:
        """Make a post due again after the delay. counted: this failure counts as one of the post's
        tries."""
        due = await tx.now(now) + timedelta(seconds=delay_seconds)
        await tx.run("postpone_post", n=post.n, error=error, due_at=due, tries=int(counted))

    @transacts
    async def set_aside(
        self, tx: Tx, post: Post, error: str, *, now: Now = None
    ) -> RunRecord | None:
        """Remove a post from the outbox for good, with an event, and fail its run."""
        at = await tx.now(now)
        about = {name: getattr(post, name) for name in ("n", "run", "node", "kind", "ref")}
        await tx.run("keep_set_aside", **about, tries=post.tries + 1, error=error, now=at)
        broken = Processed(post=post, change=Broken(moves.say_set_aside(post, error)))
        run = await _record(tx, post.run, [broken], at)
        project = "default" if run is None else run.project
        await write_events(tx, [moves.set_aside_event(post, project, error)], at)
        return run

    @transacts
    async def prune_runs(
        self, tx: Tx, history_days: float, *, limit: int = 100, now: Now = None
    ) -> int:
        """Delete runs that ended more than `history_days` ago. Returns how many."""
        before = await tx.now(now) - timedelta(days=history_days)
        return len(await tx.rows("prune_runs", before=before, limit=limit))


async def _record(
    tx: Tx, run_id: str, found: Sequence[Processed], at: datetime
) -> RunRecord | None:
    run = await _lock_run(tx, run_id)
    numbers = [item.post.n for item in found]
    taken = {row["n"] for row in await tx.rows("take_posts", run=run_id, numbers=numbers)}
    mine = [item for item in found if item.post.n in taken]
    late = moves.find_late(found, taken)
    if run is None:
        return None
    if late or any(item.change is not None for item in mine):
        a = await _load(tx, run, [*mine, *late], at)
        moves.apply_late(a, late)
        posts = moves.apply_processed(a, mine)
        await _write(tx, a, posts)
    return await _read_run(tx, run_id)


async def _load(tx: Tx, run: RunRow, found: Sequence[Processed], at: datetime) -> Advance:
    """Load the nodes that these posts are about, and those that `find_rows` names."""
    numbers = sorted({item.post.node for item in found if item.change is not None})
    ends = moves.ends_of(found)
    rows = find_rows(run, ends)
    children = _group(await tx.rows("load_children", run=run.id, numbers=numbers)) if ends else {}
    below = {child for parent in children.values() for child in parent}
    wanted = {"run": run.id, "numbers": sorted({*numbers, *below})}
    nodes = await tx.list_of(NodeRow, "load_nodes", **wanted)
    if rows == "unended":
        nodes += await tx.list_of(NodeRow, "load_unended_nodes", run=run.id, numbers=[])
    elif rows == "descendants":
        nodes += await tx.list_of(NodeRow, "load_descendants", run=run.id, numbers=numbers)
    if rows != "children":
        more = sorted({node.number for node in nodes} - set(numbers))
        children |= _group(await tx.rows("load_children", run=run.id, numbers=more))
    return Advance(run, nodes, children, at)


async def _write(tx: Tx, a: Advance, posts: Sequence[Post]) -> None:
    fields = ("number", "state", "waiting_on", "ref", "rounds", "result", "reason")
    times = ("started_at", "ended_at")
    rows = [{f: getattr(node, f) for f in (*fields, *times)} for node in a.changed.values()]
    if rows:
        await tx.run("write_nodes", run=a.run.id, rows=to_json(rows))
    run = a.run
    await tx.run(
        "write_run",
        id=run.id,
        state=run.state,
        reason=run.reason,
        unended=run.unended,
        failed_node=run.failed_node,
        ended_at=run.ended_at,
    )
    await _write_posts(tx, posts, a.now)
    await write_events(tx, moves.list_events(a), a.now)


async def _write_posts(tx: Tx, posts: Sequence[Post], at: datetime) -> None:
    if posts:
        await tx.run("write_posts", rows=to_json(posts), now=at)


async def _lock_run(tx: Tx, run_id: str) -> RunRow | None:
    return await tx.find(RunRow, "lock_run", id=run_id)


async def _read_run(tx: Tx, run_id: str) -> RunRecord:
    found = await tx.find(RunRecord, "read_run", id=run_id)
    if found is None:
        raise moves.no_run(run_id)
    return found


async def _find_node(tx: Tx, run_id: str, name: str) -> NodeRecord:
    params = {"states": None, "after": -1, "limit": 1}
    found = await tx.find(NodeRecord, "list_nodes", run=run_id, name=name, **params)
    if found is None:
        await _read_run(tx, run_id)  # raises for an unknown run
        raise moves.no_node(run_id, name)
    return found


def _to_work(row: dict[str, Any]) -> NodeWork:
    spec = msgspec.json.decode(row["spec"], type=NodeSpec)
    return msgspec.convert({**row, "spec": spec}, NodeWork)


def _group(edges: Rows) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for row in edges:
        found.setdefault(row["parent"], []).append(row["child"])
    return found


def _run_params(new: NewRun) -> dict[str, Any]:
    spec = new.spec
    return {
        "id": new.id,
        "name": spec.name,
        "owner": new.owner,
        "project": spec.project,
        "on_failure": spec.on_failure,
        "nodes": len(spec.nodes),
        "out_dir": new.out_dir,
        "labels": to_json(spec.labels),
    }


def _node_params(nodes: Sequence[NodeRow], specs: Sequence[str]) -> dict[str, list[Any]]:
    return {
        "numbers": [n.number for n in nodes],
        "names": [n.name for n in nodes],
        "kinds": [str(n.kind) for n in nodes],
        "states": [str(n.state) for n in nodes],
        "waits": [n.waiting_on for n in nodes],
        "refs": [n.ref for n in nodes],
        "rounds": [n.rounds for n in nodes],
        "specs": [specs[n.number] for n in nodes],
    }
