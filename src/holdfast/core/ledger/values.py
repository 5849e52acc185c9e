"""The ledger's names, its sums and its losses.

Every millisecond of every GPU and CPU slot that a host offers has exactly one name, and the names
of a lease's milliseconds sum to the lease exactly.
"""

from datetime import datetime
from enum import StrEnum
from typing import Literal

import msgspec

Unit = Literal["gpu", "cpu"]
Step = Literal["minute", "hour", "day"]


class LedgerName(StrEnum):
    """The name of a second, in order of precedence: of two names that fit a second, it gets
    the first.

    unfit: its host was in quarantine or in error. draining: a task was being stopped, or its host
    takes no more work, or its rented machine is not gone yet. checkpointing: a save that blocked.
    stalled: the silence before a stall watchdog's trip. waiting: in a section `wait`, for other
    ranks. setting_up: a place was held, or image, code and environment were made ready. loading:
    from the start of the program to its first beat. idle: the task's GPUs did nothing although the
    job beats. lost: steps that a later attempt did again. kept: steps that no later attempt did
    again.

    unmeasured_busy, unmeasured_idle: a job that never beat ran, and its devices were used, or not;
    no goodput is claimed for either. starting: the host was rented, or known, and did not serve
    yet. unused: the host was ready, and no task held the device.
    """

    UNFIT = "unfit"
    DRAINING = "draining"
    CHECKPOINTING = "checkpointing"
    STALLED = "stalled"
    WAITING = "waiting"
    SETTING_UP = "setting_up"
    LOADING = "loading"
    IDLE = "idle"
    LOST = "lost"
    KEPT = "kept"
    UNMEASURED_BUSY = "unmeasured_busy"
    UNMEASURED_IDLE = "unmeasured_idle"
    STARTING = "starting"
    UNUSED = "unused"

    @property
    def measured(self) -> bool:
        """Return whether a second of this name counts in the measure of goodput: it was leased, and
        its job beats, or had not come so far."""
        return self not in _UNMEASURED


_UNMEASURED = frozenset(
    {LedgerName.UNMEASURED_BUSY, LedgerName.UNMEASURED_IDLE, LedgerName.STARTING, LedgerName.UNUSED}
)
WORKING = (LedgerName.KEPT, LedgerName.LOST)
"""The two names of the seconds in which a job moved forward."""
UNLEASED = (LedgerName.STARTING, LedgerName.UNUSED)
"""The names that only unleased seconds have. Unleased are also seconds named unfit or draining
whose subject has no job."""
LOSSES = (
    LedgerName.LOST,
    LedgerName.STALLED,
    LedgerName.CHECKPOINTING,
    LedgerName.WAITING,
    LedgerName.IDLE,
)
"""The names of what a job lost; only leased seconds have them."""


class LedgerSum(msgspec.Struct, frozen=True, kw_only=True):
    """Milliseconds × devices by name, for one value of each key that was asked for.

    key: one text for each field of `by`, in its order: a job's id, an owner, a project, a queue, a
    pool, a host's name, a label's value, or the start of a minute, hour or day in ISO format; ""
    where there is none, as the job of a second that no lease holds. ms: names that have none are
    missing. provisional: True while a job among them runs, so that names may still change.
    """

    key: tuple[str, ...]
    ms: dict[LedgerName, int]
    provisional: bool = False

    @property
    def total_ms(self) -> int:
        """Return the sum of all names."""
        return sum(self.ms.values())


class LedgerView(msgspec.Struct, frozen=True, kw_only=True):
    """The ledger's sums of the span that was counted, in whole minutes. by: the fields of each sum's
    key. The ledger is written to a minute or two ago."""

    since: datetime
    until: datetime
    unit: Unit
    by: tuple[str, ...] = ()
    sums: list[LedgerSum] = []


class LostBy(msgspec.Struct, frozen=True, kw_only=True):
    """The time that one cause of ends cost a job.

    cause: the cause of the attempts' ends. ends: how many ends of this cause lost work. lost_ms:
    milliseconds × devices of the steps that were done again after them.
    """

    cause: str
    ends: int
    lost_ms: int


class JobLosses(msgspec.Struct, frozen=True, kw_only=True):
    """The time that one job lost, and how often the job saved.

    lost: one for each cause, the largest first. stalled_ms, checkpointing_ms: milliseconds ×
    devices. save_seconds: the mean time between two saved checkpoints of an attempt; None where
    fewer than two were saved. devices: GPUs of the whole job, or its CPU slots where it has none.
    """

    job_id: str
    job_name: str
    project: str
    owner: str
    queue: str
    devices: int
    lost: list[LostBy] = []
    stalled_ms: int = 0
    checkpointing_ms: int = 0
    waiting_ms: int = 0
    idle_ms: int = 0
    save_seconds: float | None = None


FIELDS = ("job", "owner", "project", "queue", "pool", "host", "time")
"""By what the ledger is summed, beside the labels of jobs (`label:KEY`)."""
LABEL = "label:"
