"""`why` and `show` of a supervised job whose members are being replaced: which ranks, since when,
and what they wait for."""

from __future__ import annotations

import math
from datetime import timedelta

import msgspec
import pytest

from holdfast.cli.jobs.gang_view import draw_tasks
from holdfast.controller.why.circumstances import Circumstances
from holdfast.controller.why.explain import explain
from holdfast.core.causes import Cause
from holdfast.core.endings.decide import Policy
from holdfast.core.endings.replace import plan_replacement
from holdfast.core.records import QueueRecord
from holdfast.wire.api import Why
from tests.store.conformance.members import GIVEN_UP, KILLED
from tests.store.pg_fixture import MakeStore
from tests.store.rig import STOPPED, Rig


async def _explain(
    rig: Rig,
    job_id: str,
    *,
    dead: str = "",
    refusal: str | None = None,
    silence_seconds: float = math.inf,
) -> Why:
    hosts = [
        msgspec.structs.replace(h, flagged_dead_at=rig.now if h.id == dead else None)
        for h in await rig.store.hosts.list_hosts()
    ]
    attempts = await rig.store.jobs.list_attempts(job_id)
    return explain(
        Circumstances(
            job=await rig.job(job_id),
            queue=QueueRecord(name="cpu", settings={}, created_at=rig.now),
            silence_seconds=silence_seconds,
            tasks=tuple(await rig.store.jobs.list_tasks(job_id)),
            hosts=tuple(hosts),
            place=0,
            now=rig.now,
            last_attempt=attempts[-1] if attempts else None,
            refusal=refusal,
        )
    )


@pytest.fixture
async def rig(make_store: MakeStore) -> Rig:
    return Rig(await make_store())


async def test_members_that_fell_wait_and_start_are_told_apart(rig: Rig) -> None:
    job_id, keys = await rig.supervised(hosts=("h1", "h2", "h3", "h4"))
    await rig.sync(await rig.where(job_id, 1), ended=[(keys[1], KILLED)])
    lines = {line.code: line.message for line in (await _explain(rig, job_id)).lines}
    assert lines["member_fell"].startswith("rank 1 fell")
    await rig.replace()
    lines = {
        line.code: line.message
        for line in (await _explain(rig, job_id, refusal="no host has a slot free")).lines
    }
    assert lines["member_waits"] == "rank 1 waits for another host: no host has a slot free"
    assert "attempt 1 runs on name-h" in lines["running"]
    await rig.admit()
    await rig.sync(await rig.where(job_id, 1))
    lines = {line.code: line.message for line in (await _explain(rig, job_id)).lines}
    assert (
        lines["member_starts"]
        == f"rank 1 is to start anew on host name-{await rig.where(job_id, 1)}"
    )
    task = (await rig.store.jobs.list_tasks(job_id))[1]
    await rig.sync(str(task.host_id), ended=[(task.key, KILLED)])
    await rig.replace()
    lines = {
        line.code: line.message
        for line in (await _explain(rig, job_id, refusal="no host has a slot free")).lines
    }
    assert lines["member_waits"] == "rank 1 waits for another host; not before 1 s from now"
    await rig.sync(await rig.where(job_id, 2), ended=[(keys[2], GIVEN_UP)])
    await rig.replace()
    lines = {
        line.code: line.message
        for line in (await _explain(rig, job_id, refusal="no host has a slot free")).lines
    }
    assert lines["member_waits"] == "ranks 1-2 wait for another host: no host has a slot free"
    shown = draw_tasks(await rig.job(job_id), await rig.store.jobs.list_tasks(job_id))
    assert shown.count("waits for a host") == 2
    assert "replaced 2 times" in shown


async def test_a_dead_host_takes_only_its_members_with_it(rig: Rig) -> None:
    job_id, keys = await rig.supervised()
    rig.now += timedelta(seconds=40)
    script, other = await rig.where(job_id, 0), await rig.where(job_id, 2)
    (line,) = [
        n.message for n in (await _explain(rig, job_id, dead=other)).lines if n.code == "dead_host"
    ]
    assert line.endswith("sends no heartbeat; rank 2 is placed again when its lease has lapsed")
    (line,) = [
        n.message for n in (await _explain(rig, job_id, dead=script)).lines if n.code == "dead_host"
    ]
    assert line.endswith("the job is placed again when its lease has lapsed")
    assert len(keys) == 3


async def test_a_parked_rank_says_why_and_what_to_do(rig: Rig) -> None:
    job_id, keys = await rig.supervised()
    task = (await rig.store.jobs.list_tasks(job_id))[1]
    for failures in (1, 2):
        await rig.store.members.stop_member(
            task.key, Cause.START_TIMEOUT, "it did not start within 60 s", now=rig.now
        )
        await rig.sync(str(task.host_id), ended=[(task.key, STOPPED)])
        plan = plan_replacement(
            await rig.job(job_id),
            msgspec.structs.replace((await rig.store.jobs.list_tasks(job_id))[1], started_at=None),
            Policy(start_failure_limit=2),
            (),
        )
        await rig.store.members.replace_members([(task.key, plan)], now=rig.now)
        told = {
            line.code: line
            for line in (await _explain(rig, job_id, refusal="no host has a slot free")).lines
        }
        if failures == 1:
            assert "(failed start 1 of 8 in a row)" in told["member_waits"].message
            await rig.admit()
            task = (await rig.store.jobs.list_tasks(job_id))[1]
            await rig.sync(str(task.host_id))
    line = told["member_parked"]
    assert line.message.startswith(
        f"rank 1 on name-{task.host_id}: it did not start within 60 s; it is parked after 2 "
        "failed starts"
    )
    assert f"holdfast retry {job_id}" in line.hint
    assert "member_waits" not in told
    shown = draw_tasks(await rig.job(job_id), await rig.store.jobs.list_tasks(job_id))
    assert "parked" in shown
    assert "waits for a host" not in shown
    assert keys


async def test_a_dead_host_whose_work_was_taken_back_runs_none_any_more(rig: Rig) -> None:
    """Its flag stays until its agent calls again; its lease ended before."""
    await rig.host(slots=1)
    _, key = await rig.running(cpus=1)
    waits = await rig.submit(cpus=1)
    lines = {line.code: line.message for line in (await _explain(rig, waits, dead="h1")).lines}
    assert lines["dead_hosts"] == "no heartbeat comes from name-h1, though work runs there"
    await rig.sync(ended=[(key, STOPPED)])
    lines = {line.code: line.message for line in (await _explain(rig, waits, dead="h1")).lines}
    assert lines["dead_hosts"] == "no heartbeat comes from name-h1, though work ran there"


async def test_a_host_that_is_silent_takes_no_work_and_is_named(rig: Rig) -> None:
    """POOL-3: `why` had said "it is next" for as long as the silence lasted."""
    await rig.host()
    waits = await rig.submit()
    rig.tick(40)
    (line,) = (await _explain(rig, waits, silence_seconds=12.0)).lines
    assert (line.code, line.message) == (
        "no_active_host",
        "no host that serves queue cpu takes work: name-h1 is silent for 40 s",
    )
    await rig.host("h2")
    told = await _explain(rig, waits, silence_seconds=12.0)
    assert [line.message for line in told.lines] == [
        "it is next: the next round of admission takes it",
        "host name-h1 is silent for 40 s, and is given nothing until it is heard",
    ]
