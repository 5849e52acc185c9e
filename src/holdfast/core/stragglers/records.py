"""Records of suspects."""

from datetime import datetime
from typing import Literal

from holdfast.core.records import Record

SuspectKind = Literal["slow", "slowed", "corrupt", "still"]
"""slow: a rank by itself; slowed: the gang as a whole; corrupt: a rank computed wrongly; still: the
work stands beside idle hardware."""
Act = Literal["", "blame", "replace", "restart"]
"""The act about a suspect, besides telling of it."""


class SuspectRecord(Record, frozen=True, kw_only=True):
    """The evidence about one rank of an attempt, or about the whole gang (`rank` is None then). A
    record of kind "still" may also be about a job of one task.

    step: the step at which it was found. message: the sentence. evidence: the figures. ended_at: when
    the rank kept up, or its work moved, again.
    """

    job_id: str
    attempt: int
    rank: int | None
    kind: SuspectKind
    host: str | None
    at: datetime
    step: int
    message: str
    evidence: dict[str, str | int | float | bool | None]
    act: Act = ""
    ended_at: datetime | None = None
