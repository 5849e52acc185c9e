"""Hosts: their registration, reads, changes of state, and the search for dead ones."""

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Protocol

from holdfast.core.host_faults import Hindrance
from holdfast.core.ids import TaskKey
from holdfast.core.placement.possible import Size
from holdfast.core.records import HostRecord
from holdfast.store.port.clock import Now
from holdfast.wire.agent import HostFacts


class HostStore(Protocol):
    """Hosts and their states."""

    async def register_host(
        self,
        host_id: str,
        key_hash: bytes | None,
        incarnation: str,
        facts: HostFacts,
        *,
        faults: Sequence[Hindrance] = (),
        held: Collection[TaskKey] = (),
        now: Now = None,
    ) -> HostRecord:
        """Create a host (key_hash given) or register it again; there is no preflight, so it is
        active at once. A new incarnation frees the old one's tasks at once, lost="new_incarnation"
        (LEASE-3), except those in `held`, whose containers may still run: they keep their leases
        until those lapse, or until the host registers again without them. faults: as in `HostSync`.

        Raises:
            NotFound: no key_hash, and no such host.
            Stale: the request of an earlier incarnation came late (code "stale_incarnation");
            nothing was changed.
        """

    async def note_caches(self, host_id: str, incarnation: str, caches: Collection[str]) -> None:
        """Record the caches that are warm on a host; nothing for an incarnation that is over."""

    async def find_hosts_by_keys(self, key_hashes: Collection[bytes]) -> dict[bytes, HostRecord]:
        """Return the hosts with these keys, by the hash of each; unknown ones are missing."""

    async def find_ended_host(self, key_hash: bytes) -> str | None:
        """Return the name of the host that had this key until it was terminated, or None."""

    async def get_host(self, host: str) -> HostRecord:
        """Return a host by id or name. Raises NotFound."""

    async def get_hosts(self, host_ids: Collection[str]) -> dict[str, HostRecord]:
        """Return hosts by id, terminated ones included; unknown ids are missing."""

    async def list_hosts(
        self, *, include_terminated: bool = False, dead: bool = False
    ) -> list[HostRecord]:
        """Return hosts by name. dead: only those flagged dead."""

    async def host_sizes(self) -> list[Size]:
        """Return the whole sizes of present hosts, and of those that pools may rent."""

    async def move_host(
        self,
        host_id: str,
        event: str,
        reason: str,
        *,
        hard: bool = False,
        deadline_seconds: float | None = None,
        scale_down: bool = False,
        now: Now = None,
    ) -> HostRecord:
        """Apply a HostEvent (drain, undrain, quarantine, release, terminate). terminate ends the
        host's tasks as lost at once (host_gone).

        hard: drain its running jobs now (cause host_drained, operator stop).
        deadline_seconds: with drain, how long running work may go on.
        scale_down: with drain, the host is no longer needed; its jobs drain with cause scaled_down,
        each task with its grace, now or at the deadline.

        Raises:
            NotFound: no such host. Conflict: names the events that the state accepts.
        """

    async def revoke_key(self, host_id: str, reason: str, *, now: Now = None) -> HostRecord:
        """Forget a host's key, so that the host is refused until it joins with a token again; its
        tasks end with their leases. Event host.moved. A terminate by `move_host` includes this.
        Raises NotFound."""

    async def drain_due_hosts(self, *, now: Now = None) -> dict[str, list[str]]:
        """Drain, once and at no charge, the jobs that still run on draining hosts whose deadline
        has come (cause host_drained or scaled_down). Return host id → jobs."""

    async def sweep_dead_hosts(
        self, dead_seconds: float, leading_since: datetime, *, now: Now = None
    ) -> list[HostRecord]:
        """Flag, once, hosts with live tasks whose heartbeat is older than `dead_seconds` (and for
        which leading_since + dead_seconds has passed). Event host.dead. Returns those flagged by
        this call."""
