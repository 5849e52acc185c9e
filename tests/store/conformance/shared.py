"""Steps that the suites of several parts take."""

from __future__ import annotations

from typing import Any

from holdfast.core.causes import Watchdog
from holdfast.core.facts import TaskFacts, Trip
from holdfast.core.ids import TaskKey
from holdfast.core.records import EventRecord
from holdfast.core.states import JobState
from tests.store.rig import OK, Rig, fails

HASH = b"0123456789abcdef0123456789abcdef"
OOM = TaskFacts(signal=9, oom=True)
TRIPPED = TaskFacts(signal=9, trip=Trip(watchdog=Watchdog.STALL, exit_code=76, reason="silent"))


async def claim_gang(rig: Rig, keys: list[TaskKey], where: dict[int, str]) -> None:
    """GANG-1: nothing is offered for its start before every rank has its place."""
    names = sorted(set(where.values()))
    for name in names:
        mine = [k for k in keys if where[k.rank] == name]
        answer = await rig.sync(name)
        assert (answer.offers, [c.key for c in answer.claims]) == ((), mine)
        again = await rig.sync(name)
        assert [c.key for c in again.claims] == mine, "a claim is asked for until it is reported"
    for name in names:
        kept = [(k, 29_500 if k.rank == 0 else 0) for k in keys if where[k.rank] == name]
        answer = await rig.sync(name, claimed=kept)
        last = name == names[-1]
        assert answer.claims == ()
        assert [o.task.key for o in answer.offers] == ([k for k, _ in kept] if last else [])
        assert set(answer.opened) == (set(names) if last else set())
        assert [k for k, _ in answer.renewed] == [k for k, _ in kept]


async def start_gang(rig: Rig, size: int = 3) -> tuple[str, list[TaskKey], dict[int, str]]:
    for name in ("h1", "h2"):
        await rig.host(name, slots=2)
    gang = await rig.submit(tasks=size)
    assert await rig.admit() == [gang]
    tasks = await rig.store.jobs.list_tasks(gang)
    keys, where = [t.key for t in tasks], {t.rank: t.host_id or "" for t in tasks}
    await claim_gang(rig, keys, where)
    for i, name in enumerate(("h1", "h2")):
        mine = [k for k in keys if where[k.rank] == name]
        answer = await rig.sync(name, claimed=[(k, 0) for k in mine])
        assert [o.task.key for o in answer.offers] == mine
        assert [s.rank for s in answer.offers[0].seats] == list(range(size))
        await rig.sync(name, live=mine, started=mine)
        assert (await rig.job(gang)).state is (JobState.RESERVED if i == 0 else JobState.RUNNING)
    return gang, keys, where


async def chains(rig: Rig) -> tuple[str, str, str]:
    """A job of four attempts (the last one runs), one that failed at once, and one that waits in
    the queue."""
    await rig.host()
    long = await rig.submit()
    for facts in (fails(1), OOM, fails(3)):
        await rig.fail(long, facts, max_retries=9)
        await rig.release()
        rig.tick(1)
    short = await rig.submit()
    await rig.admit()
    await rig.sync()
    keys = [await rig.key(long), await rig.key(short)]
    await rig.sync(live=keys, started=keys)
    await rig.sync(live=keys[:1], ended=[(keys[1], fails(7))])
    await rig.complete()
    return long, short, await rig.submit()


async def events_of(rig: Rig, job_id: str, kind: str) -> list[EventRecord]:
    return [event for event in await rig.events(job_id) if event.kind == kind]


async def succeed(rig: Rig, job_id: str, host: str = "h1", *, seen: bool = True) -> Any:
    await rig.admit()
    key = await rig.key(job_id)
    await rig.sync(host)
    if seen:
        await rig.sync(host, live=[key], started=[key])
    return await rig.sync(host, ended=[(key, OK)])
