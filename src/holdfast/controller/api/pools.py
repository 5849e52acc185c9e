"""The routes of pools of hosts."""

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec
from starlette.responses import Response

from holdfast.controller.api.settings.patch import read_name
from holdfast.controller.fleet.cycle import PoolCycles
from holdfast.controller.fleet.forget import forget_pool
from holdfast.controller.http.endpoints import ApiCall
from holdfast.controller.http.pages import answer_page
from holdfast.controller.http.problems import answer_json
from holdfast.core.fleet.pool_files import make_pool
from holdfast.core.fleet.pools import PoolSpec
from holdfast.core.fleet.records import PoolMoney, PoolRecord
from holdfast.core.states import HostState
from holdfast.errors import Conflict, NotFound, ValidationError
from holdfast.providers.locate import check_config
from holdfast.wire.operations.fleet.pools import CyclesQuery, DeleteQuery
from holdfast.wire.operations.queries import is_on
from holdfast.wire.pools import PoolPause, PoolStatus, ScaleRequest

MAX_SAID = 5


async def list_pools(call: ApiCall) -> Response:
    """List every pool, its hosts and its money."""
    return answer_page(await _show(call, await call.store.fleet.list_pools()))


async def get_pool(call: ApiCall) -> Response:
    """Return one pool."""
    return await _answer(call, await call.store.fleet.get_pool(_find_name(call)))


async def put_pool(call: ApiCall) -> Response:
    """Make a pool, or replace it whole."""
    name = read_name(call, "pool")
    return await _put(call, name, await call.body(dict[str, Any]))


async def patch_pool(call: ApiCall) -> Response:
    """Change some keys of a pool."""
    pool = await call.store.fleet.get_pool(_find_name(call))
    changes = await call.body(dict[str, Any])
    return await _put(call, pool.name, _keys_of(pool.spec) | changes)


async def scale_pool(call: ApiCall) -> Response:
    """Change a pool's bounds."""
    request = await call.body(ScaleRequest)
    pool = await call.store.fleet.get_pool(_find_name(call))
    given = {k: v for k, v in msgspec.structs.asdict(request).items() if v is not None}
    if not given:
        raise ValidationError("give min, max or buffer", field="min")
    return await _put(call, pool.name, _keys_of(pool.spec) | given)


async def delete_pool(call: ApiCall) -> Response:
    """Shrink a pool to nothing and forget it once it is empty; or at once, where the caller vouches
    that its machines are gone."""
    pool = await call.store.fleet.delete_pool(_find_name(call))
    if is_on(call.query(DeleteQuery).forget):
        await forget_pool(call.controller, pool, f"forgotten by {call.caller_name}")
    return await _answer(call, pool)


async def pause_pool(call: ApiCall) -> Response:
    """Rent no more machines and end none, except those of hosts that fall silent."""
    request = await call.body(PoolPause, default=PoolPause())
    reason = request.reason or f"paused by {call.caller_name}"
    return await _answer(call, await call.store.fleet.pause_pool(_find_name(call), reason))


async def resume_pool(call: ApiCall) -> Response:
    """Let the pool grow and shrink again."""
    return await _answer(call, await call.store.fleet.resume_pool(_find_name(call)))


async def list_cycles(call: ApiCall) -> Response:
    """List a pool's last cycles, newest first."""
    pool = await call.store.fleet.get_pool(_find_name(call))
    return answer_page(await call.store.fleet.list_cycles(pool.name, call.query(CyclesQuery).limit))


async def get_plan(call: ApiCall) -> Response:
    """Return the actions that a cycle would take now, and why. Nothing is changed."""
    pool = await call.store.fleet.get_pool(_find_name(call))
    cycles = PoolCycles(call.controller, pool.name)
    try:
        return answer_json(await cycles.plan(pool))
    finally:
        await cycles.close()


async def run_cycle(call: ApiCall) -> Response:
    """Run one cycle now and wait for the answers of the provider."""
    pool = await call.store.fleet.get_pool(_find_name(call))
    if call.controller.leadership.hears_since is None:
        raise Conflict(
            "another replica leads, or this one has just begun to: ask the one that leads, or wait "
            "for its next cycle",
            code="not_leading",
        )
    cycles = PoolCycles(call.controller, pool.name)
    try:
        summary = await cycles.run(pool)
        await cycles.rentals.wait_for_calls()
    finally:
        await cycles.close()
    return answer_json(summary)


# ---- the whole fleet


async def get_status(call: ApiCall) -> Response:
    """Return counts of the whole fleet, and one word about its health."""
    return answer_json(await call.store.views.read_status())


async def count_hosts(call: ApiCall) -> Response:
    """Return how many hosts are in each state, and their slots and GPUs."""
    return answer_page(await call.store.views.count_hosts())


async def list_health(call: ApiCall) -> Response:
    """List the active hosts: heartbeat, task, GPU memory, and a verdict."""
    return answer_page(await call.store.views.list_health())


async def list_performance(call: ApiCall) -> Response:
    """List the work that each host has done."""
    return answer_page(await call.store.views.list_performance())


# ---- the parts


async def _put(call: ApiCall, name: str, values: Mapping[str, Any]) -> Response:
    spec = make_pool(name, {key: value for key, value in values.items() if key != "name"})
    check_config(spec.provider, spec.config, spec.offers)
    return await _answer(call, await call.store.fleet.put_pool(spec))


async def _answer(call: ApiCall, pool: PoolRecord) -> Response:
    """Return the pool; where the call may have changed it, start its next cycle at once."""
    if call.scope["method"] != "GET":
        call.controller.poke("fleet", "events")
    (shown,) = await _show(call, [pool])
    return answer_json(shown)


async def _show(call: ApiCall, pools: list[PoolRecord]) -> list[PoolStatus]:
    store = call.store
    money, now = await store.fleet.read_money(), await store.now()
    counts: dict[str, Counter[str]] = {}
    said: dict[str, set[str]] = {}
    for instance in await store.fleet.list_instances():
        if instance.host_state is not HostState.TERMINATED:
            counts.setdefault(instance.pool, Counter())[str(instance.host_state)] += 1
        if instance.host_state is HostState.SPAWNING and instance.said:
            said.setdefault(instance.pool, set()).add(instance.said)
    return [
        _as_status(
            pool,
            counts.get(pool.name, Counter()),
            sorted(said.get(pool.name, ())),
            money.get(pool.name),
            now,
        )
        for pool in pools
    ]


def _as_status(
    pool: PoolRecord,
    counts: Mapping[str, int],
    said: Sequence[str],
    money: PoolMoney | None,
    now: datetime,
) -> PoolStatus:
    money = money or PoolMoney(pool=pool.name)
    midnight = now.replace(hour=0, minute=0, second=0, microsecond=0) + timedelta(days=1)
    left = (midnight - now) / timedelta(hours=1)
    return PoolStatus(
        **{name: getattr(pool, name) for name in PoolRecord.__struct_fields__},
        hosts=dict(counts),
        provider_says=tuple(said[:MAX_SAID]),
        usd_per_hour=round(money.usd_per_hour, 6),
        spent_today_usd=round(money.spent_today_usd, 6),
        forecast_today_usd=round(money.spent_today_usd + left * money.usd_per_hour, 6),
    )


def _keys_of(spec: PoolSpec) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.to_builtins(spec)
    return found


def _find_name(call: ApiCall) -> str:
    """Return the name in the path. Raises NotFound for text that can be no pool's name."""
    try:
        return read_name(call, "pool")
    except ValidationError as error:
        raise NotFound(f"there can be no such pool: {error.message}") from None
