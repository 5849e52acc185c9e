"""What forecasts read of the store: the past, how far jobs are, places in line, and pools."""

from __future__ import annotations

from holdfast.core.fleet.instances import Offer
from holdfast.core.fleet.pools import PoolSpec
from holdfast.core.states import HostState
from holdfast.moves.values import TaskBeat
from tests.store.rig import OK, Rig

A100 = Offer(name="a100", gpus=1, cpu_slots=4, usd_per_hour=2.0)


async def test_the_past_shows_starts_and_how_long_jobs_took(rig: Rig) -> None:
    await rig.host(slots=2)
    quick, key = await rig.running(name="train")
    rig.tick(100)
    await rig.sync(ended=[(key, OK)])
    await rig.running(name="other")
    rig.tick(10)
    past = await rig.store.forecasts.read_past(now=rig.now)
    starts = sorted(each.age_seconds for each in past if each.what == "start")
    ends = [each for each in past if each.what == "end"]
    assert (await rig.job(quick)).state.terminal
    assert [round(age) for age in starts] == [10, 110]
    assert [(e.kin, e.project, e.queue, round(e.seconds or 0)) for e in ends] == [
        ("train", "default", "cpu", 100)
    ]


async def test_the_past_is_bounded_and_forgets_starts_after_a_day(rig: Rig) -> None:
    await rig.host(slots=8)
    _, key = await rig.running()
    await rig.sync(ended=[(key, OK)])
    rig.tick(2 * 86_400)
    past = await rig.store.forecasts.read_past(now=rig.now)
    assert [each.what for each in past] == ["end"]


async def test_a_job_that_beats_tells_the_time_that_is_left(rig: Rig) -> None:
    await rig.host()
    job, key = await rig.running()
    silent, other = await rig.running()
    rig.tick(100)
    beat = TaskBeat(key=key, step=25, total=100, age_seconds=0.0, rate=0.25)
    await rig.sync(live=[key, other], beats=[beat])
    left = await rig.store.forecasts.read_left(now=rig.now)
    assert set(left) == {job}
    assert silent not in left
    assert 290 < left[job] < 310


async def test_jobs_ahead_are_counted_by_queue_and_up_to_a_limit(rig: Rig) -> None:
    await rig.submit(priority=90)
    await rig.submit()
    await rig.submit(queue="gpu", gpus=1)
    me = await rig.submit()
    await rig.submit()
    await rig.submit(priority=10)
    count = rig.store.forecasts.count_ahead
    assert await count(me, ["cpu", "gpu"], 10) == {"cpu": 2, "gpu": 1}
    assert await count(me, ["cpu"], 1) == {"cpu": 1}
    assert await rig.store.forecasts.count_queued(["cpu", "gpu"], 3) == 4


async def test_the_line_shows_jobs_that_only_later_may_start(rig: Rig) -> None:
    await rig.host(queues=("gpu",), gpus=1)
    unserved = await rig.submit()
    line = await rig.store.admission.read_line(10, now=rig.now)
    assert [job.job_id for job in line.candidates] == [unserved]
    assert (await rig.store.admission.read_admission(10, now=rig.now)).candidates == ()


async def test_a_pool_shows_its_machines_and_how_long_they_took_to_come(rig: Rig) -> None:
    fleet = rig.store.fleet
    spec = PoolSpec(name="p", provider="local", offers=(A100,), max=4)
    await fleet.put_pool(spec, now=rig.now)
    await fleet.intend("p", A100, ["host-aaaaaaaa", "host-bbbbbbbb"], "", now=rig.now)
    rig.tick(30)
    (pool,) = await rig.store.forecasts.read_rentals(now=rig.now)
    assert pool.starting == (30.0, 30.0)
    assert [host.state for host in pool.view.hosts] == [HostState.SPAWNING] * 2
    assert (pool.view.starting, pool.view.present, pool.spawn_seconds) == (2, 2, ())


async def test_live_queues_and_projects_are_those_of_the_full_lists_without_what_waits(
    rig: Rig,
) -> None:
    await rig.host(slots=1)
    await rig.running()
    await rig.submit()
    settings = rig.store.settings
    (queue,) = [each for each in await settings.list_live_queues() if each.name == "cpu"]
    assert (queue.running, queue.queued) == (1, 0)
    live = await settings.list_live_projects({"default", "new"})
    assert [(each.name, each.running, each.unfinished) for each in live] == [
        ("default", 1, 0),
        ("new", 0, 0),
    ]
    await rig.submit(project="waits")
    found = await settings.list_live_projects()
    assert [(each.name, each.unfinished) for each in found] == [("default", 0), ("waits", 0)]


async def test_arrivals_are_those_of_higher_priority_that_started_lately(rig: Rig) -> None:
    await rig.host()
    urgent, _ = await rig.running(priority=90)
    await rig.running()
    await rig.submit(priority=90, gpus=8)
    rig.tick(100)
    found = await rig.store.forecasts.read_arrivals(50, 3600.0, now=rig.now)
    assert [(age, job.job_id) for age, job in found] == [(100.0, urgent)]
    assert await rig.store.forecasts.read_arrivals(50, 60.0, now=rig.now) == []
