"""The records of jobs that come in series, as they are kept and shown."""

from datetime import datetime

from holdfast.core.records import Record
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
