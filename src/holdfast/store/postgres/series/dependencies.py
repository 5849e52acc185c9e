"""What jobs wait for, in PostgreSQL."""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime

import msgspec

from holdfast.core.records import WaitRecord
from holdfast.core.series.dependencies import ParentEnd, parse_all, say_wait
from holdfast.moves.series import dependencies
from holdfast.moves.series.dependencies import Edge
from holdfast.moves.values import NewJob, Settled
from holdfast.store.port.clock import Now
from holdfast.store.postgres.connection.session import OnSession, Tx
from holdfast.store.postgres.moves import load_moves, write_moves


class PostgresDependencies(OnSession):
    """`DependencyStore` on PostgreSQL."""

    async def settle_dependencies(self, limit: int = 1000, *, now: Now = None) -> Settled:
        found = await self.session.rows("find_ended_parents", limit=limit)
        if not found:
            return Settled()

        async def work(tx: Tx) -> Settled:
            return await settle_parents(tx, [row["id"] for row in found], limit, now)

        return await self.session.transact(work)

    async def list_waits(
        self, job_ids: Collection[str], *, first: int
    ) -> dict[str, list[WaitRecord]]:
        waits: dict[str, list[WaitRecord]] = {}
        for row in await self.session.rows("list_waits", ids=list(set(job_ids)), first=first):
            waits.setdefault(row.pop("child"), []).append(msgspec.convert(row, WaitRecord))
        return waits


async def settle_parents(
    tx: Tx, parents: Sequence[str], limit: int, now: datetime | None
) -> Settled:
    """Decide what becomes of the dependants of those `parents` that have ended."""
    at = await tx.now(now)
    asked = {"parents": list(parents), "limit": limit}
    edges = await tx.list_of(Edge, "find_edges", **asked, children=None)
    children = sorted({edge.child for edge in edges})
    m = await load_moves(tx, [*parents, *children], at)
    ended = [p for p in parents if p in m.jobs and m.jobs[p].state.terminal]
    edges = await tx.list_of(Edge, "find_edges", **(asked | {"parents": ended}), children=children)
    ends = {e.parent: ParentEnd(e.name, m.jobs[e.parent].state) for e in edges}
    decided = dependencies.decide_edges(m, edges, ends)
    gone = {
        "children": [e.child for e in decided.gone],
        "parents": [e.parent for e in decided.gone],
    }
    *_, free = await tx.many(
        ("delete_edges", gone),
        ("delete_edges_of", {"children": decided.broken}),
        ("find_free", {"ids": decided.met}),
    )
    for row in free:
        dependencies.release_waiting(m, m.jobs[row["id"]], dependencies.MET)
    await write_moves(tx, m)
    await tx.run("forget_parents", ids=ended)
    return Settled(
        released=len(free),
        cancelled=len(decided.broken),
        left=len(edges) >= limit or len(parents) >= limit or bool(decided.broken),
    )


async def find_parents(tx: Tx, jobs: Sequence[NewJob]) -> dict[str, str]:
    """Return the names of the jobs that `jobs` wait for, by id; unknown ones are missing."""
    ids = {d.parent for job in jobs for d in parse_all(job.spec.after)}
    if not ids:
        return {}
    return {row["id"]: row["name"] for row in await tx.rows("find_parents", ids=sorted(ids))}


def say_waits(job: NewJob, names: Mapping[str, str]) -> str:
    """Return the sentence of a new job that waits for others."""
    return say_wait(parse_all(job.spec.after), names, job.spec.start_at is not None)


async def write_dependencies(
    tx: Tx, jobs: Sequence[NewJob], names: Mapping[str, str], now: datetime | None
) -> None:
    """Write what new jobs wait for, and decide at once where a parent has ended.

    Raises:
        ValidationError: a parent does not exist.
    """
    edges = [(job.id, d) for job in jobs for d in parse_all(job.spec.after)]
    unknown = {d.parent for _, d in edges} - names.keys()
    if unknown:
        raise dependencies.refuse_parents(unknown)
    if not edges:
        return
    parents = sorted({d.parent for _, d in edges})
    rows = {
        "children": [child for child, _ in edges],
        "parents": [d.parent for _, d in edges],
        "wants": [str(d.wants) for _, d in edges],
    }
    _, _, found = await tx.many(
        ("await_jobs", {"ids": parents}), ("insert_edges", rows), ("find_parents", {"ids": parents})
    )
    ended = [row["id"] for row in found if row["ended"]]
    if ended:
        await settle_parents(tx, ended, len(edges) + 1000, now)
