"""A pool's world without a network: a scripted provider, agents that call when they are told to, a
clock, and controllers that can be killed between any two steps."""

from __future__ import annotations

import asyncio
import inspect
import itertools
from collections.abc import Callable, Collection, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from holdfast.controller.fleet.cycle import PoolCycles
from holdfast.controller.runtime.auth import hash_secret
from holdfast.controller.runtime.context import Controller
from holdfast.controller.sync.route import LIVE_SECONDS
from holdfast.core.fleet.actions import CycleSummary
from holdfast.core.fleet.instances import CreateOrder, Machine, MachineState, Offer, Quote
from holdfast.core.fleet.pools import HostChecks, PoolSpec
from holdfast.core.gpus import Gpu
from holdfast.core.states import HostState, InstanceState
from holdfast.errors import Forbidden
from holdfast.moves.values import HostSync, HostSynced
from holdfast.store.postgres.store import PostgresStore
from holdfast.wire.agent import HostFacts, RegisterRequest
from tests.simulated.blobs import MemoryBlobs
from tests.store.pg_fixture import MakeStore

START = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
GPU = Offer(name="gpu", gpus=1, cpu_slots=2, usd_per_hour=1.0)
# These agents measure nothing: they serve on their word.
POOL = PoolSpec(
    name="p",
    provider="scripted",
    offers=(GPU,),
    min=1,
    max=4,
    poll_seconds=30.0,
    rent_after_seconds=None,
    checks=HostChecks(enabled=False),
)


class Killed(BaseException):
    """The controller was killed here."""


class ScriptedProvider:
    """Machines in memory. `create_errors`: raised by the next calls, in order; with `after` the
    machine is made all the same, as where an answer is lost."""

    kind = "scripted"
    tells_prices = True

    def __init__(self) -> None:
        self.machines: dict[str, Machine] = {}
        self.orders: dict[str, CreateOrder] = {}
        self.create_errors: list[tuple[Exception, bool]] = []
        self.list_error: Exception | None = None
        self.quote_error: Exception | None = None
        self.quote_gates: dict[str, asyncio.Event] = {}  # by offer: the answer waits for it
        self.price: float | None = None
        self.prices: dict[str, float] = {}  # by offer, before `price`
        self.hidden: set[str] = set()
        self.calls: list[str] = []
        self._numbers = itertools.count(1)

    @property
    def alive(self) -> list[Machine]:
        return [m for m in self.machines.values() if m.state is not MachineState.GONE]

    async def quote(self, offers: tuple[Offer, ...]) -> tuple[Quote, ...]:
        self.calls.append("quote")
        for gate in (self.quote_gates.get(offer.name) for offer in offers):
            if gate is not None:
                await gate.wait()
        if self.quote_error is not None:
            raise self.quote_error
        return tuple(
            Quote(offer=offer.name, usd_per_hour=self.prices.get(offer.name, self.price))
            for offer in offers
        )

    async def create(self, order: CreateOrder) -> Machine:
        self.calls.append(f"create {order.intent}")
        error, after = self.create_errors.pop(0) if self.create_errors else (None, False)
        if error is not None and not after:
            raise error
        ref = f"m-{next(self._numbers)}"
        self.orders[ref] = order
        machine = self.machines[ref] = Machine(
            ref=ref, intent=order.intent, pool=order.pool, name=order.name,
            state=MachineState.RUNNING,
        )  # fmt: skip
        if error is not None:
            raise error
        return machine

    async def list_machines(self) -> tuple[Machine, ...]:
        self.calls.append("list")
        if self.list_error is not None:
            raise self.list_error
        return tuple(m for m in self.machines.values() if m.ref not in self.hidden)

    async def get_machine(self, ref: str) -> Machine | None:
        return self.machines.get(ref)

    async def terminate(self, ref: str) -> None:
        self.calls.append(f"terminate {ref}")
        if ref in self.machines:
            self.end(ref)

    async def close(self) -> None:
        pass

    def end(self, ref: str, reason: str = "ended") -> None:
        gone = MachineState.GONE
        self.machines[ref] = msgspec.structs.replace(self.machines[ref], state=gone, reason=reason)


class Steps:
    """Counts the boundaries of steps, and kills at one of them."""

    def __init__(self, kill_at: int | None = None) -> None:
        self.passed: list[str] = []
        self.kill_at = kill_at

    def pass_by(self, what: str) -> None:
        if self.kill_at is not None and len(self.passed) == self.kill_at:
            raise Killed(what)
        self.passed.append(what)


class Stepped:
    """An object whose asynchronous methods have a boundary before and after each of their calls."""

    def __init__(self, inner: Any, steps: Steps, names: Collection[str]) -> None:
        self._inner, self._steps, self._names = inner, steps, names

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if name not in self._names or not inspect.iscoroutinefunction(found):
            return found

        async def call(*args: Any, **named: Any) -> Any:
            self._steps.pass_by(f"before {name}")
            try:
                return await found(*args, **named)
            finally:
                self._steps.pass_by(f"after {name}")

        return call


STORE_STEPS = (
    "intend", "ask", "note_made", "note_denied", "note_listing", "note_gone", "promote_host",
    "fail_host", "drain_if_idle", "want_end", "note_end_asked", "free_host", "record_cycle",
    "forget_pool",
)  # fmt: skip
PROVIDER_STEPS = ("create", "terminate", "list_machines")


class World:
    """One store, one provider, and the controller of the moment."""

    def __init__(self, spec: PoolSpec) -> None:
        self.now = START
        self.store: PostgresStore
        self.provider = ScriptedProvider()
        self.spec = spec
        self.keys: dict[str, str] = {}
        self.dead: set[str] = set()
        self.controller: Controller
        self.cycles: PoolCycles

    def start(self, steps: Steps | None = None) -> None:
        """A new controller on the same store and provider; the one before is simply no more."""
        store, provider = self.store, self.provider
        if steps is not None:
            store = _with_fleet(store, Stepped(store.fleet, steps, STORE_STEPS))
            provider = Stepped(provider, steps, PROVIDER_STEPS)  # type: ignore[assignment]  # acts as one

        def open_provider(kind: str, config: Mapping[str, Any], installation: str) -> Any:
            return provider

        self.controller = Controller(
            store,
            clock=lambda: self.now.timestamp(),
            open_provider=open_provider,
            blobs=MemoryBlobs(),
        )
        self.controller.url = "http://controller"
        self.controller.leadership.begin(START)
        self.cycles = PoolCycles(self.controller, self.spec.name)

    async def make_pool(self) -> None:
        await self.store.fleet.put_pool(self.spec, now=self.now)

    def tick(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)

    async def cycle(self, seconds: float = 30.0) -> CycleSummary:
        """One poll later: the agents have called, a cycle runs, its calls end."""
        self.tick(seconds)
        await self.let_agents_call()
        summary = await self.cycles.run(await self.store.fleet.get_pool(self.spec.name))
        await self.settle()
        return summary

    async def settle(self) -> None:
        """Wait for the calls under way; a kill in one of them kills the controller."""
        calls = list(self.cycles.rentals._calls.values())
        for found in await asyncio.gather(*calls, return_exceptions=True):
            if isinstance(found, Killed):
                raise found

    async def let_agents_call(self) -> None:
        """Every machine that lives has an agent: it joins with its token, then it syncs."""
        for machine in self.provider.alive:
            if machine.ref in self.dead or machine.ref not in self.provider.orders:
                continue
            order = self.provider.orders[machine.ref]
            if machine.ref not in self.keys:
                await self.join(machine.ref, order)
            else:
                await self.sync(order.intent, machine.ref)

    async def join(self, ref: str, order: CreateOrder) -> None:
        facts = HostFacts(
            name=f"box-{ref}", cpu_slots=2, memory_bytes=1 << 33, gpus=[Gpu(index=0)],
        )  # fmt: skip
        request = RegisterRequest(incarnation=f"incarnation-{ref}", facts=facts, claim=ref)
        digest = hash_secret(order.env["HOLDFAST_JOIN_TOKEN"])
        try:
            _, self.keys[ref] = await self.controller.joins.join(digest, request, LIVE_SECONDS)
        except Forbidden:
            self.dead.add(ref)  # it was given up before it called

    async def sync(self, host_id: str, ref: str, **more: Any) -> HostSynced:
        wanted = HostSync(host_id=host_id, incarnation=f"incarnation-{ref}", **more)
        return (await self.store.leases.sync_hosts([wanted], now=self.now))[0]

    async def active(self) -> list[str]:
        hosts = await self.store.hosts.list_hosts()
        return [host.id for host in hosts if host.state is HostState.ACTIVE]

    async def open_instances(self) -> list[tuple[str, InstanceState]]:
        return [(i.host_id, i.state) for i in await self.store.fleet.list_instances()]

    async def until(self, reached: Callable[[], Any], cycles: int = 40) -> None:
        """Cycle until it is so."""
        for _ in range(cycles):
            await self.cycle()
            if await reached():
                return
        raise AssertionError(f"not so after {cycles} cycles: {await self.open_instances()}")


def _with_fleet(store: PostgresStore, fleet: Any) -> PostgresStore:
    """The same store, with another face of its port `fleet`."""
    face: Any = object.__new__(type(store))
    face.__dict__.update(store.__dict__, fleet=fleet)
    found: PostgresStore = face
    return found


async def make_world(make_store: MakeStore, spec: PoolSpec = POOL) -> World:
    """Return a world of its own, whose store is told its time."""
    world = World(spec)
    world.store = await make_store(clock=lambda: world.now)
    world.start()
    return world
