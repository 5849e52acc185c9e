"""`why` and `show` of a supervised job whose members are being replaced: which ranks, since when, and what they wait for."""

from __future__ import annotations

from datetime import timedelta

import msgspec

from holdfast.cli.gang_view import draw_tasks
from holdfast.controller.why import explain
from holdfast.controller.why_retries import Circumstances
from holdfast.store.memory import MemoryStore
from holdfast.wire.api import Why
from tests.store.conformance_members import GIVEN_UP, KILLED
from tests.store.rig import Rig


async def _explain(rig: Rig, job_id: str, *, dead: str = "", refusal: str | None = None) -> Why:
    hosts = [
        msgspec.structs.replace(h, flagged_dead_at=rig.now if h.id == dead else None)
        for h in await rig.store.list_hosts()
    ]
    attempts = await rig.store.list_attempts(job_id)
    return explain(
        Circumstances(
            job=await rig.job(job_id), queue=None, tasks=tuple(await rig.store.list_tasks(job_id)), hosts=tuple(hosts), place=0,
            now=rig.now, last_attempt=attempts[-1], refusal=refusal,
        )
    )  # fmt: skip


async def test_members_that_fell_wait_and_start_are_told_apart() -> None:
    rig = Rig(MemoryStore())
    job_id, keys = await rig.supervised(hosts=("h1", "h2", "h3", "h4"))
    await rig.sync(await rig.where(job_id, 1), ended=[(keys[1], KILLED)])
    lines = {line.code: line.message for line in (await _explain(rig, job_id)).lines}
    assert lines["member_fell"].startswith("rank 1 fell")
    await rig.replace()
    lines = {line.code: line.message for line in (await _explain(rig, job_id, refusal="no host has a slot free")).lines}
    assert lines["member_waits"] == "rank 1 waits for another host: no host has a slot free"
    assert "attempt 1 runs on name-h" in lines["running"]
    await rig.admit()
    await rig.sync(await rig.where(job_id, 1))
    lines = {line.code: line.message for line in (await _explain(rig, job_id)).lines}
    assert lines["member_starts"] == f"rank 1 is to start anew on host name-{await rig.where(job_id, 1)}"
    task = (await rig.store.list_tasks(job_id))[1]
    await rig.sync(str(task.host_id), ended=[(task.key, KILLED)])
    await rig.replace()
    lines = {line.code: line.message for line in (await _explain(rig, job_id, refusal="no host has a slot free")).lines}
    assert lines["member_waits"] == "rank 1 waits for another host; not before 1 s from now"
    await rig.sync(await rig.where(job_id, 2), ended=[(keys[2], GIVEN_UP)])
    await rig.replace()
    lines = {line.code: line.message for line in (await _explain(rig, job_id, refusal="no host has a slot free")).lines}
    assert lines["member_waits"] == "ranks 1-2 wait for another host: no host has a slot free"
    shown = draw_tasks(await rig.job(job_id), await rig.store.list_tasks(job_id))
    assert shown.count("waits for a host") == 2
    assert "replaced 2 times" in shown


async def test_a_dead_host_takes_only_its_members_with_it() -> None:
    rig = Rig(MemoryStore())
    job_id, keys = await rig.supervised()
    rig.now += timedelta(seconds=40)
    script, other = await rig.where(job_id, 0), await rig.where(job_id, 2)
    (line,) = [n.message for n in (await _explain(rig, job_id, dead=other)).lines if n.code == "dead_host"]
    assert line.endswith("sends no heartbeat; rank 2 is placed again when its lease has lapsed")
    (line,) = [n.message for n in (await _explain(rig, job_id, dead=script)).lines if n.code == "dead_host"]
    assert line.endswith("the job is placed again when its lease has lapsed")
    assert len(keys) == 3
