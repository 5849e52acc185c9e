"""An answer of absence is doubted before anything ends by it (DOUBT-1, DOUBT-2)."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from holdfast.core.ids import TaskKey
from holdfast.errors import Unauthorized, Unavailable
from holdfast.store.postgres.sync.witness import NOTHING, HeldTask, PostgresWitness, Sought
from holdfast.wire import agent as wire
from holdfast.wire.calls import CallsRequest, ExecutorReport
from tests.unit.controller.conftest import FakeAgent, Served, bearer


class _Look:
    """A second look that notes what it was asked for: an honest one, or one that finds all."""

    def __init__(self, served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[Sought] = []
        self.finds_all = False
        self.error: Exception | None = None
        self._look = served.store.witness.look
        monkeypatch.setattr(served.store.witness, "look", self.look)

    async def look(self, sought: Sought) -> Sought:
        self.asked.append(sought)
        if self.error is not None:
            raise self.error
        return sought if self.finds_all else await self._look(sought)


@pytest.fixture
def look(served: Served, monkeypatch: pytest.MonkeyPatch) -> _Look:
    return _Look(served, monkeypatch)


def _live(job_id: str, rank: int = 0) -> wire.TaskReport:
    return wire.TaskReport(key=TaskKey(job_id, rank, 1), state="running", pid=1)


async def test_what_is_there_costs_no_second_look(
    served: Served, agent: FakeAgent, look: _Look
) -> None:
    job = await served.submit()
    order = await agent.take()
    assert (await agent.sync(agent.running(order))).renewed
    await served.call("GET", f"/v1/jobs/{job['id']}", role="read")
    assert (await agent.end(order, exit_code=0)).acked
    assert (await agent.end(order, exit_code=0)).acked, "a repeated end is on record"
    assert look.asked == []


async def test_tasks_that_two_looks_do_not_find_are_lost_at_once(
    agent: FakeAgent, look: _Look
) -> None:
    """A restored database has forgotten them: no number of them makes the verdict doubtful."""
    answer = await agent.sync(*(_live(f"job-{n}") for n in range(300)))
    assert len(answer.lost) == 300
    assert len(look.asked) == 1


async def test_a_task_that_one_of_two_looks_finds_is_told_nothing(
    served: Served, agent: FakeAgent, look: _Look
) -> None:
    await served.submit()
    order = await agent.take()
    await agent.sync(agent.running(order))
    stranger = wire.TaskReport(key=TaskKey("no-such-job", 0, 1), state="ended", facts=None)
    for report in (_live("no-such-job"), stranger):
        look.finds_all = True
        answer = await agent.post_sync(agent.running(order), report)
        assert (answer.status_code, answer.json()["code"]) == (503, "unavailable"), answer.text
        assert b"renewed" not in answer.content
        look.finds_all = False
    assert len(look.asked) == 2
    honest = await agent.sync(agent.running(order), _live("no-such-job"))
    assert [one.key for one in honest.renewed] == [order.key]
    assert honest.lost == [TaskKey("no-such-job", 0, 1)]


async def test_no_second_answer_is_an_outage(agent: FakeAgent, look: _Look) -> None:
    look.error = Unavailable("the database gave no second answer")
    assert (await agent.post_sync(_live("no-such-job"))).status_code == 503
    assert (await agent.send_log(TaskKey("no-such-job", 0, 1), b"a line\n")).status_code == 503


async def test_a_lost_executor_is_doubted_too(
    served: Served, agent: FakeAgent, look: _Look
) -> None:
    async def exchange() -> Any:
        report = ExecutorReport(key=TaskKey("no-such-job", 0, 1))
        request = CallsRequest(incarnation=agent.incarnation, seq=1, executors=[report])
        return await served.http.post(
            "/v1/agent/calls",
            content=msgspec.msgpack.encode(request),
            headers={**bearer(agent.key), "Content-Type": "application/msgpack"},
        )

    look.finds_all = True
    assert (await exchange()).status_code == 503
    look.finds_all = False
    answer = await exchange()
    assert answer.status_code == 200, answer.text
    assert msgspec.msgpack.decode(answer.content)["executors"][0]["lost"] is True


async def test_no_host_user_or_browser_is_turned_away_by_one_look(
    served: Served, agent: FakeAgent, look: _Look
) -> None:
    async def ask(secret: str, path: str = "/v1/jobs") -> int:
        return (await served.http.get(path, headers=bearer(secret))).status_code

    token = wire.TaskKey("no-such-job", 0, 1)
    key, agent.key = agent.key, "hfk_nobody"
    look.finds_all = True
    assert await ask("hft_nobody") == 503
    assert (await agent.post_sync()).status_code == 503
    with pytest.raises(Unavailable):
        await served.controller.guard.find_sign_in("hfb_nobody")
    with pytest.raises(Unavailable):
        await served.controller.doubts.confirm_tasks([token])
    look.finds_all = False
    assert await ask("hft_nobody") == 401
    assert (await agent.post_sync()).status_code == 401
    agent.key = key
    assert (await agent.post_sync()).status_code == 200
    with pytest.raises(Unauthorized):
        await served.controller.guard.find_sign_in("hfb_nobody")


async def test_doubts_that_arise_together_are_one_look(served: Served, look: _Look) -> None:
    await asyncio.gather(
        *(served.http.get("/v1/jobs", headers=bearer(f"hft_nobody-{n}")) for n in range(20))
    )
    assert sum(len(asked.hashes) for asked in look.asked) == 20
    assert len(look.asked) < 20


async def test_a_look_finds_what_is_there(served: Served, agent: FakeAgent) -> None:
    job = await served.submit()
    order = await agent.take()
    here = HeldTask(order.key, agent.host_id, agent.incarnation)
    sought = Sought(
        hosts=frozenset({agent.host_id, "other"}),
        tasks=frozenset(
            {
                here,
                HeldTask(order.key),
                HeldTask(order.key, agent.host_id, "an earlier life"),
                HeldTask(TaskKey(order.key.job_id, 0, 99)),
            }
        ),
        jobs=frozenset({job["id"], "other"}),
        runs=frozenset({"other"}),
    )
    found = await served.store.witness.look(sought)
    assert found == Sought(
        hosts=frozenset({agent.host_id}),
        tasks=frozenset({here, HeldTask(order.key)}),
        jobs=frozenset({job["id"]}),
    )


async def test_a_look_has_a_connection_that_no_other_call_uses(served: Served) -> None:
    witness: PostgresWitness = served.store.witness
    assert await witness.look(NOTHING) == NOTHING
    kept = witness._conn
    assert kept is not None
    pid = kept.info.backend_pid
    pooled = await asyncio.gather(*(served.store.session.single(_pid) for _ in range(8)))
    assert pid not in pooled
    await kept.execute("select 1")
    async with await served.store.session.connect() as other:
        await other.execute("select pg_terminate_backend(%s::integer)", [pid])
    assert await witness.look(NOTHING) == NOTHING, "a connection that was closed is made anew"
    assert witness._conn is not kept


async def _pid(tx: Any) -> int:
    pid: int = tx.conn.info.backend_pid
    return pid
