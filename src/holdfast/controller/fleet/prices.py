"""The prices of pools' offers, asked of their providers before a plan that may rent a machine.

PRICE-1  A plan counts with the prices of every pool that could run the same jobs (DEMAND-2), so all
         of their providers are asked before the first machine is rented, each once a minute. A plan
         waits for the provider of another pool for `WAIT_SECONDS` at most; a later answer counts in
         the next plan.
"""

import asyncio
import logging
from collections.abc import Iterable

from holdfast.controller.runtime.context import Controller
from holdfast.core.fleet.demand import could_run
from holdfast.core.fleet.grow import say_mute
from holdfast.core.fleet.pools import PoolSpec
from holdfast.core.fleet.snapshot import FleetSnapshot, PoolView
from holdfast.errors import HoldfastError
from holdfast.providers.interface import Throttled

log = logging.getLogger("holdfast.fleet")
ASK_SECONDS = 120.0
WAIT_SECONDS = 10.0


def find_rivals(snapshot: FleetSnapshot, mine: PoolView) -> list[PoolSpec]:
    """Return the other pools that could run a waiting job that this pool could run too."""
    shared = [waiting for waiting in snapshot.waiting if could_run(mine.spec, waiting)]
    return [
        view.spec
        for view in snapshot.pools
        if view.paused is None
        and not say_mute(view)
        and view.spec.name != mine.spec.name
        and any(could_run(view.spec, waiting) for waiting in shared)
    ]


async def hear_prices(controller: Controller, own: PoolSpec, rivals: Iterable[PoolSpec]) -> bool:
    """Ask the providers of a pool and of the pools that it competes with for their prices, unless
    their last answers are fresh (PRICE-1). Returns whether any provider was asked."""
    mine = _ask_soon(controller, own)
    others = [asked for spec in rivals if (asked := _ask_soon(controller, spec)) is not None]
    if others:
        await asyncio.wait(others, timeout=WAIT_SECONDS)
    if mine is not None:
        await asyncio.wait([mine])
    return mine is not None or bool(others)


def _ask_soon(controller: Controller, spec: PoolSpec) -> asyncio.Task[None] | None:
    """Return the request for prices in progress at a pool's provider, started where needed; None
    where the provider answered within the last minute."""
    prices, name = controller.prices, spec.name
    if prices.ask_again(name):
        prices.asking[name] = controller.background.start(_ask(controller, spec))
    asking = prices.asking.get(name)
    return None if asking is None or asking.done() else asking


async def _ask(controller: Controller, spec: PoolSpec) -> None:
    """Ask a provider for its prices and keep them. Where it fails, its last prices count, and the
    offers' configured prices where there are none."""
    try:
        installation = await controller.store.fleet.installation()
        provider = controller.open_provider(spec.provider, spec.config, installation)
        try:
            if not provider.tells_prices:
                return
            async with asyncio.timeout(ASK_SECONDS):
                quotes = await provider.quote(spec.offers)
        finally:
            await provider.close()
    except Throttled as error:
        await controller.store.fleet.note_throttled(spec.name, error.retry_seconds, error.message)
        return
    except (HoldfastError, TimeoutError) as error:
        log.warning("pool %s: its provider's prices cannot be had: %s", spec.name, error)
        return
    controller.prices.known[spec.name] = {
        quote.offer: quote.usd_per_hour for quote in quotes if quote.usd_per_hour is not None
    }
