"""What a cycle wants done, each with its sentence, and what it leaves on record."""

from datetime import datetime

import msgspec

from holdfast.core.fleet.faults import HostFault


class Promote(msgspec.Struct, frozen=True, kw_only=True, tag="promote"):
    """The host passed its checks: `active`."""

    host_id: str
    reason: str


class FailHost(msgspec.Struct, frozen=True, kw_only=True, tag="fail"):
    """The host is in error: no new work, no renewals (its leases lapse, which is the fence)."""

    host_id: str
    fault: HostFault
    reason: str


class WarnHost(msgspec.Struct, frozen=True, kw_only=True, tag="warn"):
    """Something is to be seen about the host, and nothing is done."""

    host_id: str
    reason: str


class DrainHost(msgspec.Struct, frozen=True, kw_only=True, tag="drain"):
    """The host gets no new work; what runs there has `grace_seconds`, then drains (scaled_down).

    The store does it only where the host is still as idle as `leases` says (SCALE-2).
    """

    host_id: str
    grace_seconds: float
    leases: int
    reason: str


class EndMachine(msgspec.Struct, frozen=True, kw_only=True, tag="end"):
    """The provider is asked to end the machine of the host."""

    host_id: str
    reason: str


class FreeHost(msgspec.Struct, frozen=True, kw_only=True, tag="free"):
    """The host is over: it becomes `terminated`, which loses the leases that are left on it.

    Only where their fence allows it: the machine is gone, or no lease is left.
    """

    host_id: str
    reason: str
    tasks: int


class Spawn(msgspec.Struct, frozen=True, kw_only=True, tag="spawn"):
    """`count` machines of one offer are made."""

    offer: str
    count: int
    reason: str


Action = Promote | FailHost | WarnHost | DrainHost | EndMachine | FreeHost | Spawn


class CycleActions(msgspec.Struct, frozen=True, kw_only=True):
    """How much of each kind a cycle did. The names are those of existing dashboards."""

    workers_promoted: int = 0
    workers_failed: int = 0
    workers_spawned: int = 0
    workers_terminated: int = 0
    tasks_reset: int = 0


class CycleStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The pool as the cycle found it, after its own decisions about health."""

    queued_tasks: int = 0
    spawning_workers: int = 0
    active_workers: int = 0
    terminating_workers: int = 0
    total_workers: int = 0


class CycleSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One run of the loop, as it is kept. reasons: a sentence for each action, and for each spawn
    that was wanted and not made. error: why it decided nothing."""

    timestamp: datetime
    pool: str
    actions: CycleActions = CycleActions()
    status: CycleStatus = CycleStatus()
    reasons: tuple[str, ...] = ()
    dry_run: bool = False
    error: str = ""


class PoolPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What a cycle decided for one pool, in the order in which it is carried out.

    blocked: why a wanted host is not spawned ("pool a100 at its $/day ceiling of $40.00"), for
    `why`; "" where nothing is held back.
    """

    pool: str
    actions: tuple[Action, ...]
    summary: CycleSummary
    blocked: str = ""
