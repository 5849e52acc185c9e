"""Waits for the end of a job, as a script that both clients run."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from holdfast.client.late import LateModule
from holdfast.client.rest import get, path_of
from holdfast.client.scripts import Script, Sleep, take_answer
from holdfast.core.states import JobState
from holdfast.errors import JobFailed

if TYPE_CHECKING:
    from holdfast.wire import api as wire
else:
    wire = LateModule("holdfast.wire.api")

_FIRST_PAUSE_SECONDS = 0.02
_LONGEST_PAUSE_SECONDS = 1.0


def wait_for_end(
    job_id: str, timeout_seconds: float | None, *, check: bool
) -> Script[wire.JobView]:
    """Ask for the job, ever more rarely, until it has ended; return it.

    Raises:
        JobFailed: the job failed or was cancelled, where `check` is True.
        TimeoutError: the job has not ended after `timeout_seconds`.
    """
    until = None if timeout_seconds is None else time.monotonic() + timeout_seconds
    pause = _FIRST_PAUSE_SECONDS
    while True:
        job = yield from take_answer(get(path_of("jobs", job_id), wire.JobView))
        if job.state.terminal:
            if check and job.state is not JobState.SUCCEEDED:
                raise JobFailed(f"job {job.id} ({job.name}) {job.state.value}: {job.reason}", job)
            return job
        left = pause if until is None else until - time.monotonic()
        if left <= 0:
            raise TimeoutError(
                f"job {job_id} is still {job.state.value} after {timeout_seconds:g} s"
            )
        yield Sleep(min(pause, left))
        pause = min(pause * 1.5, _LONGEST_PAUSE_SECONDS)
