"""What every store must do when asked for many jobs or hosts at once: what the single reads say,
for each of them."""

from __future__ import annotations

import msgspec

from holdfast.core.causes import Cause
from holdfast.core.facts import TaskFacts
from tests.store.rig import STOPPED, Rig, fails

OOM = TaskFacts(signal=9, oom=True)


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


async def test_attempts_of_many_jobs(rig: Rig) -> None:
    long, short, queued = await chains(rig)
    asked = [long, short, queued, "nobody", long]
    found = await rig.store.jobs.list_attempts_of(asked, last=100)
    assert set(found) == {long, short}
    for job_id in (long, short):
        whole = await rig.store.jobs.list_attempts(job_id)
        assert found[job_id] == [msgspec.structs.replace(a, members=()) for a in whole]
    assert [a.number for a in found[long]] == [1, 2, 3, 4]
    newest = await rig.store.jobs.list_attempts_of(asked, last=2)
    assert [a.number for a in newest[long]] == [3, 4]
    assert [a.number for a in newest[short]] == [1]
    older = await rig.store.jobs.list_attempts_of(asked, last=2, before=3)
    assert ([a.number for a in older[long]], [a.number for a in older[short]]) == ([1, 2], [1])
    (oom,) = (await rig.store.jobs.list_attempts_of(asked, last=5, cause=Cause.OOM_KILLED))[long]
    assert oom.number == 2
    assert await rig.store.jobs.list_attempts_of([], last=5) == {}


async def test_attempts_by_their_keys_have_members(rig: Rig) -> None:
    long, short, queued = await chains(rig)
    keys = [(long, 2), (short, 1), (long, 9), (queued, 1), (long, 2)]
    found = await rig.store.jobs.get_attempts(keys, members=True)
    assert set(found) == {(long, 2), (short, 1)}
    assert found[long, 2] == (await rig.store.jobs.list_attempts(long))[1]
    assert [m.exit_code for m in found[short, 1].members] == [7]
    bare = await rig.store.jobs.get_attempts(keys)
    assert bare == {
        key: msgspec.structs.replace(attempt, members=()) for key, attempt in found.items()
    }
    assert await rig.store.jobs.get_attempts([]) == {}


async def test_members_of_many_attempts(rig: Rig) -> None:
    await rig.host()
    gang = await rig.submit(tasks=4)
    await rig.admit()
    keys = [await rig.key(gang, rank) for rank in range(4)]
    await rig.sync(claimed=[(key, 1234 if key.rank == 0 else 0) for key in keys])
    await rig.sync()
    await rig.sync(live=keys, started=keys)
    await rig.sync(ended=[(keys[2], fails(5)), *((key, STOPPED) for key in keys if key.rank != 2)])
    await rig.complete()
    (attempt,) = await rig.store.jobs.list_attempts(gang)
    assert len(attempt.members) == 4
    asked = [(gang, 1), (gang, 2), ("nobody", 1)]
    assert await rig.store.jobs.list_members_of(asked, first=9) == {
        (gang, 1): list(attempt.members)
    }
    page = await rig.store.jobs.list_members_of(asked, first=2, after=0)
    assert [(m.rank, m.exit_code, m.trigger) for m in page[gang, 1]] == [
        (1, None, False),
        (2, 5, True),
    ]
    assert await rig.store.jobs.list_members_of(asked, first=2, after=3) == {}


async def test_tasks_of_many_jobs(rig: Rig) -> None:
    await rig.host()
    gang, single = await rig.submit(tasks=4), await rig.submit()
    await rig.admit()
    found = await rig.store.jobs.list_tasks_of([gang, single, "nobody"], first=100)
    assert found == {
        gang: await rig.store.jobs.list_tasks(gang),
        single: await rig.store.jobs.list_tasks(single),
    }
    page = await rig.store.jobs.list_tasks_of([gang, single], first=2, after=0)
    assert [t.rank for t in page[gang]] == [1, 2]
    assert single not in page
    assert page[gang][0].host_name == "name-h1"


async def test_jobs_and_hosts_by_id(rig: Rig) -> None:
    await rig.host("h1")
    await rig.host("h2")
    await rig.store.hosts.move_host("h2", "terminate", "sold", now=rig.now)
    one, two = await rig.submit(), await rig.submit()
    assert await rig.store.jobs.get_jobs([one, two, "nobody"]) == {
        one: await rig.job(one),
        two: await rig.job(two),
    }
    found = await rig.store.hosts.get_hosts(["h1", "h2", "name-h1"])
    assert found == {name: await rig.store.hosts.get_host(name) for name in ("h1", "h2")}
    assert (await rig.store.jobs.get_jobs([]), await rig.store.hosts.get_hosts([])) == ({}, {})


async def test_events_of_many_jobs(rig: Rig) -> None:
    long, short, queued = await chains(rig)
    found = await rig.store.events.list_events_of([long, short, "nobody"], last=1000)
    assert found == {long: await rig.events(long), short: await rig.events(short)}
    newest = await rig.store.events.list_events_of([long, queued], last=2)
    assert newest[long] == (await rig.events(long))[-2:]
    assert [e.kind for e in newest[queued]] == ["job.submitted"]


async def test_places_of_many_jobs(rig: Rig) -> None:
    first, second = await rig.submit(), await rig.submit()
    urgent, other = await rig.submit(priority=90), await rig.submit(queue="gpu", gpus=1)
    asked = [first, second, urgent, other, "nobody"]
    found = await rig.store.jobs.queue_places(asked)
    assert found == {first: 1, second: 2, urgent: 0, other: 0}
    await rig.host()
    await rig.admit()
    assert set(await rig.store.jobs.queue_places(asked)) == {other}
