"""The records of the fleet: pools and instances as they are kept and shown, and the whole fleet in a few rows."""

from datetime import datetime

from holdfast.core.fleet.pools import PoolSpec
from holdfast.core.records import Record
from holdfast.core.states import HostState, InstanceState


class PoolRecord(Record, frozen=True, kw_only=True):
    """A pool as it is kept.

    paused_at: the time since which it neither spawns nor shrinks. deleted_at: the time since which
    it spawns nothing; it is forgotten once its last machine is gone. blocked: why the last cycle
    did not spawn a host that is needed. cycled_at: the time of the last cycle. quiet_until,
    quiet_reason: the time until which its provider asks for no more requests, and the provider's
    message.
    """

    name: str
    spec: PoolSpec
    paused_at: datetime | None = None
    paused_reason: str = ""
    deleted_at: datetime | None = None
    blocked: str = ""
    cycled_at: datetime | None = None
    quiet_until: datetime | None = None
    quiet_reason: str = ""
    created_at: datetime


class InstanceRecord(Record, frozen=True, kw_only=True):
    """The rental of one machine. host_id: the intent. ref: the provider's id of the machine.

    intended_at, asked_at, made_at, gone_at: the times of its states. seen_at: the last listing that
    showed it, exact to ten minutes while all is well. missing_since, missing_times: the time since
    which, and the number of listings in a row in which, it has been missing. end_asked_at: the last
    request to the provider to end it. fault: why its host is in error. said: the provider's last
    message about a machine that starts. heartbeat_at: its agent's last call, None before the first.
    """

    host_id: str
    name: str
    pool: str
    offer: str
    usd_per_hour: float
    state: InstanceState
    host_state: HostState
    ref: str | None = None
    reason: str = ""
    fault: str = ""
    said: str = ""
    intended_at: datetime
    asked_at: datetime | None = None
    made_at: datetime | None = None
    end_asked_at: datetime | None = None
    gone_at: datetime | None = None
    seen_at: datetime | None = None
    missing_since: datetime | None = None
    missing_times: int = 0
    heartbeat_at: datetime | None = None


class PoolMoney(Record, frozen=True, kw_only=True):
    """The cost of a pool. spent_today_usd: cost since midnight UTC; usd_per_hour: present cost."""

    pool: str
    usd_per_hour: float = 0.0
    spent_today_usd: float = 0.0


class FleetStatus(Record, frozen=True, kw_only=True):
    """The whole fleet in one row. health: "ok", "waiting" (work, and no host for it) or "degraded"
    (a host is in error or dead)."""

    queued: int
    spawning: int
    active: int
    terminating: int
    total: int
    health: str


class HostCount(Record, frozen=True, kw_only=True):
    """The hosts of one state. dead: whether they are flagged dead. Slots and GPUs are those of all
    these hosts, busy those under live leases."""

    state: HostState
    dead: bool
    hosts: int
    cpu_slots: int
    busy_cpu_slots: int
    gpus: int
    busy_gpus: int

    @property
    def unfit(self) -> bool:
        """Return whether nothing runs well on these hosts until a person acts."""
        return self.dead or self.state in (HostState.QUARANTINED, HostState.ERROR)


class HostHealth(Record, frozen=True, kw_only=True):
    """An active host. Ages in seconds, memory in bytes over all its GPUs.

    verdict: "ok", "stale telemetry", "silent" or "dead".
    """

    host: str
    heartbeat_age: float
    task: str | None = None
    vram_used: int | None = None
    vram_total: int | None = None
    vram_age: float | None = None
    verdict: str


class HostPerformance(Record, frozen=True, kw_only=True):
    """The work of a host: attempts on record, and calls of functions. mean_seconds: mean duration
    of one of them. uptime: seconds."""

    host: str
    done: int
    failed: int
    success_rate: float | None = None
    mean_seconds: float | None = None
    uptime: float
