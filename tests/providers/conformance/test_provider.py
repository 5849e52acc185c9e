"""What every provider must do: the promises RENT-1…5 of `providers/interface.py`."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import msgspec
import pytest

from holdfast.core.fleet.instances import CreateOrder, Machine, MachineState, Quote
from holdfast.errors import ValidationError
from holdfast.providers.interface import NoCapacity, Provider, ProviderDown, Refused
from holdfast.providers.locate import check_config, open_provider
from tests.providers.rig import SECRET, Rig, make_order, of_intent, open_rig
from tests.waits import Patience, within

pytestmark = pytest.mark.slow
PATIENCE = 90.0


@contextlib.asynccontextmanager
async def opened(rig: Rig, installation: str = "here", **config: Any) -> AsyncIterator[Provider]:
    """A provider whose machines end with the block."""
    provider = open_rig(rig, installation, **config)
    try:
        yield provider
    finally:
        # Opened anew, because the test may have taken the first one's patience away.
        ender = open_rig(rig, installation)
        for machine in await ender.list_machines():
            if machine.state is not MachineState.GONE:
                await ender.terminate(machine.ref)
        await until(lambda: all_gone(ender), what="the end of every machine")
        assert rig.leftovers() == []
        await ender.close()
        await provider.close()


async def all_gone(provider: Provider) -> bool:
    return all(m.state is MachineState.GONE for m in await provider.list_machines())


async def list_living(provider: Provider) -> list[Machine]:
    """Those that are not gone: some providers show what ended lately."""
    return [m for m in await provider.list_machines() if m.state is not MachineState.GONE]


async def until(look: Callable[[], Awaitable[Any]], *, what: str) -> Any:
    """Poll until an answer is true."""
    patience = Patience(PATIENCE)
    while not (found := await look()):
        assert not patience.over, f"waited {PATIENCE:g} s in vain for {what}"
        await asyncio.sleep(0.05)
    return found


async def is_gone(provider: Provider, ref: str) -> bool:
    machine = await provider.get_machine(ref)
    return machine is None or machine.state is MachineState.GONE


async def is_running(provider: Provider, ref: str) -> Machine | None:
    machine = await provider.get_machine(ref)
    assert machine is not None
    assert machine.state is not MachineState.GONE, machine
    return machine if machine.state is MachineState.RUNNING else None


def order_for(rig: Rig, installation: str = "here", **env: str) -> CreateOrder:
    return make_order(installation, offer=rig.offer, **env)


async def test_a_machine_is_made_found_and_ended(rig: Rig) -> None:
    async with opened(rig) as provider:
        order = order_for(rig)
        made = await provider.create(order)
        assert made.intent == order.intent
        assert made.state in (MachineState.STARTING, MachineState.RUNNING)
        (listed,) = of_intent(await provider.list_machines(), order.intent)
        assert listed.ref == made.ref
        assert listed.pool == order.pool
        running = await until(lambda: is_running(provider, made.ref), what="a running machine")
        assert running.intent == order.intent
        await provider.terminate(made.ref)
        await until(lambda: is_gone(provider, made.ref), what="the machine's end")
        assert of_intent(await provider.list_machines(), order.intent) == []


async def test_an_intent_has_one_machine(rig: Rig) -> None:
    """RENT-2, by another provider object, as after a controller's death."""
    async with opened(rig) as first, opened(rig) as second:
        order = order_for(rig)
        made = await first.create(order)
        again = await second.create(order)
        assert again.ref == made.ref
        await until(lambda: _read_env(rig, made), what="the agent")
        assert rig.count_starts(order.intent) == 1
        assert len(of_intent(await second.list_machines(), order.intent)) == 1


async def test_installations_do_not_see_each_other(rig: Rig) -> None:
    """RENT-3, and one that may not be ended by another."""
    async with opened(rig) as ours, opened(rig, "there") as theirs:
        machine = await theirs.create(order_for(rig, "there"))
        assert await list_living(ours) == []
        assert await ours.get_machine(machine.ref) is None
        await ours.terminate(machine.ref)
        (listed,) = await list_living(theirs)
        assert listed.state in (MachineState.STARTING, MachineState.RUNNING)


async def test_an_end_may_be_ordered_twice(rig: Rig) -> None:
    """RENT-4."""
    async with opened(rig) as provider:
        machine = await provider.create(order_for(rig))
        await provider.terminate(machine.ref)
        await provider.terminate(machine.ref)
        await until(lambda: is_gone(provider, machine.ref), what="the machine's end")
        await provider.terminate(machine.ref)


def _change(ref: str) -> str:
    """Another id of the same shape, which no machine has."""
    if ref.isdigit():
        return str(int(ref) + 70_000)
    return ref[:-1] + ("1" if ref[-1] != "1" else "2")


async def test_an_unknown_machine_is_none(rig: Rig) -> None:
    async with opened(rig) as provider:
        machine = await provider.create(order_for(rig))
        unknown = _change(machine.ref)
        assert await provider.get_machine(unknown) is None
        await provider.terminate(unknown)
        assert len(await list_living(provider)) == 1


async def test_the_agent_has_the_orders_environment(rig: Rig) -> None:
    """RENT-1, and what the agent needs; the words with a space are kept whole."""
    async with opened(rig) as provider:
        order = order_for(rig, HOLDFAST_ODD='it\'s "$HOME"; `a` \\ b')
        machine = await provider.create(order)
        env = await until(lambda: _read_env(rig, machine), what="the agent's environment")
        expected = order.env | {"HOLDFAST_INTENT": order.intent, "HOLDFAST_INSTALLATION": "here"}
        assert {name: env.get(name) for name in expected} == expected


async def _read_env(rig: Rig, machine: Machine) -> dict[str, str]:
    return dict(rig.env_of(machine))


async def test_a_call_that_hangs_ends_by_its_deadline(rig: Rig) -> None:
    """RENT-5: as unknown, since a machine may have been made."""
    async with opened(rig, deadline_seconds=0.5) as provider:
        order = order_for(rig)
        with rig.hang(order):
            with pytest.raises(ProviderDown):
                async with within(30):
                    await provider.create(order)
            assert rig.count_starts(order.intent) == 0


async def test_a_failed_creation_leaves_nothing(rig: Rig) -> None:
    async with opened(rig) as provider:
        offer = msgspec.structs.replace(rig.offer, config=rig.bad_config)
        with pytest.raises((Refused, NoCapacity)) as caught:
            await provider.create(make_order(offer=offer))
        assert SECRET not in str(caught.value)
        assert await list_living(provider) == []


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("name", "A name"),
        ("name", "a" * 64),
        ("intent", "../up"),
        ("env", {}),
        ("installation", "there"),
    ],
)
async def test_an_order_that_cannot_be_is_refused(rig: Rig, field: str, value: Any) -> None:
    async with opened(rig) as provider:
        order = msgspec.structs.replace(order_for(rig), **{field: value})
        with pytest.raises(Refused):
            await provider.create(order)
        assert await list_living(provider) == []


async def test_each_offer_has_a_quote(rig: Rig) -> None:
    async with opened(rig) as provider:
        (quote,) = await provider.quote((rig.offer,))
        assert isinstance(quote, Quote)
        assert quote.offer == rig.offer.name
        assert quote.available is not False


def test_a_config_with_an_unknown_key_is_refused(rig: Rig) -> None:
    with pytest.raises(ValidationError, match="colour"):
        open_provider(rig.kind, rig.config | {"colour": "red"}, "here")
    offer = msgspec.structs.replace(rig.offer, config={"colour": "red"})
    with pytest.raises(ValidationError, match="colour"):
        check_config(rig.kind, rig.config, [offer])
    check_config(rig.kind, rig.config, [rig.offer])
