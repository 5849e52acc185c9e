"""Waits for the ends of jobs, arrays and runs of workflows, as scripts that both clients run."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar

from holdfast.client.late import LateModule
from holdfast.client.rest import RestCall, ask
from holdfast.client.scripts import Script, Sleep, take_answer
from holdfast.core.states import JobState
from holdfast.errors import JobFailed

if TYPE_CHECKING:
    from holdfast.core.workflows.values import RunState
    from holdfast.wire import api as wire
    from holdfast.wire.operations.work import jobs as on_jobs
else:
    wire = LateModule("holdfast.wire.api")
    on_jobs = LateModule("holdfast.wire.operations.work.jobs")

_FIRST_PAUSE_SECONDS = 0.02
_LONGEST_PAUSE_SECONDS = 1.0
_PAUSE_OF_EACH_SECONDS = 0.02  # so that a thousand jobs are asked for fifty times a second


class Work(Protocol):
    """Work that ends: a job, an array or a run of a workflow."""

    @property
    def id(self) -> str:
        """Return the id of the work."""

    @property
    def state(self) -> JobState | RunState:
        """Return the state of the work; a terminal state is the end of it."""


W = TypeVar("W", bound=Work)


def wait_for_ends(
    calls: Sequence[RestCall[W]],
    timeout_seconds: float | None,
    *,
    first: bool = False,
    tell: Callable[[Sequence[W]], None] = lambda found: None,
) -> Script[list[W]]:
    """Ask for each work, ever more rarely, until all have ended, and return them in their order.

    first: True to stop as soon as one has ended. tell: called with the works as they are now, after
    each round.

    Raises:
        TimeoutError: the ends have not come after `timeout_seconds`.
    """
    until = None if timeout_seconds is None else time.monotonic() + timeout_seconds
    pause, found = _FIRST_PAUSE_SECONDS, dict[int, W]()
    while True:
        for place, call in enumerate(calls):
            if place not in found or not found[place].state.terminal:
                found[place] = yield from take_answer(call)
        works = [found[place] for place in range(len(calls))]
        tell(works)
        open_ = [work for work in works if not work.state.terminal]
        if not open_ or (first and len(open_) < len(works)):
            return works
        left = pause if until is None else until - time.monotonic()
        if left <= 0:
            states = ", ".join(f"{work.id} is still {work.state.value}" for work in open_[:3])
            more = f", and {len(open_) - 3} more" if len(open_) > 3 else ""
            raise TimeoutError(f"after {timeout_seconds:g} s {states}{more}")
        yield Sleep(min(pause, left))
        longest = max(_LONGEST_PAUSE_SECONDS, _PAUSE_OF_EACH_SECONDS * len(open_))
        pause = min(pause * 1.5, longest)


def wait_for_jobs(
    job_ids: Sequence[str], timeout_seconds: float | None, *, first: bool, check: bool
) -> Script[list[wire.JobView]]:
    """Wait for jobs as `wait_for_ends` does.

    Raises:
        JobFailed: one of those that ended failed or was cancelled, where `check` is True.
        TimeoutError: the ends have not come after `timeout_seconds`.
    """
    calls = [ask(on_jobs.GET_JOB, job_id) for job_id in job_ids]
    jobs = yield from wait_for_ends(calls, timeout_seconds, first=first)
    for job in jobs:
        if check and job.state.terminal and job.state is not JobState.SUCCEEDED:
            raise JobFailed(f"job {job.id} ({job.name}) {job.state.value}: {job.reason}", job)
    return jobs


def wait_for_end(
    job_id: str, timeout_seconds: float | None, *, check: bool
) -> Script[wire.JobView]:
    """Wait for one job as `wait_for_jobs` does, and return it."""
    (job,) = yield from wait_for_jobs([job_id], timeout_seconds, first=False, check=check)
    return job
