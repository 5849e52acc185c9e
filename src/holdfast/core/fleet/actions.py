"""The actions of a cycle, each with its reason as a sentence, and the summary it leaves on
record."""

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
    """A warning about the host for people to see; nothing else is done."""

    host_id: str
    reason: str


class DrainHost(msgspec.Struct, frozen=True, kw_only=True, tag="drain"):
    """The host gets no new work; tasks that run there are stopped after `grace_seconds`, with the
    cause `scaled_down`.

    leases: the number of leases on the host that the decision saw. The store applies it only while
    that number has not grown (SCALE-2).
    """

    host_id: str
    grace_seconds: float
    leases: int
    reason: str


class EndMachine(msgspec.Struct, frozen=True, kw_only=True, tag="end"):
    """A request to the provider to end the host's machine."""

    host_id: str
    reason: str


class FreeHost(msgspec.Struct, frozen=True, kw_only=True, tag="free"):
    """The host becomes `terminated`, which ends the leases that are left on it. tasks: their
    number.

    Decided only where the machine is gone or no lease is left, so that no task runs twice.
    """

    host_id: str
    reason: str
    tasks: int


class Spawn(msgspec.Struct, frozen=True, kw_only=True, tag="spawn"):
    """A request to the provider for `count` machines of one offer."""

    offer: str
    count: int
    reason: str


Action = Promote | FailHost | WarnHost | DrainHost | EndMachine | FreeHost | Spawn


class CycleActions(msgspec.Struct, frozen=True, kw_only=True):
    """The number of actions of each kind in a cycle."""

    hosts_promoted: int = 0
    hosts_failed: int = 0
    hosts_rented: int = 0
    hosts_ended: int = 0
    tasks_reset: int = 0


class CycleStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The pool as the cycle found it, after its own decisions about health."""

    queued_tasks: int = 0
    spawning_hosts: int = 0
    active_hosts: int = 0
    terminating_hosts: int = 0
    total_hosts: int = 0


class CycleSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The record of one cycle. reasons: a sentence for each action, and for each spawn that was
    needed and not made. error: why the cycle decided nothing, empty where it did decide."""

    timestamp: datetime
    pool: str
    actions: CycleActions = CycleActions()
    status: CycleStatus = CycleStatus()
    reasons: tuple[str, ...] = ()
    dry_run: bool = False
    error: str = ""


class PoolPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The decisions of a cycle for one pool. actions: in the order in which they are carried out.

    blocked: why a host that is needed is not spawned ("pool a100 at its $/day ceiling of $40.00"),
    which `why` shows; "" where nothing is held back.
    """

    pool: str
    actions: tuple[Action, ...]
    summary: CycleSummary
    blocked: str = ""
