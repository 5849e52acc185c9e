"""The contract of the scripts: their exit codes, what they print, and what they are told."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from holdfast.core.fleet.instances import Offer
from holdfast.providers.command import CommandConfig, CommandProvider
from holdfast.providers.interface import NoCapacity, ProviderDown, Refused, Throttled
from tests.providers.rig import SECRET, make_order

NOTHING = 'echo {\\"machines\\": []}'
MACHINE = {"ref": "7", "installation": "here", "intent": "one", "state": "running"}


def make_provider(**scripts: str) -> CommandProvider:
    """A provider whose scripts are lines of shell."""
    lines = {"create": NOTHING, "list": NOTHING, "terminate": "true"} | scripts
    argv = {name: ["sh", "-c", line] for name, line in lines.items()}
    return CommandProvider(CommandConfig(**argv, deadline_seconds=20), "here")


@pytest.mark.parametrize(
    ("code", "error"),
    [(69, NoCapacity), (75, Throttled), (78, Refused), (1, ProviderDown), (127, ProviderDown)],
)
async def test_an_exit_code_is_a_kind_of_failure(code: int, error: type[Exception]) -> None:
    """The words of the script are in the message, the join token is not."""
    provider = make_provider(create=f"echo no luck with {SECRET} >&2; exit {code}")
    with pytest.raises(error, match=r"no luck with \[hidden\]"):
        await provider.create(make_order())


async def test_a_throttled_script_may_say_how_long() -> None:
    provider = make_provider(create="echo '{\"retry_seconds\": 7}'; exit 75")
    with pytest.raises(Throttled) as caught:
        await provider.create(make_order())
    assert caught.value.retry_seconds == 7


@pytest.mark.parametrize("printed", ["", "[]", "{}", '{"machines": [{"ref": "7"}]}', "not json"])
async def test_what_is_no_list_is_not_an_empty_one(printed: str) -> None:
    """RENT-3."""
    provider = make_provider(list=f"echo '{printed}'")
    with pytest.raises(ProviderDown, match="printed what is no answer"):
        await provider.list_machines()


async def test_a_machine_that_is_taken_away_soon_is_listed_with_the_time() -> None:
    """EVICT-2."""
    leaving = {"state": "running", "lost": "preempted", "leaves_at": "2026-11-26T10:00:00+01:00"}
    listed = json.dumps({"machines": [MACHINE | leaving]})
    (machine,) = await make_provider(list=f"echo '{listed}'").list_machines()
    assert (machine.lost, machine.leaves_at) == ("preempted", datetime(2026, 11, 26, 9, tzinfo=UTC))
    without_zone = listed.replace("+01:00", "")
    with pytest.raises(ProviderDown, match="printed what is no answer"):
        await make_provider(list=f"echo '{without_zone}'").list_machines()


async def test_no_capacity_is_no_answer_to_a_list() -> None:
    with pytest.raises(ProviderDown):
        await make_provider(list="exit 69").list_machines()


async def test_a_machine_of_others_is_not_ended(tmp_path: Path) -> None:
    listed = json.dumps({"machines": [MACHINE | {"installation": "there"}]})
    provider = make_provider(list=f"echo '{listed}'", terminate=f"touch {tmp_path}/ended")
    assert await provider.list_machines() == ()
    await provider.terminate("7")
    assert not (tmp_path / "ended").exists()


async def test_what_the_scripts_are_told(tmp_path: Path) -> None:
    """The whole order, the offer's settings over the pool's, and a script that starts the agent."""
    provider = make_provider(create=f'cat >{tmp_path}/told; echo \'{{"ref": "7"}}\'')
    offer = Offer(name="large", gpus=8, config={"settings": {"size": "large"}})
    order = make_order(offer=offer, HOLDFAST_ODD="it's")
    await provider.create(order)
    told: dict[str, Any] = json.loads((tmp_path / "told").read_text())
    assert (told["action"], told["installation"]) == ("create", "here")
    assert told["settings"] == {"size": "large"}
    assert told["order"]["intent"] == order.intent
    assert told["order"]["env"]["HOLDFAST_INTENT"] == order.intent
    assert told["agent_words"][:2] == ["holdfast", "agent"]
    assert SECRET not in " ".join(told["agent_words"])
    assert "export HOLDFAST_ODD='it'\"'\"'s'\n" in told["agent_script"]


async def test_an_offer_without_an_answer_is_unknown() -> None:
    provider = make_provider(quote='echo \'{"quotes": [{"offer": "a", "usd_per_hour": 2.5}]}\'')
    first, second = await provider.quote((Offer(name="a"), Offer(name="b")))
    assert (first.usd_per_hour, second.usd_per_hour, second.available) == (2.5, None, None)
