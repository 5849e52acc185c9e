"""What jobs wait for, in memory."""

from collections.abc import Collection, Sequence
from datetime import datetime

from holdfast.core.records import WaitRecord
from holdfast.core.series.dependencies import ParentEnd, parse_all
from holdfast.moves.series import dependencies
from holdfast.moves.series.dependencies import Edge
from holdfast.moves.values import NewJob, Settled
from holdfast.store.memory.state import InMemory, MemoryState
from holdfast.store.port.clock import Now


class MemoryDependencies(InMemory):
    """`DependencyStore` in memory."""

    async def settle_dependencies(self, limit: int = 1000, *, now: Now = None) -> Settled:
        return settle(self.state, self.state.at(now), limit)

    async def list_waits(
        self, job_ids: Collection[str], *, first: int
    ) -> dict[str, list[WaitRecord]]:
        found: dict[str, list[WaitRecord]] = {}
        for child, parent in sorted(self.state.edges):
            job = self.state.jobs[parent]
            if child in job_ids and len(found.get(child, ())) < first:
                found.setdefault(child, []).append(
                    WaitRecord(
                        parent=parent,
                        wants=self.state.edges[child, parent],
                        name=job.name,
                        state=job.row.state,
                        reason=job.row.reason,
                    )
                )
        return found


def settle(
    s: MemoryState, at: datetime, limit: int, parents: Collection[str] | None = None
) -> Settled:
    """Decide what becomes of the dependants of jobs that have ended: of all, or of `parents`."""
    edges = [
        Edge(child=child, parent=parent, wants=wants, name=s.jobs[parent].name)
        for (child, parent), wants in s.edges.items()
        if s.jobs[parent].row.state.terminal and (parents is None or parent in parents)
    ]
    edges = sorted(edges, key=lambda e: (e.parent, e.child))[:limit]
    ends = {e.parent: ParentEnd(e.name, s.jobs[e.parent].row.state) for e in edges}
    m = s.load([e.child for e in edges], at)
    decided = dependencies.decide_edges(m, edges, ends)
    for edge in decided.gone:
        del s.edges[edge.child, edge.parent]
    s.edges = {edge: wants for edge, wants in s.edges.items() if edge[0] not in decided.broken}
    free = [child for child in decided.met if all(own != child for own, _ in s.edges)]
    for child in free:
        dependencies.release_waiting(m, m.jobs[child], dependencies.MET)
    s.commit(m)
    left = len(edges) >= limit or bool(decided.broken)
    return Settled(released=len(free), cancelled=len(decided.broken), left=left)


def find_parents(s: MemoryState, jobs: Sequence[NewJob]) -> dict[str, str]:
    """Return the names of the jobs that `jobs` wait for. Raises ValidationError for unknown ones."""
    ids = {d.parent for job in jobs for d in parse_all(job.spec.after)}
    unknown = ids - s.jobs.keys()
    if unknown:
        raise dependencies.refuse_parents(unknown)
    return {parent: s.jobs[parent].name for parent in ids}


def write_dependencies(s: MemoryState, jobs: Sequence[NewJob], at: datetime) -> None:
    """Write what new jobs wait for, and decide at once where a parent has ended."""
    edges = [(job.id, one) for job in jobs for one in parse_all(job.spec.after)]
    s.edges |= {(child, one.parent): one.wants for child, one in edges}
    settle(s, at, len(edges) + 1000, {one.parent for _, one in edges})
