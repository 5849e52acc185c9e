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

    ref: the provider's id of the machine, once known.
    state_seconds: since the host came into its state. intent_seconds: since the intent.
    asked_seconds: since the provider was asked for it, None: never. seen_seconds: since a listing
    that was written down showed it. misses, missing_seconds: whole listings in a row without it, and
    since the first of them.
    heartbeat_seconds: since its agent's last call, None before the first.
    idle_seconds: since the last lease on it ended, or since it became active; None while it has any.
    leases: tasks whose end is not confirmed. aside: it says itself that it can start nothing (ASIDE-1).
    passed_over: admission gives it nothing now (`pass_over`). stuck: the sentence of a task there that neither beats
    nor moves and outlived its watchdogs by `stuck_timeout_seconds`; None without one.
    telemetry_seconds: age of the oldest of its GPU readings; None without GPUs or readings.
    preflight: "pending", "ok", "warn" or "fail"; preflight_reason: its sentence.
    draining_for_scale: it drains because the pool shrinks, not by an operator's word.
    machine: how the provider's last listing showed it, of hosts that have yet to call; None: it did
    not.
    gone: why the provider is believed that the machine is gone (`leaks.read_listing`), else "".
    said: the provider's last words about a machine that starts, "" without any. reason: why it is in
    error, "" while it is not. lost: why its provider takes the machine away (`Machine.lost`), as it
    said last.
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
        """Return whether it is on its way to serve."""
        coming = self.state in (HostState.SPAWNING, HostState.PREFLIGHT)
        return coming and self.instance in _LIVE

    @property
    def is_serving(self) -> bool:
        """Return whether admission gives it work now."""
        return self.state is HostState.ACTIVE and not self.passed_over

    @property
    def is_idle(self) -> bool:
        """Return whether it is active and runs nothing."""
        return self.state is HostState.ACTIVE and not self.leases

    @property
    def is_over(self) -> bool:
        """Return whether it never serves again."""
        return self.state in (HostState.ERROR, HostState.TERMINATED)

    @property
    def is_lost(self) -> bool:
        """Return whether the work on it will have to run elsewhere, once its leases have ended."""
        return self.leases > 0 and (self.state is HostState.ERROR or self.passed_over)

    @property
    def is_paid(self) -> bool:
        """Return whether its machine may be charged for."""
        return self.instance is not InstanceState.GONE


_SHAPE = attrgetter("state", "instance", "offer", "usd_per_hour", "leases", "passed_over")
_LIVE = (InstanceState.INTENDED, InstanceState.ASKED, InstanceState.MADE)


class Waiting(msgspec.Struct, frozen=True, kw_only=True):
    """Queued jobs of one shape. tasks: ranks of each; the resources are of one task. project: "" for
    members of jobs that run, which no quota holds back."""

    queue: str
    project: str = ""
    jobs: int
    tasks: int = 1
    gpus: int = 0
    cpu_slots: int = 0
    memory_bytes: int = 0
    host_labels: Mapping[str, str] = {}
    oldest_seconds: float = 0.0


class SpawnOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """How one spawn of the breaker's window ended, `age_seconds` ago. fault "": it served. reason:
    what was said of the fault."""

    age_seconds: float
    offer: str
    fault: str = ""
    reason: str = ""


class OfferTrouble(msgspec.Struct, frozen=True, kw_only=True):
    """Refusals in a row that an offer met, and since when the last is: what back-off counts from."""

    refusals: int
    age_seconds: float
    reason: str = ""


class PoolView(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """One pool: its spec, its hosts (ended ones are not among them), its money and its memory.

    paused: an operator's reason, None while it runs; a paused pool spawns nothing and shrinks by
    nothing, its health is still watched.
    spent_today_usd: since midnight UTC, running hosts included.
    unheard: why its provider could not be asked for its machines, "" where it answered.
    quiet_seconds, quiet_reason: for how long the provider asks to be left in peace, in its words.
    outcomes: spawns that ended within the breaker's window, newest first. trouble: by offer.
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
        """Return one host of each shape, and how many are like it: of 10,000 hosts most are alike, and
        the shape alone decides what is counted."""
        alike = dict(zip(map(_SHAPE, self.hosts), self.hosts, strict=True))
        counts = Counter(map(_SHAPE, self.hosts))
        return tuple((alike[shape], count) for shape, count in counts.items())

    @property
    def usd_per_hour(self) -> float:
        """Return what its machines cost now."""
        return sum(count * host.usd_per_hour for host, count in self.shapes if host.is_paid)

    @property
    def starting(self) -> int:
        """Return how many hosts start."""
        return sum(count for host, count in self.shapes if host.is_starting)

    @property
    def serving(self) -> int:
        """Return how many hosts serve."""
        return sum(count for host, count in self.shapes if host.is_serving)

    @property
    def present(self) -> int:
        """Return how many hosts count to `max`: all that are not over, whether they serve or not."""
        return sum(count for host, count in self.shapes if not host.is_over)

    @property
    def paid(self) -> int:
        """Return how many hosts have a machine that may be charged for."""
        return sum(count for host, count in self.shapes if host.is_paid)

    def replace_hosts(self, changed: Mapping[str, FleetHost]) -> "PoolView":
        """Return the view with these hosts, by id, in the place of what they were."""
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
    """Every pool, and every queued job by shape, at one moment of the store's clock. quotas: what
    projects that have one may still start. silence_seconds: after so long without a word admission
    gives a host nothing. dead_seconds: after so long one that holds leases is called dead."""

    at: datetime
    pools: tuple[PoolView, ...] = ()
    waiting: tuple[Waiting, ...] = ()
    quotas: Mapping[str, QuotaLeft] = {}
    silence_seconds: float = math.inf
    dead_seconds: float = math.inf
