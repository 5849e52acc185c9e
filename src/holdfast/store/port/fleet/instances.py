"""Machines that pools rent, and their hosts."""

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Protocol

from holdfast.core.fleet.faults import HostFault
from holdfast.core.fleet.instances import Offer
from holdfast.core.fleet.records import InstanceRecord
from holdfast.core.fleet.snapshot import FleetSnapshot
from holdfast.core.states import InstanceEvent, InstanceState
from holdfast.store.port.clock import Now
from holdfast.store.port.fleet.pools import PoolStore

SEEN_SECONDS = 600.0


class FleetStore(PoolStore, Protocol):
    """Machines and their hosts. Every write is guarded by the tables `INSTANCE` and `HOST`: where
    another move came first it changes nothing and returns None or False.

    RENT-6  A host and its instance are on record before a provider is asked for a machine, and stay
            there until a listing confirms that it is gone.
    CYCLE-1  A host in error is given no work and its leases are renewed no more. Its tasks are freed
             when its machine is gone, or when no lease is left (LEASE-3).
    """

    async def read_snapshot(
        self, *, outcome_seconds: float = 3600.0, grace_seconds: float = 60.0, now: Now = None
    ) -> FleetSnapshot:
        """Return every pool with its hosts, and the queued jobs by shape, from one consistent read.

        outcome_seconds: age up to which ended spawns are shown. grace_seconds: the grace of tasks
        that set none themselves, to find stuck ones.
        """

    async def intend(
        self,
        pool: str,
        offer: Offer,
        host_ids: Sequence[str],
        reason: str,
        *,
        open_machines: int | None = None,
        now: Now = None,
    ) -> list[str]:
        """Write hosts that are to be rented, as `spawning`, and return their ids. Return none where
        the pool is paused or deleted, or has more machines than `open_machines`, because another
        cycle has spawned some since this one read the pool. Event host.intended."""

    async def ask(
        self,
        host_id: str,
        token_id: str,
        secret_hash: bytes,
        token_seconds: float,
        *,
        now: Now = None,
    ) -> InstanceRecord | None:
        """Write that the provider is asked for the machine now, and a join token for this host
        alone."""

    async def note_made(
        self, host_id: str, ref: str, *, usd_per_hour: float | None = None, now: Now = None
    ) -> InstanceRecord | None:
        """Write the provider's id of the machine, and its price where the provider gives one, which
        then replaces the offer's. Event host.made."""

    async def note_denied(self, host_id: str, reason: str, *, final: bool, now: Now = None) -> bool:
        """Write that the provider refused to make the machine. The host is in error
        (no_instance_id), or terminated where it is not wanted any more. The offer backs off.

        final: the provider will never accept this order, which counts against the spawn breaker.
        """

    async def note_listing(
        self, seen: Collection[str], missing: Collection[str], *, now: Now = None
    ) -> None:
        """Write which hosts' machines a listing showed, and which were missing in it. A machine
        that is always shown is written only every `SEEN_SECONDS`."""

    async def note_words(
        self, said: Mapping[str, str], lost: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        """Write, by host id, a provider's messages about machines that start, and its words for why
        it takes machines away (`Machine.lost`)."""

    async def note_gone(
        self,
        host_id: str,
        event: InstanceEvent,
        reason: str,
        *,
        fault: HostFault = HostFault.PROVIDER_GONE,
        now: Now = None,
    ) -> bool:
        """Write that a machine is gone (`vanish`), or was never made (`miss`). A host whose end was
        wanted is terminated, any other is in error. Event host.gone."""

    async def find_silent(self, seconds: float, *, now: Now = None) -> dict[str, str]:
        """Return host id → pool for rented hosts with leases that have been silent for so long."""

    async def promote_host(self, host_id: str, reason: str, *, now: Now = None) -> float | None:
        """Make a host that passed its checks active. Returns the seconds since its intent."""

    async def fail_host(
        self, host_id: str, fault: HostFault, reason: str, *, now: Now = None
    ) -> bool:
        """Put a host in error (CYCLE-1). Event host.failed."""

    async def drain_if_idle(
        self, host_id: str, leases: int, grace_seconds: float, reason: str, *, now: Now = None
    ) -> bool:
        """Drain an active host for scale where no more than `leases` tasks hold a lease on it
        (SCALE-2)."""

    async def want_end(
        self, host_id: str, reason: str, *, now: Now = None
    ) -> InstanceRecord | None:
        """Write that a machine is not wanted any more. An instance whose provider was never asked
        for a machine becomes `gone`."""

    async def note_end_asked(self, host_id: str, *, now: Now = None) -> None:
        """Write that the provider was asked to end the machine."""

    async def free_host(self, host_id: str, reason: str, *, now: Now = None) -> list[str] | None:
        """Terminate a host whose machine is gone or that has no lease left, and end the tasks left
        on it as lost (host_gone). Return the jobs; None where nothing was changed."""

    async def list_instances(
        self,
        pool: str | None = None,
        *,
        states: Collection[InstanceState] | None = None,
        include_gone: bool = False,
    ) -> list[InstanceRecord]:
        """Return instances, oldest intent first."""

    async def find_instances(self, host_ids: Collection[str]) -> Mapping[str, InstanceRecord]:
        """Return instances by their hosts' ids, gone ones included; unknown ids are missing."""

    async def prune_fleet(self, days: float, *, now: Now = None) -> int:
        """Delete instances that have been gone for `days`, with their hosts, and old outcomes.
        Returns how many rows."""
