"""Records of the whole fleet in a few rows: its health, and the hosts by state, health and work."""

from __future__ import annotations

from holdfast.core.records import Record
from holdfast.core.states import HostState


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
