"""Machines and their hosts in PostgreSQL. Locks go in the one order: hosts, instances, jobs, tasks."""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import TypeVar

import msgspec

from holdfast.core.causes import Cause
from holdfast.core.endings.classify import STOPPED
from holdfast.core.fleet.faults import HostFault
from holdfast.core.fleet.instances import Offer
from holdfast.core.fleet.pools import PoolSpec
from holdfast.core.fleet.records import InstanceRecord
from holdfast.core.fleet.snapshot import FleetSnapshot
from holdfast.core.settings.resolve import Value
from holdfast.core.states import HostEvent, HostState, InstanceEvent, InstanceState
from holdfast.core.transitions import HOST, INSTANCE, step_unless_late
from holdfast.moves.fleet.rented import (
    RentedHost,
    ended_event,
    failed_event,
    intended_event,
    is_spawn_fault,
    lost_word,
    made_event,
    name_host,
    say_taken,
)
from holdfast.moves.registration import lost_event
from holdfast.store.clock import Now
from holdfast.store.postgres.connection.session import Session, Tx, to_json
from holdfast.store.postgres.fleet.pools import PostgresPools
from holdfast.store.postgres.fleet.snapshot import read_snapshot
from holdfast.store.postgres.hosts import end_instance, lock_rented, lose_host_tasks, set_host_state
from holdfast.store.postgres.moves import write_events

T = TypeVar("T")
PRUNE_ROWS = 500


SEEN_SECONDS = 600.0


class PostgresFleet(PostgresPools):
    """Machines and their hosts. Every write is guarded by the tables `INSTANCE` and `HOST`: where
    another move came first it changes nothing and returns None or False.

    RENT-6  A host and its instance are on record before a provider is asked for a machine, and stay
            there until a listing confirms that it is gone.
    CYCLE-1  A host in error is given no work and its leases are renewed no more. Its tasks are freed
             when its machine is gone, or when no lease is left (LEASE-3).
    """

    def __init__(self, session: Session, environment: Mapping[str, Value]) -> None:
        super().__init__(session)
        self.environment = environment

    async def read_snapshot(
        self, *, outcome_seconds: float = 3600.0, grace_seconds: float = 60.0, now: Now = None
    ) -> FleetSnapshot:
        """Return every pool with its hosts, and the queued jobs by shape, from one consistent read.

        outcome_seconds: age up to which ended spawns are shown. grace_seconds: the grace of tasks
        that set none themselves, to find stuck ones.
        """
        return await self.session.transact(
            lambda tx: read_snapshot(tx, self.environment, outcome_seconds, grace_seconds, now)
        )

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

        async def work(tx: Tx) -> list[str]:
            at = await tx.now(now)
            row = await tx.one("lock_pool", name=pool)
            if row is None or row["deleted_at"] is not None or row["paused_at"] is not None:
                return []
            if (
                open_machines is not None
                and await tx.value("count_open", pool=pool) > open_machines
            ):
                return []
            spec = msgspec.convert(row["spec"], PoolSpec)
            names = [name_host(pool, host_id) for host_id in host_ids]
            given = {
                "ids": list(host_ids), "names": names, "pool": pool, "offer": offer.name,
                "usd_per_hour": offer.usd_per_hour, "reason": reason, "queues": list(spec.queues),
                "labels": to_json(spec.labels), "now": at, "gpus": offer.gpus, "cpu_slots": offer.cpu_slots,
            }  # fmt: skip
            await tx.rows("insert_intents", **given)
            pairs = zip(host_ids, names, strict=True)
            await write_events(
                tx, [intended_event(i, name, pool, offer.name, reason) for i, name in pairs], at
            )
            return list(host_ids)

        return await self.session.transact(work)

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

        async def work(tx: Tx, rental: RentedHost, at: datetime) -> InstanceRecord | None:
            after = step_unless_late(INSTANCE, rental.state, InstanceEvent.ASK)
            if after is None:
                return None
            token = {
                "token_id": token_id, "name": f"host {rental.name}", "secret_hash": secret_hash,
                "now": at, "seconds": token_seconds, "id": host_id,
            }  # fmt: skip
            await tx.run("insert_host_token", **token)
            await tx.run("ask_instance", id=host_id, state=str(after), now=at)
            return await _read_instance(tx, host_id)

        return await self._move(host_id, now, work, None)

    async def note_made(
        self, host_id: str, ref: str, *, usd_per_hour: float | None = None, now: Now = None
    ) -> InstanceRecord | None:
        """Write the provider's id of the machine, and its price where the provider gives one, which
        then replaces the offer's. Event host.made."""

        async def work(tx: Tx, rental: RentedHost, at: datetime) -> InstanceRecord | None:
            after = step_unless_late(INSTANCE, rental.state, InstanceEvent.MAKE)
            if after is None:
                return None
            params = {
                "id": host_id, "state": str(after), "ref": ref, "usd_per_hour": usd_per_hour,
                "now": at,
            }  # fmt: skip
            await tx.run("make_instance", **params)
            await tx.run("clear_trouble", pool=rental.pool, offer=rental.offer)
            await write_events(tx, [made_event(rental, ref)], at)
            return await _read_instance(tx, host_id)

        return await self._move(host_id, now, work, None)

    async def note_denied(self, host_id: str, reason: str, *, final: bool, now: Now = None) -> bool:
        """Write that the provider refused to make the machine. The host is in error
        (no_instance_id), or terminated where it is not wanted any more. The offer backs off.

        final: the provider will never accept this order, which counts against the spawn breaker.
        """

        async def work(tx: Tx, rental: RentedHost, at: datetime) -> bool:
            event = InstanceEvent.DENY
            if step_unless_late(INSTANCE, rental.state, event) is None:
                # Its end was requested meanwhile, and then its state accepts this news as `miss`.
                event = InstanceEvent.MISS
            if not await _lose(tx, rental, event, HostFault.NO_INSTANCE_ID, reason, at, final):
                return False
            trouble = {"pool": rental.pool, "offer": rental.offer, "now": at, "reason": reason}
            await tx.run("note_trouble", **trouble)
            return True

        return await self._move(host_id, now, work, False)

    async def note_listing(
        self, seen: Collection[str], missing: Collection[str], *, now: Now = None
    ) -> None:
        """Write which hosts' machines a listing showed, and which were missing in it. A machine
        that is always shown is written only every `SEEN_SECONDS`."""

        async def work(tx: Tx) -> None:
            at = await tx.now(now)
            await tx.run("note_seen", ids=sorted(seen), now=at, seconds=SEEN_SECONDS)
            await tx.run("note_missing", ids=sorted(missing), now=at)

        if seen or missing:
            await self.session.transact(work)

    async def note_words(
        self, said: Mapping[str, str], lost: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        """Write, by host id, a provider's messages about machines that start, and its reasons for
        taking machines away (`Machine.lost`)."""

        async def work(tx: Tx) -> None:
            await tx.run("note_words", ids=list(said), said=list(said.values()))
            await tx.run("note_lost", ids=list(lost), lost=list(lost.values()))

        if said or lost:
            await self.session.transact(work)

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

        async def work(tx: Tx, rental: RentedHost, at: datetime) -> bool:
            return await _lose(tx, rental, event, fault, reason, at, True)

        return await self._move(host_id, now, work, False)

    async def find_silent(self, seconds: float, *, now: Now = None) -> dict[str, str]:
        """Return host id → pool for the rented hosts with leases that have been silent for
        `seconds`."""
        rows = await self.session.rows("find_silent", seconds=seconds, now=now)
        return {row["host_id"]: row["pool"] for row in rows}

    async def promote_host(self, host_id: str, reason: str, *, now: Now = None) -> float | None:
        """Make a host active, because it passed its checks. Returns the seconds since the host was
        intended."""

        async def work(tx: Tx, rental: RentedHost, at: datetime) -> float | None:
            if rental.ends or not await _try_move(tx, rental, HostEvent.PASS, reason, at):
                return None
            await tx.run("note_active", id=host_id, now=at)
            if not rental.served:
                await _note_outcome(tx, rental, "", "", at)
            row = await tx.one("lock_instance", id=host_id)
            began: datetime = at if row is None else row["intended_at"]
            return (at - began).total_seconds()

        return await self._move(host_id, now, work, None)

    async def fail_host(
        self, host_id: str, fault: HostFault, reason: str, *, now: Now = None
    ) -> bool:
        """Put a host in error (CYCLE-1). Event host.failed."""

        async def work(tx: Tx, rental: RentedHost, at: datetime) -> bool:
            return await _fail(tx, rental, fault, reason, at)

        return await self._move(host_id, now, work, False)

    async def drain_if_idle(
        self, host_id: str, leases: int, grace_seconds: float, reason: str, *, now: Now = None
    ) -> bool:
        """Drain an active host, because its pool shrinks, where no more than `leases` tasks hold a
        lease on it (SCALE-2)."""

        async def work(tx: Tx, rental: RentedHost, at: datetime) -> bool:
            if rental.host is not HostState.ACTIVE:
                return False
            if await tx.value("count_leases", id=host_id) > leases:
                return False
            await set_host_state(
                tx,
                host_id,
                rental.name,
                rental.host,
                HostEvent.DRAIN,
                reason,
                at,
                deadline=at + timedelta(seconds=grace_seconds),
                cause=Cause.SCALED_DOWN,
            )
            return True

        return await self._move(host_id, now, work, False)

    async def want_end(
        self, host_id: str, reason: str, *, now: Now = None
    ) -> InstanceRecord | None:
        """Write that a machine is not wanted any more. An instance whose provider was never asked
        for a machine becomes `gone`."""

        async def work(tx: Tx, rental: RentedHost, at: datetime) -> InstanceRecord | None:
            if await end_instance(tx, rental, reason, at) is InstanceState.GONE:
                await _terminate(tx, rental, reason, at)
            return await _read_instance(tx, host_id)

        return await self._move(host_id, now, work, None)

    async def note_end_asked(self, host_id: str, *, now: Now = None) -> None:
        """Write that the provider was asked to end the machine."""

        async def work(tx: Tx) -> None:
            await tx.run("note_end_asked", id=host_id, now=await tx.now(now))

        await self.session.transact(work)

    async def free_host(self, host_id: str, reason: str, *, now: Now = None) -> list[str] | None:
        """Terminate a host whose machine is gone or that has no lease left, and end the tasks left
        on it as lost (host_gone). Return the jobs of these tasks; None where nothing was
        changed."""

        async def work(tx: Tx, rental: RentedHost, at: datetime) -> list[str] | None:
            gone = rental.state is InstanceState.GONE
            if not gone and await tx.value("count_leases", id=host_id):
                return None
            return await _terminate(tx, rental, reason, at)

        return await self._move(host_id, now, work, None)

    async def list_instances(
        self,
        pool: str | None = None,
        *,
        states: Collection[InstanceState] | None = None,
        include_gone: bool = False,
    ) -> list[InstanceRecord]:
        """Return instances, oldest intent first."""
        params = {"ids": None, "pool": pool, "include_gone": include_gone}
        wanted = None if states is None else [str(state) for state in states]
        rows = await self.session.rows("read_instances", **params, states=wanted)
        return [msgspec.convert(row, InstanceRecord) for row in rows]

    async def find_instances(self, host_ids: Collection[str]) -> Mapping[str, InstanceRecord]:
        """Return instances by their hosts' ids, gone ones included; unknown ids are missing."""
        params = {"ids": sorted(host_ids), "pool": None, "states": None, "include_gone": True}
        rows = await self.session.rows("read_instances", **params) if host_ids else []
        return {row["host_id"]: msgspec.convert(row, InstanceRecord) for row in rows}

    async def prune_fleet(self, days: float, *, now: Now = None) -> int:
        """Delete instances that have been gone for `days`, with their hosts, and old outcomes of
        spawns. Returns how many rows."""

        async def work(tx: Tx) -> int:
            given = {"before": await tx.now(now) - timedelta(days=days), "limit": PRUNE_ROWS}
            return await tx.run("prune_instances", **given) + await tx.run(
                "prune_outcomes", **given
            )

        return await self.session.transact(work)

    async def _move(
        self,
        host_id: str,
        now: datetime | None,
        work: Callable[[Tx, RentedHost, datetime], Awaitable[T]],
        unknown: T,
    ) -> T:
        """Run `work` under the locks of the host and its instance; return `unknown` where there is
        no such host."""

        async def locked(tx: Tx) -> T:
            at = await tx.now(now)
            await tx.value("lock_host", id=host_id)
            rental = await lock_rented(tx, host_id)
            return unknown if rental is None else await work(tx, rental, at)

        return await self.session.transact(locked)


async def _read_instance(tx: Tx, host_id: str) -> InstanceRecord | None:
    row = await tx.one("read_instances", ids=[host_id], pool=None, states=None, include_gone=True)
    return None if row is None else msgspec.convert(row, InstanceRecord)


async def _lose(
    tx: Tx,
    rental: RentedHost,
    event: InstanceEvent,
    fault: HostFault,
    reason: str,
    at: datetime,
    counts: bool,
) -> bool:
    """Write that a machine is gone, and move its host to its next state. counts: the fault counts
    for the breaker of spawns.

    A provider often says that it took the machine away only after TERM has emptied the host, so its
    words are added to what the goodbye left: the host's reason, and those of attempts that TERM
    stopped. Their charge stands, because both ends are charged to nothing."""
    after = step_unless_late(INSTANCE, rental.state, event)
    if after is None:
        return False
    await tx.run("end_instance", id=rental.host_id, state=str(after), reason=reason, now=at)
    await write_events(tx, [ended_event(rental, event, reason)], at)
    taken = fault is HostFault.PREEMPTED
    if rental.state is InstanceState.ENDING:
        rental = msgspec.structs.replace(rental, fault=str(fault))
        left = await _terminate(tx, rental, reason, at) is None
        if taken:
            await tx.run("note_fault", id=rental.host_id, fault=str(fault))
        if taken and left:
            await tx.run("add_host_reason", id=rental.host_id, words=say_taken(reason))
    else:
        await _fail(tx, rental, fault, reason, at, counts=counts)
    if taken:
        words = say_taken(reason)
        await tx.run("add_taken_reason", id=rental.host_id, rule=STOPPED, words=words)
    return True


async def _try_move(
    tx: Tx, rental: RentedHost, event: HostEvent, reason: str, at: datetime
) -> bool:
    """Move a host, unless another move came first. Return whether it moved."""
    if step_unless_late(HOST, rental.host, event) is None:
        return False
    await set_host_state(tx, rental.host_id, rental.name, rental.host, event, reason, at)
    return True


async def _fail(
    tx: Tx, rental: RentedHost, fault: HostFault, reason: str, at: datetime, *, counts: bool = True
) -> bool:
    if not await _try_move(tx, rental, HostEvent.FAIL, reason, at):
        return False
    await tx.run("note_fault", id=rental.host_id, fault=str(fault))
    await write_events(tx, [failed_event(rental, rental.host, str(fault), reason)], at)
    if counts and is_spawn_fault(rental, fault):
        await _note_outcome(tx, rental, str(fault), reason, at)
    return True


async def _terminate(tx: Tx, rental: RentedHost, reason: str, at: datetime) -> list[str] | None:
    """Terminate a host, and end the tasks left on it as lost. Return their jobs."""
    if not await _try_move(tx, rental, HostEvent.TERMINATE, reason, at):
        return None
    host_id, name = rental.host_id, rental.name
    await tx.run("forget_key", id=host_id)
    why = lost_word(rental, reason)
    lost = await lose_host_tasks(tx, host_id, why, at)
    await write_events(tx, lost_event(host_id, name, why, lost), at)
    return lost


async def _note_outcome(tx: Tx, rental: RentedHost, fault: str, reason: str, at: datetime) -> None:
    params = {"pool": rental.pool, "offer": rental.offer, "now": at, "fault": fault}
    await tx.run("insert_outcome", **params, reason=reason)
