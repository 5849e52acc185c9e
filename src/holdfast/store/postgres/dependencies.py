"""Jobs that wait for other jobs, in PostgreSQL."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime

import msgspec

from holdfast.core.arrays.arrays import find_state
from holdfast.core.dependencies import ParentEnd, parse_all, say_wait
from holdfast.core.records import WaitRecord
from holdfast.core.spec import JobSpec
from holdfast.moves import dependencies
from holdfast.moves.dependencies import Edge
from holdfast.moves.values import Advanced
from holdfast.store.clock import Now
from holdfast.store.postgres.connection.parts import OnSession
from holdfast.store.postgres.connection.session import Tx
from holdfast.store.postgres.moves import load_moves, write_moves


class PostgresDependencies(OnSession):
    """The waits of jobs for the ends of others, which `PostgresJobs.submit_jobs` writes."""

    async def settle_dependencies(self, limit: int = 1000, *, now: Now = None) -> Advanced:
        """Release or cancel the dependants of jobs that have ended (AFTER-1), at most `limit`, in
        one transaction.

        An index that holds only ended jobs with dependants finds them quickly.
        """
        found = await self.session.rows("find_ended_parents", limit=limit)
        if not found:
            return Advanced()

        async def work(tx: Tx) -> Advanced:
            return await settle_parents(tx, [row["id"] for row in found], limit, now)

        return await self.session.transact(work)

    async def list_waits(
        self, job_ids: Collection[str], *, first: int
    ) -> dict[str, list[WaitRecord]]:
        """Return the parents for which each job still waits, at most `first` of each."""
        waits: dict[str, list[WaitRecord]] = {}
        for row in await self.session.rows("list_waits", ids=list(set(job_ids)), first=first):
            counts = row.pop("counts")
            if counts is not None:
                row["state"] = find_state(counts)
            waits.setdefault(row.pop("child"), []).append(msgspec.convert(row, WaitRecord))
        return waits


async def settle_parents(
    tx: Tx, parents: Sequence[str], limit: int, now: datetime | None
) -> Advanced:
    """Release or cancel the jobs that depend on those of `parents` that have ended."""
    at = await tx.now(now)
    asked = {"parents": list(parents), "limit": limit}
    edges = await tx.list_of(Edge, "find_edges", **asked, children=None)
    children = sorted({edge.child for edge in edges})
    arrays = {row["id"]: row for row in await tx.rows("lock_dependent_arrays", ids=children)}
    m = await load_moves(tx, [*parents, *children], at)
    ends = {j.id: ParentEnd("", j.state) for j in m.jobs.values() if j.state.terminal}
    for row in await tx.rows("read_ends_of_arrays", ids=asked["parents"]):
        ends[row["id"]] = ParentEnd("", find_state(row["counts"]))
    ended = [parent for parent in parents if parent in ends]
    edges = await tx.list_of(Edge, "find_edges", **(asked | {"parents": ended}), children=children)
    ends |= {e.parent: ParentEnd(e.name, ends[e.parent].state) for e in edges}
    held = {child for child, row in arrays.items() if row["held"]}
    decided = dependencies.decide_edges(m, edges, ends, held)
    gone = {
        "children": [e.child for e in decided.gone],
        "parents": [e.parent for e in decided.gone],
    }
    *_, free = await tx.many(
        ("delete_edges", gone),
        ("delete_edges_of", {"children": [child for child, _ in decided.broken]}),
        ("find_free", {"ids": decided.met}),
    )
    freed = [row["id"] for row in free]
    for child in freed:
        if child in m.jobs:
            dependencies.release_waiting(m, m.jobs[child], dependencies.MET)
    broken = {child: reason for child, reason in decided.broken if child in held}
    await write_moves(tx, m)
    await tx.many(
        ("free_arrays", {"ids": [child for child in freed if child in held]}),
        ("break_arrays", {"ids": list(broken), "reasons": list(broken.values())}),
        ("forget_parents", {"ids": ended}),
        ("forget_parent_arrays", {"ids": ended}),
    )
    return Advanced(
        released=len(freed),
        cancelled=len(decided.broken),
        left=len(edges) >= limit or len(parents) >= limit or bool(decided.broken),
    )


async def find_parents(tx: Tx, specs: Iterable[JobSpec]) -> dict[str, str]:
    """Return id → name of the jobs that `specs` wait for; ids of no job are missing."""
    ids = {d.parent for spec in specs for d in parse_all(spec.after)}
    if not ids:
        return {}
    return {row["id"]: row["name"] for row in await tx.rows("find_parents", ids=sorted(ids))}


def say_waits(spec: JobSpec, names: Mapping[str, str]) -> str:
    """Return the sentence that says for which jobs a new job or array waits."""
    return say_wait(parse_all(spec.after), names, spec.start_at is not None)


async def write_dependencies(
    tx: Tx, specs: Mapping[str, JobSpec], names: Mapping[str, str], now: datetime | None
) -> None:
    """Write the parents for which new jobs or arrays wait, by their ids, and decide at once where a
    parent has ended.

    Raises:
        ValidationError: a parent does not exist.
    """
    edges = [(child, d) for child, spec in specs.items() for d in parse_all(spec.after)]
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
    *_, found = await tx.many(
        ("await_jobs", {"ids": parents}),
        ("await_arrays", {"ids": parents}),
        ("insert_edges", rows),
        ("find_parents", {"ids": parents}),
    )
    ended = [row["id"] for row in found if row["ended"]]
    if ended:
        await settle_parents(tx, ended, len(edges) + 1000, now)
