"""`GET /v1/ledger`, and the ledger's metric."""

from __future__ import annotations

from datetime import timedelta

from holdfast.client import AsyncClient
from holdfast.controller.loops.ledger.ledger import LedgerLoop, PruneLedgerLoop
from holdfast.core.ledger.close_minutes import close_span
from holdfast.core.ledger.values import LedgerName
from tests.unit.controller.conftest import SECRETS, FakeAgent, Served


async def test_the_ledger_is_read_by_rest_and_sdk_and_its_totals_are_a_metric(
    served: Served, agent: FakeAgent
) -> None:
    store, now = served.store.ledger, await served.store.now()
    later = now + timedelta(minutes=3)
    assert await store.read_span(now=later) is None  # the first time it only begins
    facts = await store.read_span(now=later)
    assert facts is not None
    await store.write_ledger(facts, close_span(facts))
    where = f"where=host={agent.facts.name}&since={int(now.timestamp()) - 60}&until={int(later.timestamp())}"
    answer = await served.call("GET", f"/v1/ledger?by=pool&by=host&unit=cpu&{where}")
    assert answer.status_code == 200, answer.text
    (found,) = answer.json()["sums"]
    assert found["key"] == ["", agent.facts.name]
    assert set(found["ms"]) <= {"starting", "unused"}
    async with AsyncClient(served.url, SECRETS["read"]) as client:
        again = await client.ledger(until=later, by=["host"], unit="cpu")
    assert again.sums[0].ms == {LedgerName(n): ms for n, ms in found["ms"].items()}
    text = (await served.call("GET", "/metrics")).text
    total = f'holdfast_ledger_seconds_total{{name="unused",unit="cpu"}} {found["ms"]["unused"] / 1000}'  # fmt: skip
    assert total in text


async def test_a_ledger_question_that_means_nothing_is_refused(served: Served) -> None:
    for query, words in (("by=colour", "no field 'colour'"), ("since=9&until=8", "begin before")):
        answer = await served.call("GET", f"/v1/ledger?{query}")
        assert answer.status_code == 422
        assert words in answer.text


async def test_the_loops_close_what_is_over_and_delete_what_is_old(
    served: Served, agent: FakeAgent
) -> None:
    assert await LedgerLoop(served.controller).run_once() == {}
    assert await PruneLedgerLoop(served.controller).run_once() == {}
