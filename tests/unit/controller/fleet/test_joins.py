"""A join token of a pool lets one machine in, once."""

from __future__ import annotations

from datetime import timedelta

import pytest

from holdfast.controller.runtime.auth import hash_secret
from holdfast.controller.sync.route import LIVE_SECONDS
from holdfast.core.fleet.instances import CreateOrder
from holdfast.core.states import HostState
from holdfast.errors import Unauthorized
from holdfast.wire.agent import HostFacts, RegisterRequest
from tests.store.pg_fixture import MakeStore
from tests.unit.controller.fleet.world import World, make_world


@pytest.fixture
async def world(make_store: MakeStore) -> World:
    made = await make_world(make_store)
    await made.make_pool()
    made.tick(1)
    await made.cycles.run(await made.store.fleet.get_pool("p"))
    await made.settle()
    return made


async def present(world: World, order: CreateOrder, intent: str = "") -> str:
    """Present an order's token as a machine of another name. Returns the host that it became."""
    request = RegisterRequest(
        incarnation="incarnation-of-a-thief",
        facts=HostFacts(name="thief"),
        claim="thief",
        intent=intent,
    )
    secret = hash_secret(order.env["HOLDFAST_JOIN_TOKEN"])
    return (await world.controller.joins.join(secret, request, LIVE_SECONDS))[0]


async def test_a_second_machine_is_refused_and_the_first_goes_on(world: World) -> None:
    ((ref, order),) = world.provider.orders.items()
    await world.cycle()
    before = await world.store.hosts.get_host(order.intent)
    with pytest.raises(
        Unauthorized, match=f"is good for one host, and was used at .* by host {order.intent}"
    ):
        await present(world, order)
    assert await world.store.hosts.get_host(order.intent) == before
    await world.cycle()
    assert (await world.store.hosts.get_host(order.intent)).state is HostState.ACTIVE
    assert await world.sync(order.intent, ref) is not None


async def test_a_machine_of_another_intent_is_refused_and_spends_nothing(world: World) -> None:
    (order,) = world.provider.orders.values()
    with pytest.raises(
        Unauthorized, match=f"is for host {order.intent}, not for another; the pool"
    ):
        await present(world, order, intent="another")
    assert await present(world, order, intent=order.intent) == order.intent


async def test_an_expired_token_says_since_when(world: World) -> None:
    (order,) = world.provider.orders.values()
    (token,) = await world.store.tokens.list_tokens()
    assert token.expires_at is not None
    world.now = token.expires_at + timedelta(seconds=1)
    with pytest.raises(Unauthorized, match=f"expired at {token.expires_at:%Y-%m-%d %H:%M}"):
        await present(world, order)


async def test_a_revoked_token_says_so(world: World) -> None:
    (order,) = world.provider.orders.values()
    (token,) = await world.store.tokens.list_tokens()
    await world.store.tokens.revoke_token(token.id, now=world.now)
    with pytest.raises(Unauthorized, match="was revoked at"):
        await present(world, order)
