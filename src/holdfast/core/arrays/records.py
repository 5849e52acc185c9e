"""The records of jobs that come in series, as they are kept and shown."""

from datetime import datetime

from holdfast.core.records import Record
from holdfast.core.schedules import Outcome, ScheduleSpec
from holdfast.core.spec import JobSpec
from holdfast.core.states import JobState


class ArrayRecord(Record, frozen=True, kw_only=True):
    """An array, as one line of state.

    spec: as it was submitted; each member's own has its variables and parameters. indices: those of
    its members. at_once: how many may run at once, or null. counts: members by state. active: how
    many count against `at_once` (ARRAY-1). failed: the first indices that failed. reason: where it
    is, in a sentence.
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
    """A schedule, and its newest run. id: made anew with the schedule. anchor: what intervals are
    counted from. next_at: its next time; while it is paused, none comes. last_at, last_outcome,
    last_reason: of its newest run; last_job_id, last_state: of the newest job, which may be older.
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
        """Whether the job of its newest run has not ended."""
        return self.last_state is not None and not self.last_state.terminal


class ScheduleRunRecord(Record, frozen=True, kw_only=True):
    """What became of one time of a schedule. job_id: of one that was submitted."""

    due_at: datetime
    at: datetime
    outcome: Outcome
    reason: str = ""
    job_id: str | None = None
