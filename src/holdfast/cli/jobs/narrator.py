"""The notices of `run`: a job's changes of state, and why it has not started."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING

from holdfast.cli.command_io import CommandIO
from holdfast.cli.output import note
from holdfast.core.causes import CHARGED_TO, Budget, Cause
from holdfast.errors import HoldfastError

if TYPE_CHECKING:
    from holdfast.core.records import JobRecord

# A job that has not started by then gets a notice with the reason.
WAIT_NOTICE_SECONDS = 1.5


class Narrator:
    """Prints the job's changes of state on stderr, between the lines of its output."""

    def __init__(self, io: CommandIO, job: JobRecord) -> None:
        self._io = io
        self._attempt = self._requeued = 0
        self._state = ""
        self._limits_said = False
        self._job_id = job.id
        self._timer = threading.Timer(WAIT_NOTICE_SECONDS, self._say_why)
        self._timer.daemon = True

    def __enter__(self) -> Narrator:
        self._timer.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._timer.cancel()

    def started(self) -> None:
        """Note that the job runs, because output came."""
        self._timer.cancel()

    def print_change(self, job: JobRecord) -> None:
        """Compare the job's state with the last one, and print a notice if it has changed."""
        state = job.state.value
        if state not in ("waiting", "queued"):
            self._timer.cancel()
        if (state, job.attempts) == (self._state, self._attempt):
            return
        self._state, self._attempt = state, job.attempts
        self._tell_requeues(
            job, job.attempts if state in ("waiting", "queued") else job.attempts - 1
        )
        if state == "running" and job.attempts > 1:
            note(f"attempt {job.attempts} is running")
        if state == "running" and job.memory_bytes and not self._limits_said:
            self._limits_said = True
            threading.Thread(target=self._say_memory_limits, daemon=True).start()
        elif state == "draining" and not _ended_by_itself(job):
            note(f"attempt {job.attempts} is being stopped: {job.drain_reason or job.reason}")

    def _tell_requeues(self, job: JobRecord, last: int) -> None:
        """Tell of each requeue up to that after the attempt `last`, also of those that were over
        before anything was heard of them."""
        if last <= self._requeued:
            return
        reasons = {job.attempts: job.reason}
        with contextlib.suppress(HoldfastError), self._io.client() as client:
            reasons |= {attempt.number: attempt.reason for attempt in client.attempts(job.id)}
        for number in range(self._requeued + 1, last + 1):
            note(f"requeued after attempt {number}: {reasons.get(number, 'it is not on record')}")
        self._requeued = last

    def _say_why(self) -> None:
        with contextlib.suppress(HoldfastError), self._io.client() as client:
            reasons = client.why(self._job_id)
            if reasons.state in ("waiting", "queued"):
                first = reasons.lines[0].message if reasons.lines else reasons.summary
                note(f"{self._job_id} is {reasons.state}: {first}")

    def _say_memory_limits(self) -> None:
        """Say that no kernel keeps the memory limit of the job, if that is so, because a watch may
        notice an excess late."""
        with contextlib.suppress(HoldfastError), self._io.client() as client:
            attempts = client.attempts(self._job_id)
            ids = set(attempts[-1].host_ids) if attempts else set()
            watched = [h.name for h in client.hosts() if h.id in ids and h.memory_limits == "watch"]
            if watched:
                note(
                    f"--memory is kept by the agent's watch on {', '.join(watched[:3])}, which looks "
                    "every second, because no memory control group can be made there"
                )


def _ended_by_itself(job: JobRecord) -> bool:
    """Say whether the drain follows a failure of the job's own, which its end reports anyway, or
    a start that failed, after which nothing runs that could be stopped."""
    cause = job.drain_cause
    return cause is not None and (
        CHARGED_TO[cause] is Budget.RETRIES or cause is Cause.VALIDATION_ERROR
    )
