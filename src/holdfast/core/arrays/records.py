"""The records of jobs that come in series, as they are kept and shown."""

from datetime import datetime

from holdfast.core.arrays.schedules import Outcome, ScheduleSpec
from holdfast.core.records import Record
from holdfast.core.spec import JobSpec
from holdfast.core.states import JobState


class ArrayRecord(Record, frozen=True, kw_only=True):
    """An array, as one line of state.

    spec: the job as it was submitted; each member's own spec adds its variables and parameters.
    indices: the members' indices, as `0-9,12`. size: number of members. at_once: number of members
    that may run at once, null without a limit. counts: number of members by state. active: number
    of members that count against `at_once` (ARRAY-1). failed: the first indices whose members
    failed. reason: the array's progress, as a sentence.
    """

    id: str
    name: str
    project: str
    queue: str
    owner: str = ""
    state: JobState
    reason: str
    spec: JobSpec
    indices: str
    size: int
    at_once: int | None = None
    counts: dict[str, int]
    active: int = 0
    failed: str = ""
    created_at: datetime


class ScheduleRecord(Record, frozen=True, kw_only=True):
    """A schedule, and its newest run.

    id: a new one whenever a schedule of this name is created. anchor: the time from which intervals
    are counted. next_at: the time of its next run; a paused schedule skips it. last_at,
    last_outcome, last_reason: the time and result of the newest run. last_job_id, last_state: the
    newest job that a run submitted, and that job's state.
    """

    id: str
    name: str
    spec: ScheduleSpec
    project: str
    queue: str
    owner: str = ""
    anchor: datetime
    next_at: datetime
    paused_at: datetime | None = None
    paused_reason: str = ""
    last_at: datetime | None = None
    last_outcome: Outcome | None = None
    last_reason: str = ""
    last_job_id: str | None = None
    last_state: JobState | None = None
    created_at: datetime

    @property
    def is_busy(self) -> bool:
        """Return whether the newest job of the schedule has not ended."""
        return self.last_state is not None and not self.last_state.terminal


class ScheduleRunRecord(Record, frozen=True, kw_only=True):
    """The result of one run of a schedule. due_at: the time it was planned for; at: the time it was
    handled. job_id: the job that it submitted, if any."""

    due_at: datetime
    at: datetime
    outcome: Outcome
    reason: str = ""
    job_id: str | None = None
