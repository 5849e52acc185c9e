"""The routes of pools, over a provider in memory."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.controller.conftest import Served
from tests.unit.controller.fleet.world import ScriptedProvider

POOL = {
    "provider": "local",
    "max": 3,
    "idle_timeout_seconds": "10m",
    "offers": [{"name": "small", "cpu_slots": 2, "usd_per_hour": 0.5}],
}


@pytest.fixture
async def provider(served: Served) -> ScriptedProvider:
    made = ScriptedProvider()
    served.controller.open_provider = lambda kind, config, installation: made
    return made


async def test_a_pool_is_made_changed_scaled_paused_and_deleted(
    served: Served, provider: ScriptedProvider
) -> None:
    made = await served.call("PUT", "/v1/pools/p", json=POOL)
    assert made.status_code == 200, made.text
    assert made.json()["spec"]["idle_timeout_seconds"] == 600.0
    bad = await served.call("PATCH", "/v1/pools/p", json={"maximum": 3})
    assert (bad.status_code, "it takes" in bad.json()["detail"]) == (422, True)
    changed = await served.call("PATCH", "/v1/pools/p", json={"max_usd_per_day": 40})
    assert (changed.json()["spec"]["max_usd_per_day"], changed.json()["spec"]["max"]) == (40.0, 3)
    scaled = await served.call("POST", "/v1/pools/p/scale", json={"max": 5})
    assert scaled.json()["spec"]["max"] == 5
    paused = await served.call("POST", "/v1/pools/p/pause", json={"reason": "a bill"})
    assert paused.json()["paused_reason"] == "a bill"
    assert (await served.call("POST", "/v1/pools/p/resume")).json()["paused_at"] is None
    assert (await served.call("DELETE", "/v1/pools/p")).json()["deleted_at"] is not None
    refused = await served.call("PUT", "/v1/pools/q", "submit", json=POOL)
    assert refused.status_code == 403, "only an admin spends money"
    assert (await served.call("GET", "/v1/pools/none")).status_code == 404


async def test_a_deleted_pool_is_forgotten_at_once_on_a_word(
    served: Served, provider: ScriptedProvider
) -> None:
    await served.call("PUT", "/v1/pools/p", json=POOL)
    offer = (await served.controller.store.fleet.get_pool("p")).spec.offers[0]
    await served.controller.store.fleet.intend("p", offer, ["host-00001"], "a test")
    assert (await served.call("DELETE", "/v1/pools/p?forget=maybe")).status_code == 422
    assert (await served.call("DELETE", "/v1/pools/p?forget=1")).status_code == 200
    assert (await served.call("GET", "/v1/pools/p")).status_code == 404
    assert (await served.call("PUT", "/v1/pools/p", json=POOL)).status_code == 200


async def test_a_provider_that_is_unknown_or_misconfigured_is_refused(served: Served) -> None:
    for change in ({"provider": "none"}, {"config": {"colour": "red"}}):
        answer = await served.call("PUT", "/v1/pools/p", json=POOL | change)
        assert answer.status_code == 422, answer.text
    assert (await served.call("GET", "/v1/pools")).json()["items"] == []


async def test_a_plan_changes_nothing_and_a_run_asks_the_provider(
    served: Served, provider: ScriptedProvider
) -> None:
    await served.call("PUT", "/v1/pools/p", json=POOL | {"poll_seconds": 3600})
    await served.call("POST", "/v1/pools/p/pause")
    await served.call("PATCH", "/v1/pools/p", json={"min": 1})
    plan: dict[str, Any] = (await served.call("GET", "/v1/pools/p/plan")).json()
    assert plan["summary"]["dry_run"] is True
    assert "is paused" in plan["blocked"]
    ran = await served.call("POST", "/v1/pools/p/run")
    assert ran.status_code == 200, ran.text
    assert ran.json()["pool"] == "p"
    cycles = (await served.call("GET", "/v1/pools/p/cycles?limit=1")).json()["items"]
    assert len(cycles) == 1
