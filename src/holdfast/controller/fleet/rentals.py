"""Calls to one pool's provider: they make the machines that the record intends, and end those that
it wants ended.

RENT-7  A provider is asked for a machine only after the request is on record (`ask`), and by one
        caller alone, because the record accepts the request once. A controller that dies after that
        leaves a request without an answer, which the listing answers (LEAK-1).
RENT-8  A machine whose end is wanted is asked to end again and again, until a listing confirms its
        end.
"""

import asyncio
import logging
import re
from collections.abc import Coroutine, Iterable
from datetime import timedelta
from typing import Any

from holdfast.controller.runtime.auth import hash_secret, make_new_id, make_secret
from holdfast.controller.runtime.context import Controller
from holdfast.core.fleet.instances import CreateOrder, Machine, MachineState
from holdfast.core.fleet.pools import PoolSpec
from holdfast.core.fleet.records import InstanceRecord
from holdfast.core.states import HostState, InstanceState
from holdfast.errors import HoldfastError, Unavailable
from holdfast.providers.interface import NoCapacity, Provider, Refused, Throttled

log = logging.getLogger("holdfast.fleet")
MOST_AT_ONCE = 10
CALL_SECONDS = 600.0
"""The time limit of one call to a provider, above every limit that a provider keeps by itself
(RENT-5)."""
END_AGAIN_SECONDS = 15.0
LEAST_TOKEN_SECONDS = 3600.0


class Rentals:
    """The calls to one pool's provider that are in progress. They outlive the cycle that began
    them."""

    def __init__(self, controller: Controller, pool: str) -> None:
        self._controller = controller
        self._pool = pool
        self._gate = asyncio.Semaphore(MOST_AT_ONCE)
        self._ends = asyncio.Semaphore(MOST_AT_ONCE)
        self._calls: dict[str, asyncio.Task[None]] = {}
        self.unsure = False  # True after a call with unknown outcome: the next cycle lists first

    def pursue(
        self, provider: Provider, spec: PoolSpec, installation: str, found: Iterable[InstanceRecord]
    ) -> None:
        """Start a call for each machine that the record wants made or ended and that no call is
        working on."""
        self._calls = {key: call for key, call in self._calls.items() if not call.done()}
        for instance in found:
            if instance.state is InstanceState.INTENDED:
                if instance.host_state is HostState.SPAWNING:
                    work = self._make(provider, spec, installation, instance)
                    self._start(f"make {instance.host_id}", work)
            elif instance.state is InstanceState.ENDING and instance.ref is not None:
                asked, now = instance.end_asked_at, instance.seen_at
                again = timedelta(seconds=END_AGAIN_SECONDS)
                if asked is None or (now is not None and now - asked >= again):
                    self.end_machine(provider, instance.ref, instance.host_id)

    def end_machine(self, provider: Provider, ref: str, host_id: str | None = None) -> None:
        """Ask the provider to end a machine, whether it is on record or not."""
        self._start(f"end {ref}", self._end(provider, ref, host_id))

    async def wait_for_calls(self) -> None:
        """Wait until no call to the provider is in progress."""
        while any(not call.done() for call in self._calls.values()):
            await asyncio.gather(*self._calls.values(), return_exceptions=True)

    async def close(self) -> None:
        """Cancel the calls in progress. Whether they took effect is unknown; a listing will show
        it."""
        for call in self._calls.values():
            call.cancel()
        await asyncio.gather(*self._calls.values(), return_exceptions=True)
        self._calls = {}

    def _start(self, key: str, work: Coroutine[Any, Any, None]) -> None:
        if key in self._calls and not self._calls[key].done():
            work.close()
            return
        self._calls[key] = asyncio.create_task(self._guard(key, work), name=f"{self._pool}: {key}")

    async def _guard(self, key: str, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except Throttled as error:
            await self.be_quiet(error)
        except Unavailable as error:
            self.unsure = True
            log.warning("pool %s: %s: %s", self._pool, key, error.message)
        except HoldfastError as error:
            log.error("pool %s: %s: %s", self._pool, key, error.message)
        except Exception:
            self.unsure = True
            log.exception("pool %s: %s failed", self._pool, key)

    async def be_quiet(self, error: Throttled) -> None:
        """Record that the provider asks for patience: it gets no calls until that time is over."""
        store, name = self._controller.store.fleet, self._pool
        log.warning("pool %s: quiet for %g s: %s", name, error.retry_seconds, error.message)
        await store.note_throttled(name, error.retry_seconds, error.message)

    async def _make(
        self, provider: Provider, spec: PoolSpec, installation: str, instance: InstanceRecord
    ) -> None:
        store, host_id = self._controller.store.fleet, instance.host_id
        offer = spec.offer(instance.offer)
        if offer is None:
            await store.want_end(
                host_id, f"pool {spec.name} has no offer {instance.offer} any more"
            )
            return
        async with self._gate:
            secret = make_secret("j")
            seconds = max(LEAST_TOKEN_SECONDS, 2 * spec.spawn_timeout_seconds)
            asked = await store.ask(host_id, make_new_id(), hash_secret(secret), seconds)
            if asked is None:
                return  # another call has asked, or the machine is not wanted any more
            order = CreateOrder(
                installation=installation,
                pool=spec.name,
                intent=host_id,
                name=name_machine(installation, spec.name, host_id),
                host_name=instance.name,
                offer=offer,
                env=await self._make_environment(spec, installation, host_id, secret),
                spawn_seconds=spec.spawn_timeout_seconds,
            )
            machine = await self._create(provider, order)
        if machine is None:
            return
        if machine.state is MachineState.GONE:
            await store.note_denied(host_id, machine.reason or "it ended at once", final=True)
            return
        made = await store.note_made(host_id, machine.ref, usd_per_hour=machine.usd_per_hour)
        await store.note_words({host_id: machine.reason})
        if made is not None and made.state is InstanceState.ENDING:
            self.end_machine(
                provider, machine.ref, host_id
            )  # the machine's end was wanted meanwhile
        self._controller.poke("events")

    async def _create(self, provider: Provider, order: CreateOrder) -> Machine | None:
        """Ask the provider for a machine. Returns None where none was made, which is recorded then.
        Raises ProviderDown where it is unknown whether one was made."""
        store, metrics = self._controller.store.fleet, self._controller.metrics.fleet
        try:
            async with asyncio.timeout(CALL_SECONDS):
                machine = await provider.create(order)
        except (NoCapacity, Throttled, Refused) as error:
            final = isinstance(error, Refused)
            outcome = "refused" if final else "no_capacity"
            metrics.creates.labels(order.pool, outcome).inc()
            if isinstance(error, Throttled):
                await self.be_quiet(error)
            await store.note_denied(order.intent, error.message, final=final)
            log.warning("pool %s: %s", order.pool, error.message, extra={"host": order.intent})
            self._controller.poke("fleet", "events")
            return None
        except Exception as error:
            metrics.creates.labels(order.pool, "unknown").inc()
            said = error.message if isinstance(error, HoldfastError) else ""
            await store.note_words({order.intent: said or f"{type(error).__name__}: {error}"})
            raise
        metrics.creates.labels(order.pool, "made").inc()
        return machine

    async def _make_environment(
        self, spec: PoolSpec, installation: str, host_id: str, secret: str
    ) -> dict[str, str]:
        settings = await self._controller.settings.current()
        url = str(settings.value("agent_url") or "") or self._controller.url
        found = {
            "HOLDFAST_URL": url,
            "HOLDFAST_JOIN_TOKEN": secret,
            "HOLDFAST_INTENT": host_id,
            "HOLDFAST_POOL": spec.name,
            "HOLDFAST_INSTALLATION": installation,
            "HOLDFAST_SELF_DESTRUCT_SECONDS": f"{spec.self_destruct_seconds:g}",
        }
        if spec.queues:
            found["HOLDFAST_QUEUES"] = ",".join(spec.queues)
        if spec.labels:
            found["HOLDFAST_LABELS"] = ",".join(f"{k}={v}" for k, v in spec.labels.items())
        return found

    async def _end(self, provider: Provider, ref: str, host_id: str | None) -> None:
        async with self._ends:
            if host_id is not None:
                await self._controller.store.fleet.note_end_asked(host_id)
            async with asyncio.timeout(CALL_SECONDS):
                await provider.terminate(ref)
            self._controller.metrics.fleet.ends.labels(self._pool).inc()
        self.unsure = True  # the listing confirms it


def name_machine(installation: str, pool: str, intent: str) -> str:
    """Return the name of a machine: at most 63 of a-z, 0-9 and '-'."""
    slug = re.sub(r"[^a-z0-9]+", "-", pool.lower()).strip("-")[:26].strip("-") or "pool"
    return f"hf-{installation}-{slug}-{intent}"[:63]
