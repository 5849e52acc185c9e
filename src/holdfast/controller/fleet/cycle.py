"""One cycle of one pool: list its machines, compare them with the record, read the demand, decide,
carry the actions out, record the result.

A decision is carried out action by action, each under the store's guard. A provider is never called
inside a transaction, and no pool waits for another one's provider, except a moment for its prices
(PRICE-1).

EVICT-2  A machine that its provider is about to take away gets no more work, and its tasks save
          and go with the provider's notice (EVICT-1), less the time for the upload.
CYCLE-3  A pool's hosts are never judged silent by a silence of the controller itself (LEAD-4).
"""

import asyncio
import logging
from collections.abc import Collection, Mapping
from datetime import datetime

import msgspec

from holdfast.controller.fleet.prices import find_rivals, hear_prices
from holdfast.controller.fleet.rentals import Rentals
from holdfast.controller.runtime.auth import make_new_id
from holdfast.controller.runtime.context import Controller
from holdfast.controller.runtime.settings import Settings
from holdfast.core.fleet import actions
from holdfast.core.fleet.breaker import BREAKER_WINDOW_SECONDS
from holdfast.core.fleet.cycle import plan_fleet
from holdfast.core.fleet.demand import cap_waiting
from holdfast.core.fleet.faults import HostFault, find_gone_fault, split_notice
from holdfast.core.fleet.grow import say_mute
from holdfast.core.fleet.instances import Machine
from holdfast.core.fleet.leaks import Findings, read_listing
from holdfast.core.fleet.records import PoolMoney, PoolRecord
from holdfast.core.fleet.snapshot import FleetHost, FleetSnapshot, PoolView
from holdfast.core.states import HostState, InstanceEvent, InstanceState
from holdfast.errors import HoldfastError
from holdfast.moves.fleet.pools import seconds_until
from holdfast.moves.jobs.moves import LIVE_JOB_STATES
from holdfast.providers.interface import Provider, ProviderDown, Throttled
from holdfast.store.postgres.fleet.instances import SEEN_SECONDS

log = logging.getLogger("holdfast.fleet")
LIST_SECONDS = 120.0
_INTENDED = InstanceState.INTENDED


class PoolCycles:
    """The cycles of one pool, one at a time."""

    def __init__(self, controller: Controller, name: str) -> None:
        self._controller = controller
        self._name = name
        self._lock = asyncio.Lock()
        self._opened: tuple[bytes, Provider] | None = None
        self._sightings: dict[str, int] = {}
        self.rentals = Rentals(controller, name)

    async def run(self, pool: PoolRecord, *, listing: bool = True) -> actions.CycleSummary:
        """Run one cycle and return its summary. Calls to the provider go on after the cycle."""
        async with self._lock:
            return await self._run(pool, listing=listing)

    async def plan(self, pool: PoolRecord) -> actions.PoolPlan:
        """Return the actions that a cycle would take now. Nothing is changed."""
        async with self._lock:
            try:
                provider = await self._open(pool)
                machines = await self._list(provider)
            except HoldfastError as error:
                return self._give_up(await self._controller.store.now(), error, dry_run=True)
            snapshot = await self._read()
            findings = await self._compare(snapshot, machines)
            plan = await self._decide(snapshot, findings)
            summary = msgspec.structs.replace(plan.summary, dry_run=True)
            return msgspec.structs.replace(plan, summary=summary)

    async def close(self) -> None:
        """Cancel the calls in progress and close the provider."""
        await self.rentals.close()
        opened, self._opened = self._opened, None
        if opened is not None:
            await opened[1].close()

    async def _run(self, pool: PoolRecord, *, listing: bool) -> actions.CycleSummary:
        controller, store = self._controller, self._controller.store.fleet
        quiet = seconds_until(await controller.store.now(), pool.quiet_until) > 0
        try:
            provider = await self._open(pool)
        except HoldfastError as error:
            plan = self._give_up(await controller.store.now(), error)
            await store.record_cycle(plan.summary, plan.blocked)
            return plan.summary
        polled, listing = listing, (listing or self.rentals.unsure) and not quiet
        self.rentals.unsure = False
        notes: list[str] = []
        failed = 0
        findings = machines = None
        if listing:
            try:
                machines = await self._list(provider)
                controller.unheard.pop(self._name, None)
            except HoldfastError as error:
                controller.unheard[self._name] = error.message
                notes.append(f"its machines cannot be listed, so none is judged: {error.message}")
                if isinstance(error, Throttled):
                    await self.rentals.be_quiet(error)
        # The record is read after the listing, so that a machine that was made meanwhile is at worst
        # missing once, and never unknown.
        snapshot = await self._read()
        if machines is not None:
            findings = await self._compare(snapshot, machines)
            failed = await self._follow(provider, snapshot, findings, notes)
            if notes:
                snapshot = await self._read()
        plan = await self._decide(snapshot, findings)
        view = self._view(snapshot)
        count = view.paid
        done = []
        for action in plan.actions:
            if await self._carry_out(action, count):
                done.append(action)
                count += action.count if isinstance(action, actions.Spawn) else 0
        due = (_INTENDED, InstanceState.ENDING)
        if not quiet and (done or any(host.instance in due for host, _ in view.shapes)):
            installation = await store.installation()
            found = await store.list_instances(pool.name, states=due)
            self.rentals.pursue(provider, pool.spec, installation, found)
        summary = _summarize(plan.summary, len(plan.actions) - len(done), failed, notes)
        if polled or listing or done or failed:
            held = "" if pool.deleted_at is not None else plan.blocked
            await store.record_cycle(summary, say_mute(view) or held)
        controller.metrics.fleet.note_cycle(summary)
        controller.metrics.fleet.note_money(_read_money(view))
        if done or failed:
            controller.poke("admit", "drain", "events")
        if pool.deleted_at is not None and await store.forget_pool(pool.name):
            log.info("pool %s is gone", pool.name)
            controller.metrics.fleet.forget(pool.name)
            controller.unheard.pop(pool.name, None)
        return summary

    def _give_up(
        self, at: datetime, error: HoldfastError, *, dry_run: bool = False
    ) -> actions.PoolPlan:
        log.error("pool %s: no decision: %s", self._name, error.message)
        if not dry_run:
            self._controller.unheard[self._name] = error.message
        self._controller.metrics.fleet.cycle_failures.labels(self._name).inc()
        summary = actions.CycleSummary(
            timestamp=at, pool=self._name, error=error.message, dry_run=dry_run
        )
        blocked = f"pool {self._name} decides nothing: {error.message}"
        return actions.PoolPlan(pool=self._name, actions=(), summary=summary, blocked=blocked)

    async def _open(self, pool: PoolRecord) -> Provider:
        key = msgspec.json.encode((pool.spec.provider, pool.spec.config), order="sorted")
        if self._opened is not None and self._opened[0] == key:
            return self._opened[1]
        installation = await self._controller.store.fleet.installation()
        provider = self._controller.open_provider(
            pool.spec.provider, pool.spec.config, installation
        )
        before, self._opened = self._opened, (key, provider)
        self.rentals.unsure = True  # nothing is known yet of another account or place
        if before is not None:
            await before[1].close()
        return provider

    async def _list(self, provider: Provider) -> tuple[Machine, ...]:
        try:
            async with asyncio.timeout(LIST_SECONDS):
                machines = await provider.list_machines()
        except TimeoutError:
            raise ProviderDown(f"its list did not end within {LIST_SECONDS:g} s") from None
        except HoldfastError:
            raise
        except Exception as error:  # a provider may fail in any way
            log.exception("pool %s: its machines cannot be listed", self._name)
            raise ProviderDown(f"{type(error).__name__}: {error}") from error
        # One account may serve several pools; this cycle judges only its own pool's machines.
        return tuple(machine for machine in machines if machine.pool in ("", self._name))

    async def _read(self) -> FleetSnapshot:
        settings = await self._controller.settings.current()
        snapshot = await self._controller.store.fleet.read_snapshot(
            outcome_seconds=BREAKER_WINDOW_SECONDS, grace_seconds=settings.number("grace_seconds")
        )
        unheard = self._controller.unheard
        pools = tuple(
            msgspec.structs.replace(view, unheard=unheard[view.spec.name])
            if view.spec.name in unheard
            else view
            for view in snapshot.pools
        )
        return msgspec.structs.replace(
            snapshot,
            pools=pools,
            silence_seconds=settings.silence_seconds,
            dead_seconds=settings.number("dead_host_seconds"),
        )

    def _view(self, snapshot: FleetSnapshot) -> PoolView:
        return next(view for view in snapshot.pools if view.spec.name == self._name)

    async def _compare(self, snapshot: FleetSnapshot, machines: tuple[Machine, ...]) -> Findings:
        """Compare the provider's listing with the record."""
        intents = {machine.intent for machine in machines}
        # A machine without its pool's name may belong to another pool.
        hosts = [
            host
            for view in snapshot.pools
            for host in view.hosts
            if view.spec.name == self._name or host.host_id in intents
        ]
        findings = await asyncio.to_thread(read_listing, hosts, machines, self._sightings)
        known = {host.host_id for host in hosts if host.is_paid}
        self._sightings = {
            m.ref: self._sightings.get(m.ref, 0) + 1 for m in machines if m.intent not in known
        }
        return findings

    async def _follow(
        self, provider: Provider, snapshot: FleetSnapshot, findings: Findings, notes: list[str]
    ) -> int:
        """Record the findings of a listing, and end machines that no record asks for. Returns how
        many hosts it put in error."""
        store = self._controller.store.fleet
        notes += [f"unknown: {reason}" for reason in findings.unknown]
        for host_id, ref in findings.adopted.items():
            if await store.note_made(host_id, ref) is not None:
                notes.append(
                    f"the machine {ref} was found: the call that made it was never answered"
                )
        hosts = {host.host_id: host for view in snapshot.pools for host in view.hosts}
        await store.note_words(
            {i: words for i, words in findings.said.items() if hosts[i].said != words},
            {i: word for i, word in findings.words.items() if hosts[i].lost != word},
        )
        await self._give_notices(findings, hosts, notes)
        stale = [
            host.host_id
            for view in snapshot.pools
            for host in view.hosts
            if _is_sight_due(host) and host.host_id in findings.seen
        ]
        if stale or findings.missing:
            await store.note_listing(stale, findings.missing)
        missing = _count_made(snapshot, findings.missing)
        if missing:
            are = "machine is" if missing == 1 else "machines are"
            notes.append(f"{missing} {are} in no listing, which is not believed yet")
        failed = 0
        for host_id, why in findings.gone.items():
            fault = find_gone_fault(findings.words.get(host_id) or hosts[host_id].lost)
            wanted = await self._note_gone(host_id, InstanceEvent.VANISH, why, fault)
            if wanted is not None:
                failed += not wanted
                notes.append(f"the machine of {hosts[host_id].name} is gone: {why}")
        for host_id in findings.missed:
            why = "no listing shows a machine for it, long after its provider was asked"
            why += f", which says: {hosts[host_id].said}" if hosts[host_id].said else ""
            fault = HostFault.NO_INSTANCE_ID
            wanted = await self._note_gone(host_id, InstanceEvent.MISS, why, fault)
            if wanted is not None:
                failed += not wanted
                notes.append(f"the machine of {hosts[host_id].name} never came: {why}")
        for ref, why in findings.reap.items():
            notes.append(f"the machine {ref} is ended: {why}")
            log.warning("pool %s: machine %s is ended: %s", self._name, ref, why)
            self._controller.metrics.fleet.reaped.labels(self._name).inc()
            self.rentals.end_machine(provider, ref)
        return failed

    async def _give_notices(
        self, findings: Findings, hosts: Mapping[str, FleetHost], notes: list[str]
    ) -> None:
        """Have the tasks of machines that their provider takes away save and go (EVICT-2)."""
        controller = self._controller
        for host_id, machine in findings.notices.items():
            if hosts[host_id].state is not HostState.ACTIVE:
                continue
            left = None
            if machine.leaves_at is not None:
                now = await controller.store.now()
                left = max(0.0, (machine.leaves_at - now).total_seconds())
            when = "" if left is None else f" in {left:.0f} s"
            why = f"its provider takes it away{when}"
            why += f": {machine.reason}" if machine.reason else ""
            seconds = split_notice(left)
            if await controller.store.hosts.give_notice(host_id, why, seconds) is not None:
                notes.append(f"notice {host_id}: {why}")
                controller.poke("drain", "events", "members", f"host:{host_id}")

    async def _note_gone(
        self, host_id: str, event: InstanceEvent, why: str, fault: HostFault
    ) -> bool | None:
        """Record that a machine is gone. Returns whether its end was wanted; None where the record
        did not change."""
        store = self._controller.store.fleet
        before = (await store.find_instances([host_id])).get(host_id)
        if before is None or not await store.note_gone(host_id, event, why, fault=fault):
            return None
        self._controller.guard.forget()
        return before.state is InstanceState.ENDING

    async def _decide(self, snapshot: FleetSnapshot, findings: Findings | None) -> actions.PoolPlan:
        controller = self._controller
        snapshot = await self._cap_demand(snapshot, await controller.settings.current())
        snapshot = _overlay(snapshot, self._name, findings, controller.leadership.hears_since)
        mine = self._view(snapshot)
        plans = await self._plan(snapshot)
        rivals = find_rivals(snapshot, mine)
        # Prices matter where hosts are wanted: here, or in a pool that competes with this one.
        names = {self._name, *(rival.name for rival in rivals)}
        wanted = any(name in names and _wants_hosts(plan) for name, plan in plans.items())
        if wanted and not say_mute(mine) and await hear_prices(controller, mine.spec, rivals):
            plans = await self._plan(snapshot)
        return plans[self._name]

    async def _plan(self, snapshot: FleetSnapshot) -> dict[str, actions.PoolPlan]:
        # In a thread, because the event loop answers syncs, and a plan may spawn 10,000 hosts.
        plans = await asyncio.to_thread(plan_fleet, snapshot, dict(self._controller.prices.known))
        return {plan.pool: plan for plan in plans}

    async def _cap_demand(self, snapshot: FleetSnapshot, settings: Settings) -> FleetSnapshot:
        """Leave out the jobs that may not run now because of their queues' `max_running` or their
        projects' quotas."""
        limits = {
            waiting.queue: limit
            for waiting in snapshot.waiting
            if isinstance(limit := settings.value("max_running", waiting.queue), int)
        }
        if not limits and not snapshot.quotas:
            return snapshot
        counts = await self._controller.store.jobs.count_jobs()
        live = {
            queue: sum(counts.get((queue, state), 0) for state in LIVE_JOB_STATES)
            for queue in limits
        }
        headroom = {queue: max(0, limit - live[queue]) for queue, limit in limits.items()}
        waiting = cap_waiting(snapshot.waiting, headroom, snapshot.quotas)
        return msgspec.structs.replace(snapshot, waiting=waiting)

    async def _carry_out(self, action: actions.Action, machines: int) -> bool:
        """Apply one action under its guard. Returns False where another change came first."""
        controller, store = self._controller, self._controller.store.fleet
        metrics = controller.metrics.fleet
        if isinstance(action, actions.Promote):
            seconds = await store.promote_host(action.host_id, action.reason)
            if seconds is not None:
                metrics.spawn_seconds.labels(self._name).observe(seconds)
            return seconds is not None
        if isinstance(action, actions.FailHost):
            if not await store.fail_host(action.host_id, action.fault, action.reason):
                return False
            metrics.failed.labels(self._name, str(action.fault)).inc()
            log.error("host %s: %s", action.host_id, action.reason, extra={"host": action.host_id})
            controller.poke(f"host:{action.host_id}")
            return True
        if isinstance(action, actions.FreeHost):
            freed = await store.free_host(action.host_id, action.reason)
            controller.guard.forget()
            return freed is not None
        if isinstance(action, actions.EndMachine):
            return await store.want_end(action.host_id, action.reason) is not None
        if isinstance(action, actions.DrainHost):
            done = await store.drain_if_idle(
                action.host_id, action.leases, action.grace_seconds, action.reason
            )
            return done
        if isinstance(action, actions.Spawn):
            return await self._intend(action, machines)
        log.warning("host %s: %s", action.host_id, action.reason, extra={"host": action.host_id})
        return True

    async def _intend(self, spawn: actions.Spawn, machines: int) -> bool:
        store = self._controller.store.fleet
        spec = (await store.get_pool(self._name)).spec
        offer = spec.offer(spawn.offer)
        if offer is None:
            return False
        told = self._controller.prices.known.get(self._name, {})
        offer = msgspec.structs.replace(
            offer, usd_per_hour=told.get(offer.name, offer.usd_per_hour)
        )
        ids = [make_new_id() for _ in range(spawn.count)]
        return bool(
            await store.intend(self._name, offer, ids, spawn.reason, open_machines=machines)
        )


def _count_made(snapshot: FleetSnapshot, host_ids: Collection[str]) -> int:
    """Return how many of these hosts have a machine meant to serve."""
    made = InstanceState.MADE
    hosts = (host for view in snapshot.pools for host in view.hosts if host.instance is made)
    return sum(host.host_id in host_ids for host in hosts) if host_ids else 0


def _wants_hosts(plan: actions.PoolPlan) -> bool:
    return bool(plan.blocked) or any(isinstance(each, actions.Spawn) for each in plan.actions)


def _summarize(
    summary: actions.CycleSummary, refused: int, failed: int, notes: list[str]
) -> actions.CycleSummary:
    """Return the summary with the listing's effects and the actions that came too late."""
    actions = summary.actions
    if failed:
        actions = msgspec.structs.replace(actions, hosts_failed=actions.hosts_failed + failed)
    late = [f"{refused} of these came too late, and changed nothing"] if refused else []
    reasons = (*notes, *summary.reasons, *late)
    return msgspec.structs.replace(summary, actions=actions, reasons=reasons)


def _read_money(view: PoolView) -> PoolMoney:
    """Return the cost of the pool; a machine that its provider never named costs nothing."""
    made = [host for host in view.hosts if host.is_paid and host.ref is not None]
    return PoolMoney(
        pool=view.spec.name,
        usd_per_hour=sum(host.usd_per_hour for host in made),
        spent_today_usd=view.spent_today_usd,
    )


def _is_sight_due(host: FleetHost) -> bool:
    """Return whether the record of when a listing last showed the host's machine is old enough to
    be written anew (`note_listing`)."""
    if host.instance is not InstanceState.MADE or host.misses or host.seen_seconds is None:
        return True
    return host.seen_seconds >= SEEN_SECONDS


def _overlay(
    snapshot: FleetSnapshot, pool: str, findings: Findings | None, since: datetime | None
) -> FleetSnapshot:
    """Return the snapshot with the findings of the listing, and with no host silent for longer than
    this controller has been able to hear hosts (CYCLE-3). since: the time from which it could."""
    heard = None if since is None else max(0.0, (snapshot.at - since).total_seconds())
    return msgspec.structs.replace(
        snapshot,
        pools=tuple(
            _overlay_pool(view, findings if view.spec.name == pool else None, heard)
            for view in snapshot.pools
        ),
    )


def _overlay_pool(view: PoolView, findings: Findings | None, heard: float | None) -> PoolView:
    hosts = view.hosts
    if heard is not None:
        # For a serving host, only silence while the controller could hear it counts.
        hosts = tuple(
            _hear(host, heard)
            if host.state is not HostState.ACTIVE or (host.heartbeat_seconds or 0.0) > heard
            else host
            for host in hosts
        )
    if findings is not None:
        ends = findings.gone | findings.lost
        hosts = tuple(
            _show(host, findings, ends)
            if host.host_id in ends or host.state is HostState.SPAWNING
            else host
            for host in hosts
        )
    return view if hosts is view.hosts else msgspec.structs.replace(view, hosts=hosts)


def _hear(host: FleetHost, heard: float) -> FleetHost:
    silent = host.heartbeat_seconds
    return msgspec.structs.replace(
        host,
        heartbeat_seconds=None if silent is None else min(silent, heard),
        state_seconds=min(host.state_seconds, heard),
        intent_seconds=min(host.intent_seconds, heard),
    )


def _show(host: FleetHost, findings: Findings, ends: Mapping[str, str]) -> FleetHost:
    machine = findings.seen.get(host.host_id)
    gone = host.gone or ends.get(host.host_id, "")
    said = findings.said.get(host.host_id, host.said)
    lost = findings.words.get(host.host_id, host.lost)
    return msgspec.structs.replace(host, machine=machine, gone=gone, said=said, lost=lost)
