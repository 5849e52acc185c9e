"""Jobs that wait for other jobs, in memory."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from datetime import datetime

from holdfast.core.arrays.arrays import find_state
from holdfast.core.causes import Cause
from holdfast.core.dependencies import ParentEnd, parse_all, say_wait
from holdfast.core.records import WaitRecord
from holdfast.core.spec import JobSpec
from holdfast.core.states import JobState
from holdfast.moves import dependencies
from holdfast.moves.dependencies import Edge
from holdfast.moves.values import Advanced
from holdfast.store.memory.state import InMemory, MemoryArray, MemoryState
from holdfast.store.port.clock import Now


class MemoryDependencies(InMemory):
    """`DependencyStore` in memory."""

    async def settle_dependencies(self, limit: int = 1000, *, now: Now = None) -> Advanced:
        return settle(self.state, self.state.at(now), limit)

    async def list_waits(
        self, job_ids: Collection[str], *, first: int
    ) -> dict[str, list[WaitRecord]]:
        found: dict[str, list[WaitRecord]] = {}
        for child, parent in sorted(self.state.edges):
            name, state = describe_parent(self.state, parent)
            for job_id in job_ids:
                row = self.state.jobs[job_id].row if job_id in self.state.jobs else None
                mine = child == job_id or (row is not None and child == row.array_id)
                if mine and len(found.get(job_id, ())) < first:
                    wants = self.state.edges[child, parent]
                    wait = WaitRecord(parent=parent, wants=wants, name=name, state=state)
                    found.setdefault(job_id, []).append(wait)
        return found


def settle(
    s: MemoryState, at: datetime, limit: int, parents: Collection[str] | None = None
) -> Advanced:
    """Release or cancel the dependants of jobs that have ended: of all, or of `parents`."""
    edges, ends = [], {}
    for (child, parent), wants in s.edges.items():
        name, state = describe_parent(s, parent)
        if state.terminal and (parents is None or parent in parents):
            edges.append(Edge(child=child, parent=parent, wants=wants, name=name))
            ends[parent] = ParentEnd(name, state)
    edges = sorted(edges, key=lambda e: (e.parent, e.child))[:limit]
    held = {a.id for a in s.arrays.values() if a.held and a.cancel_reason is None}
    m = s.load([e.child for e in edges], at)
    decided = dependencies.decide_edges(m, edges, ends, held)
    for edge in decided.gone:
        del s.edges[edge.child, edge.parent]
    broken = dict(decided.broken)
    s.edges = {edge: wants for edge, wants in s.edges.items() if edge[0] not in broken}
    free = [child for child in decided.met if all(own != child for own, _ in s.edges)]
    for child in free:
        if child in m.jobs:
            dependencies.release_waiting(m, m.jobs[child], dependencies.MET)
        else:
            s.arrays[child].held = ""
    for child in held & broken.keys():
        array = s.arrays[child]
        array.held, array.cancel_reason = "", broken[child]
        array.cancel_cause = Cause.DEPENDENCY
    s.commit(m)
    left = len(edges) >= limit or bool(broken)
    return Advanced(released=len(free), cancelled=len(broken), left=left)


def describe_parent(s: MemoryState, parent: str) -> tuple[str, JobState]:
    """Return the name and the state of a job or an array."""
    if parent in s.jobs:
        return s.jobs[parent].name, s.jobs[parent].row.state
    array = s.arrays[parent]
    return array.spec.title, find_state(count_members(s, array))


def count_members(s: MemoryState, array: MemoryArray) -> dict[str, int]:
    """Return state → count of an array's members."""
    states = (s.jobs[job_id].row.state for job_id in array.member_ids if job_id in s.jobs)
    return dict(Counter(str(state) for state in states))


def find_parents(s: MemoryState, specs: Iterable[JobSpec]) -> dict[str, str]:
    """Return id → name of the jobs that `specs` wait for. Raises ValidationError for unknown
    ids."""
    ids = {d.parent for spec in specs for d in parse_all(spec.after)}
    unknown = ids - s.jobs.keys() - s.arrays.keys()
    if unknown:
        raise dependencies.refuse_parents(unknown)
    return {parent: describe_parent(s, parent)[0] for parent in ids}


def say_waits(spec: JobSpec, names: Mapping[str, str]) -> str:
    """Return the sentence of a new job or array that waits for others."""
    return say_wait(parse_all(spec.after), names, spec.start_at is not None)


def write_dependencies(s: MemoryState, specs: Mapping[str, JobSpec], at: datetime) -> None:
    """Write the parents for which new jobs or arrays wait, by their ids, and decide at once where a
    parent has ended."""
    edges = [(child, one) for child, spec in specs.items() for one in parse_all(spec.after)]
    s.edges |= {(child, one.parent): one.wants for child, one in edges}
    settle(s, at, len(edges) + 1000, {one.parent for _, one in edges})
