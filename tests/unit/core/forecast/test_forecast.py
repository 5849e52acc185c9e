import math

import msgspec
from hypothesis import given

from holdfast.core.forecast.changes import plan_once
from holdfast.core.forecast.forecast import Foretold, find_forecast, foretell_by_pace, foretell_line
from holdfast.core.forecast.outlook import JobArrival, Outlook, StartPace
from holdfast.core.forecast.spreads import Spread
from holdfast.core.forecast.world import World
from holdfast.core.placement.types import QuotaLeft
from tests.unit.core.forecast.samples import (
    make_host,
    make_job,
    make_outlook,
    make_pool,
    make_task,
    outlooks,
)


@given(outlooks())
def test_no_forecast_lies_before_now_and_its_times_stand_in_order(outlook: Outlook) -> None:
    """FORECAST-1."""
    for found in foretell_line(outlook, 20_000).known.values():
        latest = math.inf if found.latest_seconds is None else found.latest_seconds
        assert 0.0 <= found.earliest_seconds <= found.expected_seconds <= latest
        assert math.isfinite(found.expected_seconds)


@given(outlooks())
def test_a_job_is_expected_now_if_the_planner_starts_it_and_no_other_is(outlook: Outlook) -> None:
    """FORECAST-2."""
    known = foretell_line(outlook, 60_000).known
    started = {each.job_id for each in plan_once(outlook, outlook.line).placements}
    for job_id in started:
        assert known[job_id].latest_seconds == 0.0
    for job_id, found in known.items():
        assert job_id in started or found.expected_seconds > 0.0


def test_a_job_that_room_is_held_back_from_is_not_expected_now_behind_three_gangs() -> None:
    """Found by a day that was lived through twice: held room for the third gang was given away."""
    outlook = make_outlook(
        line=(
            *(make_job(f"big{n}", gpus=4, waited_seconds=900.0) for n in range(3)),
            make_job("small", waited_seconds=90.0, time_limit_seconds=7200.0),
        ),
        hosts=tuple(make_host(f"h{n}", 1) for n in range(3)),
        running=tuple(
            make_task(f"r{n}", f"h{n}", 3, time_limit_seconds=600.0, ends_in_seconds=540.0)
            for n in range(3)
        ),
        ends={f"r{n}": Spread((540.0,)) for n in range(3)},
        hold_back_seconds=60.0,
    )
    assert not plan_once(outlook, outlook.line).placements
    assert foretell_line(outlook).known["small"].expected_seconds > 0.0


def test_a_job_alone_on_free_room_starts_now() -> None:
    outlook = make_outlook(line=(make_job("a"),), hosts=(make_host("h", 1),))
    found = foretell_line(outlook).known["a"]
    assert (found.earliest_seconds, found.expected_seconds, found.latest_seconds) == (0, 0, 0)


def test_jobs_of_known_length_start_one_after_the_other() -> None:
    outlook = make_outlook(
        line=tuple(make_job(f"j{n}") for n in range(3)),
        hosts=(make_host("h", 0),),
        running=(make_task("r", "h"),),
        ends={"r": Spread((100.0,))},
    )
    found = foretell_line(outlook).known
    assert [found[f"j{n}"].expected_seconds for n in range(3)] == [100, 150, 200]


def test_a_gang_waits_for_all_of_its_room_and_a_small_job_ends_in_time_before_it() -> None:
    line = (
        make_job("gang", tasks=2, waited_seconds=100.0, time_limit_seconds=900.0),
        make_job("long", time_limit_seconds=900.0),
        make_job("short", time_limit_seconds=50.0),
    )
    outlook = make_outlook(
        line=line,
        hosts=(make_host("h", 1),),
        running=(make_task("r", "h", time_limit_seconds=160.0, ends_in_seconds=100.0),),
        ends={"r": Spread((100.0,))},
        hold_back_seconds=60.0,
    )
    found = foretell_line(outlook).known
    assert found["short"].expected_seconds == 0
    assert found["gang"].expected_seconds == 100
    assert found["long"].expected_seconds > 100


def test_a_pool_brings_the_host_that_a_job_waits_for() -> None:
    found = foretell_line(make_outlook(line=(make_job("a"),), pools=(make_pool(),))).known["a"]
    assert 100 <= found.expected_seconds <= 110


def test_a_pool_that_backs_off_rents_once_that_is_over() -> None:
    pool = make_pool(resumes_seconds=300.0)
    found = foretell_line(make_outlook(line=(make_job("a"),), pools=(pool,))).known["a"]
    assert 400 <= found.expected_seconds <= 410


def test_a_job_that_nothing_will_ever_make_room_for_has_no_forecast() -> None:
    outlook = make_outlook(line=(make_job("a", gpus=4),), hosts=(make_host("h", 1),))
    told = foretell_line(outlook)
    assert (told.known, told.whole) == ({}, True)
    assert find_forecast(outlook, told, outlook.line[0], 0) is None
    paced = msgspec.structs.replace(outlook, pace=StartPace(starts=600, seconds=3600.0))
    assert find_forecast(paced, told, outlook.line[0], 0) is None


def test_no_start_is_foretold_for_what_no_host_and_no_pool_can_hold() -> None:
    """The pool looks again and again, so no replay of it is ever whole; and the pace is that of others."""
    pace = StartPace(starts=600, seconds=3600.0)
    large, small = make_job("large", gpus=4), make_job("small")
    busy = {"hosts": (make_host("h", 0),), "running": (make_task("r", "h"),), "pace": pace}
    grows = make_outlook(pools=(make_pool(),), **busy)
    assert find_forecast(grows, Foretold(whole=False), large, 0) is None
    assert find_forecast(grows, Foretold(whole=False), small, 0) is not None
    fails = make_outlook(pools=(make_pool(failing=1.0),), hosts=(), pace=pace)
    assert find_forecast(fails, Foretold(whole=False), small, 0) is None
    assert find_forecast(
        make_outlook(pools=(make_pool(failing=0.5),), pace=pace), Foretold(whole=False), small, 0
    )


def test_a_job_deep_in_the_line_is_expected_by_the_pace_of_starts() -> None:
    found = foretell_by_pace(999, StartPace(starts=600, seconds=3600.0))
    assert found is not None
    assert found.expected_seconds == 6000.0
    assert found.latest_seconds is not None
    assert found.earliest_seconds < 6000.0 < found.latest_seconds
    assert foretell_by_pace(999, StartPace(starts=1, seconds=3600.0)) is None


def test_a_job_with_more_jobs_ahead_than_are_counted_has_an_earliest_start_alone() -> None:
    pace = StartPace(starts=600, seconds=3600.0)
    outlook = make_outlook(hosts=(make_host("h", 1),), pace=pace)
    found = find_forecast(outlook, Foretold(), make_job("deep"), 9_999, more=True)
    assert found is not None
    assert (found.earliest_seconds, found.latest_seconds) == (60_000.0, None)


def test_the_work_of_a_forecast_is_bounded() -> None:
    hosts = tuple(make_host(f"h{n}", 0) for n in range(100))
    running = tuple(make_task(f"r{n}", f"h{n}") for n in range(100))
    outlook = make_outlook(
        line=tuple(make_job(f"j{n}") for n in range(400)),
        hosts=hosts,
        running=running,
        ends={f"r{n}": Spread((float(n * 100),)) for n in range(100)},
    )
    assert len(foretell_line(outlook, 1000).known) < 400


def test_jobs_of_higher_priority_that_came_lately_come_again() -> None:
    again = JobArrival(age_seconds=60.0, job=make_job("urgent", priority=90), span=Spread((500.0,)))
    outlook = make_outlook(
        line=(make_job("a"),),
        hosts=(make_host("h", 0),),
        running=(make_task("r", "h"),),
        ends={"r": Spread((100.0,))},
    )
    often = msgspec.structs.replace(outlook, arrivals=(again,), arrivals_seconds=100.0)
    alone = foretell_line(outlook).known["a"]
    assert alone.expected_seconds == 100
    assert "a" not in foretell_line(often, 50_000).known
    rare = msgspec.structs.replace(often, arrivals_seconds=1000.0)
    found = foretell_line(rare).known["a"]
    assert found.expected_seconds == 100
    assert found.latest_seconds is not None
    assert found.latest_seconds > 600


def test_a_job_that_a_replay_starts_is_seen_by_the_planner_with_its_limit_and_its_expectation() -> (
    None
):
    """Else room that it will leave could not be held back for a larger job."""
    job = make_job("a", time_limit_seconds=600.0, expected_seconds=90.0, kin="train")
    outlook = make_outlook(line=(job,), hosts=(make_host("h", 1),))
    (place,) = plan_once(outlook, outlook.line).placements
    world = World(outlook)
    world.start(job, place, 0.0, 100.0)
    (task,) = world.list_running(30.0)
    assert (task.time_limit_seconds, task.expected_seconds, task.kin) == (600.0, 90.0, "train")
    assert (task.ran_seconds, task.ends_in_seconds) == (30.0, 60.0)


def test_the_end_of_a_job_gives_its_queues_limit_and_its_projects_quota_back() -> None:
    outlook = make_outlook(
        line=(make_job("a", project="x"),),
        hosts=(make_host("h", 4),),
        running=(make_task("r", "h", project="x"),),
        ends={"r": Spread((100.0,))},
        headroom={"gpu": 0},
        quotas={"x": QuotaLeft(jobs=0, gpus=0)},
    )
    assert foretell_line(outlook).known["a"].expected_seconds == 100


def test_room_is_held_back_for_a_gang_once_it_will_have_waited_for_long() -> None:
    long = {"time_limit_seconds": 500.0}
    outlook = make_outlook(
        line=(make_job("gang", tasks=2, **long), make_job("a", **long), make_job("b", **long)),
        hosts=(make_host("h", 0),),
        running=(
            make_task("r", "h", time_limit_seconds=130.0),
            make_task("s", "h", time_limit_seconds=160.0),
        ),
        ends={"r": Spread((70.0,)), "s": Spread((100.0,))},
        hold_back_seconds=60.0,
    )
    assert foretell_line(outlook).known["gang"].expected_seconds == 100
