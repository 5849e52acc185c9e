"""Hosts in PostgreSQL: their registration, reads, changes of state, and the search for dead
ones."""

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import msgspec

from holdfast.core.causes import Cause
from holdfast.core.fleet.pools import PoolSpec
from holdfast.core.host_faults import Hindrance
from holdfast.core.ids import TaskKey
from holdfast.core.placement.possible import HostShape
from holdfast.core.records import HostRecord
from holdfast.core.states import HostEvent, HostState, InstanceEvent, InstanceState
from holdfast.core.transitions import HOST, INSTANCE, step, step_unless_late
from holdfast.moves import registration
from holdfast.moves.fleet.pools import as_seen, list_offer_sizes
from holdfast.moves.fleet.rented import RentedHost
from holdfast.moves.jobs.moves import Moves
from holdfast.moves.values import HostSync
from holdfast.store.clock import Now
from holdfast.store.postgres.connection.parts import OnSession, reads, transacts
from holdfast.store.postgres.connection.session import Tx, to_json
from holdfast.store.postgres.moves import load_moves, write_events, write_moves
from holdfast.wire.agent import HostFacts

CONTROLLER_SECONDS = 600.0
"""A controller that has not said for so long that it serves is named to no host."""


class PostgresHosts(OnSession):
    """Hosts and their states."""

    async def note_controller(self, url: str, *, now: Now = None) -> None:
        """Write that a controller serves at this address."""
        await self.session.single(lambda tx: tx.run("note_controller", url=url, now=now))

    async def forget_controller(self, url: str, *, now: Now = None) -> None:
        """Forget a controller that stops, and those that have said nothing for a day."""
        await self.session.single(lambda tx: tx.run("forget_controllers", url=url, now=now))

    async def list_controllers(self, *, now: Now = None) -> list[str]:
        """Return the addresses of the controllers that serve, those that said so last first."""
        given = {"seconds": CONTROLLER_SECONDS, "now": now}
        return [row["url"] for row in await self.session.rows("list_controllers", **given)]

    @transacts
    async def register_host(
        self,
        tx: Tx,
        host_id: str,
        key_hash: bytes | None,
        incarnation: str,
        facts: HostFacts,
        *,
        faults: Sequence[Hindrance] = (),
        held: Collection[TaskKey] = (),
        announced: Sequence[str] = (),
        now: Now = None,
    ) -> HostRecord:
        """Create a host (key_hash given) or register it again; there is no preflight, so it is
        active at once. A new incarnation frees the old one's tasks at once, lost="new_incarnation"
        (LEASE-3), except those in `held`, whose containers may still run: they keep their leases
        until those lapse, or until the host registers again without them. faults: as in `HostSync`.
        announced: earlier incarnations of the host, as it says, newest first.

        Raises:
            NotFound: no key_hash, and no such host.
            Stale: the request of an earlier incarnation came late (code "stale_incarnation");
            nothing was changed.
        """
        at = await tx.now(now)
        before = await tx.value("lock_host", id=host_id)
        row = await tx.one("read_host_state", id=host_id, now=at)
        if row is None and key_hash is None:
            raise registration.no_host(host_id)
        known = () if row is None else row["earlier_incarnations"]
        earlier = registration.follow_incarnation(facts.name, before, known, incarnation, announced)
        rented = await lock_rented(tx, host_id)
        state = registration.register_state(
            None if row is None else HostState(row["state"]), rented, repeated=before == incarnation
        )
        facts = registration.keep_place(facts, rented)
        await tx.run("lock_name", name=facts.name)
        others = await tx.list_of(
            registration.Namesake, "read_namesakes", id=host_id, name=facts.name, now=at
        )
        known_name = None if row is None else row["name"]
        registration.check_name(known_name, facts, rented, others)
        if row is not None and key_hash is None:
            registration.check_boot(host_id, row["boot_id"], facts, row["silent_seconds"])
        params = _host_params(host_id, key_hash, facts, state, faults, at)
        await tx.run("put_host", **params, earlier=list(earlier))
        await tx.run("put_heartbeat", id=host_id, incarnation=incarnation, now=at)
        lost = await lose_host_tasks(
            tx, host_id, "new_incarnation", at, keep=incarnation, held=held
        )
        told = () if row is None else msgspec.convert(row["faults"], tuple[Hindrance, ...])
        events = [
            *registration.lost_event(host_id, facts.name, "new_incarnation", lost),
            *registration.faults_event(host_id, facts.name, told, faults),
        ]
        if before != incarnation:
            events.append(registration.registered_event(host_id, facts.name, incarnation, state))
        await write_events(tx, events, at)
        return await read_host(tx, host_id)

    async def note_caches(self, host_id: str, incarnation: str, caches: Collection[str]) -> None:
        """Record the caches that are warm on a host; nothing for an incarnation that is over."""
        given = {"id": host_id, "incarnation": incarnation, "caches": list(caches)}
        await self.session.transact(lambda tx: tx.run("put_caches", **given))

    @reads
    async def find_hosts_by_keys(
        self, tx: Tx, key_hashes: Collection[bytes]
    ) -> dict[bytes, HostRecord]:
        """Return the hosts with these keys, by the hash of each key; hashes of no host are
        missing."""
        rows = await tx.rows("find_hosts_by_keys", key_hashes=list(key_hashes))
        keys = {row["id"]: bytes(row["key_hash"]) for row in rows}
        return {keys[host.id]: host for host in await read_hosts(tx, list(keys), True, False)}

    @reads
    async def find_ended_host(self, tx: Tx, key_hash: bytes) -> str | None:
        """Return the name of the host that had this key until it was terminated, or None."""
        row = await tx.one("find_ended_host", key_hash=key_hash)
        return None if row is None else str(row["name"])

    @reads
    async def get_host(self, tx: Tx, host: str) -> HostRecord:
        """Return a host by id or name. Raises NotFound."""
        found = await tx.rows("find_host", host=host)
        return await read_host(
            tx, registration.pick_host(host, [(row["id"], row["ended"]) for row in found])
        )

    async def get_hosts(self, host_ids: Collection[str]) -> dict[str, HostRecord]:
        """Return hosts by id, terminated ones included; unknown ids are missing."""
        found = await self.session.single(lambda tx: read_hosts(tx, list(host_ids), True, False))
        return {host.id: host for host in found}

    async def list_hosts(
        self,
        *,
        include_terminated: bool = False,
        dead: bool = False,
        trouble: bool = False,
        gpus: bool = False,
        part: str | None = None,
        limit: int | None = None,
    ) -> list[HostRecord]:
        """Return hosts by name. dead: only the hosts that are flagged dead. trouble: only the hosts that
        are flagged dead, not active, or have a fault. gpus: only the hosts that have some. part: a part
        of the name in any case, or the beginning of the id. limit: the most hosts to return."""
        return await self.session.single(
            lambda tx: read_hosts(tx, None, include_terminated, dead, trouble, gpus, part, limit)
        )

    async def host_sizes(self) -> list[HostShape]:
        """Return the whole sizes of the hosts that are present, and of the hosts that pools may
        rent."""
        hosts, pools, seen = await self.session.single(
            lambda tx: tx.many(
                ("host_sizes", None), ("read_pools", {"names": None}), ("seen_memory", None)
            )
        )
        specs = [msgspec.convert(p["spec"], PoolSpec) for p in pools if p["deleted_at"] is None]
        return [
            *(msgspec.convert(row, HostShape) for row in hosts),
            *list_offer_sizes(specs, as_seen(seen)),
        ]

    @transacts
    async def move_host(
        self,
        tx: Tx,
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
        at = await tx.now(now)
        await tx.value("lock_host", id=host_id)
        row = await tx.one("read_host_state", id=host_id, now=None)
        if row is None:
            raise registration.no_host(host_id)
        before = HostState(row["state"])
        state = registration.move_state(row["name"], before, event)
        cause = registration.cause_of(state, scale_down=scale_down)
        await set_host_state(
            tx,
            host_id,
            row["name"],
            before,
            HostEvent(event),
            reason,
            at,
            hard=hard,
            deadline=registration.deadline_of(state, deadline_seconds, at),
            cause=cause,
        )
        if state is HostState.TERMINATED:
            await tx.run("end_key", id=host_id)
            lost = await lose_host_tasks(tx, host_id, "host_gone", at)
            await write_events(
                tx, registration.lost_event(host_id, row["name"], "host_gone", lost), at
            )
        elif hard or (cause is Cause.SCALED_DOWN and deadline_seconds is None):
            await _drain_host_tasks(tx, host_id, row["name"], cause, reason, at)
        return await read_host(tx, host_id)

    @transacts
    async def give_notice(
        self, tx: Tx, host_id: str, reason: str, seconds: float | None, *, now: Now = None
    ) -> list[str] | None:
        """Drain an active host that its provider takes away, and have its tasks save and go at
        once (EVICT-2). seconds: how long they have; None: their grace. Return the jobs that stop;
        None where the host is not active, because it was told before or gets no work anyway."""
        at = await tx.now(now)
        await tx.value("lock_host", id=host_id)
        row = await tx.one("read_host_state", id=host_id, now=None)
        if row is None or row["state"] != HostState.ACTIVE:
            return None
        name, before = row["name"], HostState.ACTIVE
        await set_host_state(tx, host_id, name, before, HostEvent.DRAIN, reason, at)
        m = await _load_host(tx, host_id, at)
        jobs = registration.give_notice(m, host_id, name, reason, seconds)
        await write_moves(tx, m)
        return jobs

    @transacts
    async def revoke_key(self, tx: Tx, host_id: str, reason: str, *, now: Now = None) -> HostRecord:
        """Forget a host's key, so that the host is refused until it joins with a token again; its
        tasks end with their leases. Event host.moved. A terminate by `move_host` includes this.
        Raises NotFound."""
        at = await tx.now(now)
        await tx.value("lock_host", id=host_id)
        row = await tx.one("read_host_state", id=host_id, now=None)
        if row is None:
            raise registration.no_host(host_id)
        await tx.run("forget_key", id=host_id)
        state = HostState(row["state"])
        event = registration.moved_event(
            host_id, row["name"], state, state, "revoke", reason, hard=False
        )
        await write_events(tx, [event], at)
        return await read_host(tx, host_id)

    async def drain_due_hosts(self, *, now: Now = None) -> dict[str, list[str]]:
        """Drain, once and at no charge, the jobs that still run on draining hosts whose deadline
        has come (cause host_drained or scaled_down). Return host id → ids of the drained jobs."""

        async def find(tx: Tx) -> list[str]:
            return [
                row["id"] for row in await tx.rows("find_drain_deadlines", now=await tx.now(now))
            ]

        drained = {}
        for host_id in await self.session.single(find):
            drained[host_id] = await self.session.transact(
                partial(_drain_due_host, host_id=host_id, now=now)
            )
        return drained

    @transacts
    async def sweep_dead_hosts(
        self, tx: Tx, dead_seconds: float, leading_since: datetime, *, now: Now = None
    ) -> list[HostRecord]:
        """Flag, once, hosts with live tasks whose heartbeat is older than `dead_seconds` (and for
        which leading_since + dead_seconds has passed). Each gets an event host.dead. Returns the
        hosts that this call flagged."""
        at = await tx.now(now)
        if leading_since + timedelta(seconds=dead_seconds) >= at:
            return []
        silent_since = at - timedelta(seconds=dead_seconds)
        rows = await tx.rows("flag_dead_hosts", now=at, silent_since=silent_since)
        if not rows:
            return []
        hosts = await read_hosts(tx, sorted(row["host_id"] for row in rows), True, False)
        await write_events(tx, [registration.dead_event(host, at) for host in hosts], at)
        return hosts


async def set_host_state(
    tx: Tx,
    host_id: str,
    name: str,
    before: HostState,
    event: HostEvent,
    reason: str,
    at: datetime,
    *,
    hard: bool = False,
    deadline: datetime | None = None,
    cause: Cause = Cause.HOST_DRAINED,
) -> None:
    """Move a host to its next state, and write that and its event. The machine of a host that is
    terminated is given back. The caller holds the host's lock."""
    after = step(HOST, before, event)
    params = {
        "id": host_id,
        "state": str(after),
        "reason": reason,
        "deadline": deadline,
        "cause": str(cause),
        "now": at,
    }
    await tx.run("move_host", **params)
    if after is HostState.TERMINATED and (rental := await lock_rented(tx, host_id)) is not None:
        await end_instance(tx, rental, reason, at)
    scaled = cause is Cause.SCALED_DOWN
    await write_events(
        tx,
        [
            registration.moved_event(
                host_id, name, before, after, event, reason, hard, scaled=scaled
            )
        ],
        at,
    )


async def lock_rented(tx: Tx, host_id: str) -> RentedHost | None:
    """Lock the instance of a host and return it; None for a host that is not rented. The caller
    holds the host's lock."""
    row = await tx.one("lock_instance", id=host_id)
    return None if row is None else msgspec.convert(row, RentedHost)


async def end_instance(
    tx: Tx, rental: RentedHost, reason: str, at: datetime
) -> InstanceState | None:
    """Write that a machine is not wanted any more, and return the state that follows; None where its
    end is asked for already, or has come. The caller holds the locks of the host and the instance."""
    after = step_unless_late(INSTANCE, rental.state, InstanceEvent.END)
    if after is None or after is rental.state:
        return None
    await tx.run("end_instance", id=rental.host_id, state=str(after), reason=reason, now=at)
    return after


async def lose_host_tasks(
    tx: Tx,
    host_id: str,
    lost: str,
    at: datetime,
    *,
    keep: str | None = None,
    held: Collection[TaskKey] = (),
) -> list[str]:
    """Free every live task of a host at once (LEASE-3), except those of incarnation `keep` and those
    in `held`. Returns the jobs' ids."""
    m = await _load_host(tx, host_id, at, keep=keep)
    freed = registration.lose_tasks_on(m, host_id, lost, keep, held)
    await write_moves(tx, m)
    return freed


async def _drain_due_host(tx: Tx, *, host_id: str, now: datetime | None) -> list[str]:
    at = await tx.now(now)
    await tx.value("lock_host", id=host_id)
    causes = {
        row["id"]: Cause(row["drain_cause"])
        for row in await tx.rows("find_drain_deadlines", now=at)
    }
    if host_id not in causes:
        return []
    await tx.run("clear_drain_deadline", id=host_id)
    row = await tx.one("read_host_state", id=host_id, now=None)
    name = host_id if row is None else row["name"]
    m = await _load_host(tx, host_id, at)
    begun = registration.drain_jobs_for(
        m, causes[host_id], registration.deadline_reason(name, causes[host_id]), host_id, stop=False
    )
    await write_moves(tx, m)
    return begun


async def _drain_host_tasks(
    tx: Tx, host_id: str, name: str, cause: Cause, reason: str, at: datetime
) -> None:
    m = await _load_host(tx, host_id, at)
    registration.stop_work(m, host_id, name, cause, reason)
    await write_moves(tx, m)


async def _load_host(tx: Tx, host_id: str, at: datetime, *, keep: str | None = None) -> Moves:
    """Load the jobs with live tasks on a host, except those of incarnation `keep` alone."""
    rows = await tx.rows("jobs_on_host", id=host_id, incarnation=keep)
    return await load_moves(tx, [row["job_id"] for row in rows], at)


def _host_params(
    host_id: str,
    key_hash: bytes | None,
    facts: HostFacts,
    state: HostState,
    faults: Sequence[Hindrance],
    at: datetime,
) -> dict[str, Any]:
    return {
        **msgspec.structs.asdict(facts),
        "id": host_id,
        "key_hash": key_hash,
        "state": str(state),
        "reason": registration.register_reason(state),
        "labels": to_json(facts.labels),
        "gpus": to_json(facts.gpus),
        "address": facts.address.replace("\x00", ""),
        "boot_id": facts.boot_id.replace("\x00", ""),
        "version": facts.version.replace("\x00", ""),
        "faults": to_json(list(faults)),
        "now": at,
    }


async def write_faults(
    tx: Tx,
    host_id: str,
    name: str,
    before: Sequence[Hindrance],
    after: Sequence[Hindrance],
    at: datetime,
) -> None:
    """Write the faults that a host reports, and their event. The caller holds the host's lock."""
    await tx.run("put_faults", id=host_id, faults=to_json(after))
    await write_events(tx, registration.faults_event(host_id, name, before, after), at)


async def quarantine_host(tx: Tx, host_id: str, reason: str, at: datetime) -> None:
    """Take a host out of service on a task's evidence, where its state allows it. The caller holds
    the host's lock."""
    row = await tx.one("read_host_state", id=host_id, now=None)
    event = HostEvent.QUARANTINE
    if row is None or step_unless_late(HOST, HostState(row["state"]), event) is None:
        return
    await set_host_state(tx, host_id, row["name"], HostState(row["state"]), event, reason, at)


async def retire_host(tx: Tx, sync: HostSync, name: str, at: datetime) -> list[str]:
    """Terminate a host whose agent says goodbye, unless the goodbye leaves out ends of tasks;
    return the jobs that drain because of it. The host's state is read again, because a report of
    the same sync may have quarantined it."""
    host_id = sync.host_id
    row = await tx.one("read_host_state", id=host_id, now=None)
    before = HostState.TERMINATED if row is None else HostState(row["state"])
    if before is HostState.TERMINATED:
        return []
    m = await _load_host(tx, host_id, at)
    if registration.is_unheard(m, sync):
        return []
    await set_host_state(tx, host_id, name, before, HostEvent.TERMINATE, "its agent left", at)
    lost = registration.lose_tasks_on(m, host_id, "host_gone", None)
    await write_moves(tx, m)
    await write_events(tx, registration.lost_event(host_id, name, "host_gone", lost), at)
    return lost


async def read_hosts(
    tx: Tx,
    ids: list[str] | None,
    include_terminated: bool,
    dead: bool = False,
    trouble: bool = False,
    gpus: bool = False,
    part: str | None = None,
    limit: int | None = None,
) -> list[HostRecord]:
    """Return host records by name."""
    params = {
        "ids": ids, "include_terminated": include_terminated, "dead": dead, "trouble": trouble,
        "gpus": gpus, "part": part, "limit": limit
    }  # fmt: skip
    return await tx.list_of(HostRecord, "read_hosts", **params)


async def read_host(tx: Tx, host_id: str) -> HostRecord:
    """Return one host's record. Raises NotFound."""
    found = await read_hosts(tx, [host_id], True, False)
    if not found:
        raise registration.no_host(host_id)
    return found[0]
