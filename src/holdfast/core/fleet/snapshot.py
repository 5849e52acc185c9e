"""The fleet as one consistent read of the store shows it. Every age is counted at that read.

FLEET-READ  A snapshot is whole or there is none: what cannot be read is unknown, never zero, and a
            cycle without a snapshot decides nothing.
"""

import math
from collections import Counter
from collections.abc import Collection, Mapping
from datetime import datetime
from functools import cached_property
from operator import attrgetter

import msgspec

from holdfast.core.fleet.instances import MachineState
from holdfast.core.fleet.pools import PoolSpec
from holdfast.core.placement.types import QuotaLeft
from holdfast.core.states import HostState, InstanceState


class FleetHost(msgspec.Struct, frozen=True, kw_only=True):
    """A host of a pool with the machine under it.

    ref: the provider's id of the machine, once known. Ages in seconds, at the time of the snapshot:
    state_seconds: time in its present state. intent_seconds: time since its intent was written.
    asked_seconds: time since the provider was asked for it, None before. seen_seconds: time since
    the last recorded listing that showed it. missing_seconds: time since the first listing without
    it. heartbeat_seconds: time since its agent's last call, None before the first.
    idle_seconds: time since its last lease ended, or since it became active; None while it has one.
    telemetry_seconds: age of its oldest GPU reading; None without GPUs or readings.
    outputs_seconds: time since the end of the first attempt whose outputs it has still to send; None
    where there are none.

    misses: number of whole listings in a row without it. leases: number of tasks whose end is not
    confirmed. aside: the host reports that it can start nothing (ASIDE-1). passed_over: admission
    gives it no work now (`pass_over`). stuck: a sentence about a task there that neither beats nor
    moves and has outlived its watchdogs by `stuck_timeout_seconds`; None without one.
    preflight: "pending", "ok", "warn" or "fail"; preflight_reason: the sentence for it.
    draining_for_scale: it drains because the pool shrinks, not because an operator ordered it.
    machine: the machine's state in the last listing, for hosts that have not called yet; None: not
    listed. gone: why the machine is believed gone (`leaks.read_listing`), else "". said: the
    provider's last message about a machine that starts, or "". reason: why the host is in error, or
    "". lost: why the provider takes the machine away (`Machine.lost`), or "".
    """

    host_id: str
    name: str
    state: HostState
    instance: InstanceState
    offer: str
    usd_per_hour: float = 0.0
    ref: str | None = None
    state_seconds: float = 0.0
    intent_seconds: float = 0.0
    asked_seconds: float | None = None
    seen_seconds: float | None = None
    misses: int = 0
    missing_seconds: float = 0.0
    heartbeat_seconds: float | None = None
    idle_seconds: float | None = None
    leases: int = 0
    aside: bool = False
    passed_over: bool = False
    stuck: str | None = None
    telemetry_seconds: float | None = None
    outputs_seconds: float | None = None
    preflight: str = "pending"
    preflight_reason: str = ""
    draining_for_scale: bool = False
    machine: MachineState | None = None
    gone: str = ""
    said: str = ""
    reason: str = ""
    lost: str = ""

    @property
    def is_starting(self) -> bool:
        """Return whether the host is on its way to serve."""
        coming = self.state in (HostState.SPAWNING, HostState.PREFLIGHT)
        return coming and self.instance in _LIVE

    @property
    def is_serving(self) -> bool:
        """Return whether admission gives the host work now."""
        return self.state is HostState.ACTIVE and not self.passed_over

    @property
    def is_idle(self) -> bool:
        """Return whether the host is active and runs nothing."""
        return self.state is HostState.ACTIVE and not self.leases

    def sends_outputs(self, grace_seconds: float) -> bool:
        """Return whether the host is kept because it has outputs to send, and the longest time for
        that is not over."""
        return self.outputs_seconds is not None and self.outputs_seconds < grace_seconds

    @property
    def is_over(self) -> bool:
        """Return whether the host never serves again."""
        return self.state in (HostState.ERROR, HostState.TERMINATED)

    @property
    def is_lost(self) -> bool:
        """Return whether the work on the host will have to run elsewhere, once its leases have
        ended."""
        return self.leases > 0 and (self.state is HostState.ERROR or self.passed_over)

    @property
    def is_paid(self) -> bool:
        """Return whether the host's machine may be charged for."""
        return self.instance is not InstanceState.GONE


_SHAPE = attrgetter("state", "instance", "offer", "usd_per_hour", "leases", "passed_over")
_LIVE = (InstanceState.INTENDED, InstanceState.ASKED, InstanceState.MADE)


class Waiting(msgspec.Struct, frozen=True, kw_only=True):
    """Queued jobs of one shape. jobs: their number. tasks: number of ranks of each; the resources
    are those of one task. project: "" for members of running jobs, which no quota holds back.
    oldest_seconds, newest_seconds: how long the oldest and the newest of them have waited."""

    queue: str
    project: str = ""
    jobs: int
    tasks: int = 1
    gpus: int = 0
    cpu_slots: int = 0
    memory_bytes: int = 0
    host_labels: Mapping[str, str] = {}
    oldest_seconds: float = 0.0
    newest_seconds: float = 0.0


class SpawnOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """The end of one spawn within the breaker's window, `age_seconds` ago. fault: "" for a host
    that served. reason: the message that came with the fault."""

    age_seconds: float
    offer: str
    fault: str = ""
    reason: str = ""


class OfferTrouble(msgspec.Struct, frozen=True, kw_only=True):
    """Refusals of an offer in a row. age_seconds: time since the last one, from which the back-off
    counts."""

    refusals: int
    age_seconds: float
    reason: str = ""


class PoolView(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """One pool with its hosts (ended ones left out), its spending and its recent spawns.

    paused: an operator's reason, None while the pool is not paused. A paused pool neither spawns
    nor shrinks, but its hosts' health is still watched.
    spent_today_usd: cost since midnight UTC, running hosts included.
    unheard: why its provider could not list its machines, "" where it answered.
    quiet_seconds, quiet_reason: how long the provider asks for no more requests, and its message.
    outcomes: spawns that ended within the breaker's window, newest first. trouble: refusals by
    offer.
    """

    spec: PoolSpec
    hosts: tuple[FleetHost, ...] = ()
    paused: str | None = None
    spent_today_usd: float = 0.0
    unheard: str = ""
    quiet_seconds: float = 0.0
    quiet_reason: str = ""
    outcomes: tuple[SpawnOutcome, ...] = ()
    trouble: Mapping[str, OfferTrouble] = {}

    @cached_property
    def shapes(self) -> tuple[tuple[FleetHost, int], ...]:
        """Return one host of each shape and the number of hosts like it. Counting by shapes is
        quick, because most of 10,000 hosts are alike."""
        alike = dict(zip(map(_SHAPE, self.hosts), self.hosts, strict=True))
        counts = Counter(map(_SHAPE, self.hosts))
        return tuple((alike[shape], count) for shape, count in counts.items())

    @property
    def usd_per_hour(self) -> float:
        """Return the present costs of the pool's machines, in dollars an hour."""
        return sum(count * host.usd_per_hour for host, count in self.shapes if host.is_paid)

    @property
    def starting(self) -> int:
        """Return how many hosts start."""
        return sum(count for host, count in self.shapes if host.is_starting)

    @property
    def serving(self) -> int:
        """Return how many hosts serve."""
        return sum(count for host, count in self.shapes if host.is_serving)

    def count_working(self, offers: Collection[str]) -> int:
        """Return how many hosts of these offers serve and have work."""
        return sum(
            count
            for host, count in self.shapes
            if host.offer in offers and host.is_serving and host.leases > 0
        )

    @property
    def present(self) -> int:
        """Return how many hosts count to the pool's `max`: all that are not over, whether they
        serve or not."""
        return sum(count for host, count in self.shapes if not host.is_over)

    @property
    def paid(self) -> int:
        """Return how many hosts have a machine that may be charged for."""
        return sum(count for host, count in self.shapes if host.is_paid)

    def replace_hosts(self, changed: Mapping[str, FleetHost]) -> "PoolView":
        """Return the view with the hosts of these ids replaced."""
        if not changed:
            return self
        hosts = tuple(changed.get(host.host_id, host) for host in self.hosts)
        return msgspec.structs.replace(self, hosts=hosts)

    def count_supply(self, offers: Collection[str]) -> int:
        """Return how many hosts of these offers serve or start."""
        return sum(
            count
            for host, count in self.shapes
            if host.offer in offers and (host.is_starting or host.is_serving)
        )


class FleetSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """Every pool, and every queued job by shape, at one moment of the store's clock.

    quotas: what each project with a quota may still start. silence_seconds: silence after which
    admission gives a host no work. dead_seconds: silence after which a host with leases is dead.
    """

    at: datetime
    pools: tuple[PoolView, ...] = ()
    waiting: tuple[Waiting, ...] = ()
    quotas: Mapping[str, QuotaLeft] = {}
    silence_seconds: float = math.inf
    dead_seconds: float = math.inf
