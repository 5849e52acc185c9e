"""What only the store on PostgreSQL does: events."""

from __future__ import annotations

from tests.store.conformance.shared import chains, succeed
from tests.store.rig import OK, Rig


async def test_events_of_many_jobs(rig: Rig) -> None:
    long, short, queued = await chains(rig)
    found = await rig.store.events.list_events_of([long, short, "nobody"], last=1000)
    assert found == {long: await rig.events(long), short: await rig.events(short)}
    newest = await rig.store.events.list_events_of([long, queued], last=2)
    assert newest[long] == (await rig.events(long))[-2:]
    assert [e.kind for e in newest[queued]] == ["job.submitted"]


async def test_events_of_jobs_that_hosts_took_are_read_like_any_other(rig: Rig) -> None:
    """They are written together, and are one sequence with the others all the same."""
    one, two = await take_two(rig)
    rig.tick(1)
    ends = [(await rig.key(one), OK), (await rig.key(two), OK)]
    await rig.sync(ended=ends, live=[])
    await rig.submit()
    everything = await rig.store.events.read_events(None)
    told = [(e.kind, e.job_id) for e in everything if e.job_id in (one, two)]
    assert told == [
        ("job.submitted", one),
        ("job.submitted", two),
        ("job.reserved", one),
        ("job.reserved", two),
        ("job.started", one),
        ("job.succeeded", one),
        ("job.started", two),
        ("job.succeeded", two),
    ]
    started, succeeded = [e for e in everything if e.job_id == two][-2:]
    assert (started.message, started.data, started.attempt) == ("attempt 1 runs", {}, 1)
    assert (succeeded.message, succeeded.data) == ("succeeded", {"exit_code": 0})
    assert (succeeded.at, succeeded.epoch, succeeded.host_id) == (rig.now, 1, "h1")
    assert (succeeded.queue, succeeded.project, succeeded.rank) == ("cpu", "default", None)
    assert [e.id for e in everything] == sorted({e.id for e in everything})
    read = rig.store.events.read_events
    for i, event in enumerate(everything):
        assert await read(event.id, limit=2) == everything[i + 1 : i + 3]
        assert await read(None, tail=i + 1) == everything[-i - 1 :]
    mine = [e for e in everything if e.job_id == one]
    for i, event in enumerate(mine):
        assert await read(event.id, limit=2, job_id=one) == mine[i + 1 : i + 3]
        assert await read(None, tail=i + 1, job_id=one) == mine[-i - 1 :]
    both = await rig.store.events.list_events_of([one, two], last=2)
    assert both == {j: [e for e in everything if e.job_id == j][-2:] for j in (one, two)}
    kinds = ["job.started", "job.submitted"]
    assert await read(None, kinds=kinds) == [e for e in everything if e.kind in kinds]


async def test_events_of_one_job_are_deleted_and_those_written_with_them_stay(rig: Rig) -> None:
    one, two = await take_two(rig)
    await rig.sync(ended=[(await rig.key(one), OK)], live=[await rig.key(two)])
    rig.tick(86_400)
    await rig.sync(ended=[(await rig.key(two), OK)])
    assert await rig.store.jobs.prune(0.5, now=rig.now) == 2, "the first, and the one before it"
    assert await rig.events(one) == []
    told = ["job.submitted", "job.reserved", "job.started", "job.succeeded"]
    assert await rig.kinds(two) == told
    assert [e.kind for e in await rig.events() if e.job_id] == told
    rig.tick(86_400)
    assert await rig.store.jobs.prune(0.5, now=rig.now) == 1
    assert [e for e in await rig.events() if e.job_id] == []


async def take_two(rig: Rig) -> tuple[str, str]:
    """Return two jobs that a host took in one sync, which ended another."""
    await rig.host(slots=2)
    _, key = await rig.running(cpus=2)
    jobs = (await rig.submit(), await rig.submit())
    answer = await rig.sync(ended=[(key, OK)], takes=True)
    assert [offer.task.key.job_id for offer in answer.offers] == list(jobs)
    return jobs


async def test_the_last_event_that_the_history_lost_is_known(rig: Rig) -> None:
    await rig.host()
    assert await rig.store.events.find_pruned() is None
    old = await rig.submit()
    await succeed(rig, old)
    (*_, last) = await rig.events(old)
    await rig.submit()
    (*_, young) = await rig.events()
    rig.tick(86_400)
    assert await rig.store.jobs.prune(0.5, now=rig.now) == 1
    pruned = await rig.store.events.find_pruned()
    assert pruned is not None
    assert last.id <= pruned < young.id
