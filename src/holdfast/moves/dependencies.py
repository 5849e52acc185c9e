"""Jobs that wait for other jobs: released when all have ended as they want, or cancelled (AFTER-1).

A job that a person cancelled or retried meanwhile waits no more; the rest of its edges is deleted
when its parents end.
"""

from collections.abc import Container, Iterable, Mapping, Sequence

import msgspec

from holdfast.core.causes import Cause
from holdfast.core.dependencies import ParentEnd, Wants, is_met, say_broken
from holdfast.core.states import JobState
from holdfast.errors import ValidationError
from holdfast.moves.jobs.moves import Moves, cancel_idle, leave_waiting
from holdfast.moves.rows import DEPENDENCY, START_TIME, JobRow

MET = "all that it waited for has ended as it wants"


class Edge(msgspec.Struct, frozen=True, order=True, kw_only=True):
    """One job's wait for the end of another. name: the parent's name."""

    child: str
    parent: str
    wants: Wants
    name: str = ""


class Decided(msgspec.Struct):
    """The decisions on some edges.

    gone: edges to delete. broken: (child, reason) of children that can no longer start; jobs among
    them are cancelled, and all their edges are deleted. met: children that may start now, if they
    wait for no other parent.
    """

    gone: list[Edge] = []
    broken: list[tuple[str, str]] = []
    met: list[str] = []


def refuse_parents(unknown: Iterable[str]) -> ValidationError:
    """Return the error for parents that do not exist."""
    names = ", ".join(sorted(unknown)[:5])
    text = f"after: there is no job {names}; `holdfast jobs` lists those that there are"
    return ValidationError(text, code="unknown_job", field="after")


def waits_for_parents(job: JobRow) -> bool:
    """Return whether the job still waits for others, and not, say, for a retry."""
    return job.state is JobState.WAITING and job.wait_cause == DEPENDENCY


def decide_edges(
    m: Moves, edges: Sequence[Edge], ends: Mapping[str, ParentEnd], held: Container[str]
) -> Decided:
    """Decide on edges whose parents ended, and cancel the jobs that can no longer start.

    edges: edges to parents in `ends` only; their children are loaded jobs, arrays, or deleted ones.
    held: ids of arrays that still wait.
    """
    found, by_child = Decided(), dict[str, list[Edge]]()
    for edge in edges:
        by_child.setdefault(edge.child, []).append(edge)
    for child, own in by_child.items():
        job = m.jobs.get(child)
        if child not in held and (job is None or not waits_for_parents(job)):
            found.gone += own
            continue
        broken = [e for e in own if not is_met(e.wants, ends[e.parent].state)]
        if broken:
            first = broken[0]
            reason = say_broken(first.parent, first.wants, ends[first.parent])
            if job is not None:
                cancel_waiting(m, job, reason)
            found.broken.append((child, reason))
        else:
            found.gone += own
            found.met.append(child)
    return found


def cancel_waiting(m: Moves, job: JobRow, reason: str) -> None:
    """Cancel a waiting job, because a parent ended otherwise than the job needs."""
    cancel_idle(m, job, Cause.DEPENDENCY, reason)


def release_waiting(m: Moves, job: JobRow, reason: str) -> None:
    """Queue a job that need not wait any more; one whose start time is yet to come waits for that."""
    if job.wait_until is not None and job.wait_until > m.now:
        job.wait_cause = START_TIME
        m.touch(job, f"{reason}; it waits for its start time")
        return
    leave_waiting(m, job, reason)
    m.log("job.released", job, reason)
