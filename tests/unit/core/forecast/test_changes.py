from typing import Any

import msgspec
from hypothesis import given

from holdfast.core.forecast.changes import find_changes, plan_once
from holdfast.core.forecast.forecast import Foretold, find_forecast, foretell_line
from holdfast.core.forecast.outlook import Change, Outlook, StartPace
from holdfast.core.forecast.spreads import Spread
from holdfast.core.placement.types import Candidate, QuotaLeft
from tests.unit.core.forecast.samples import make_host, make_job, make_outlook, make_task, outlooks

SPANS = {"4h": 14_400, "2h": 7200, "1h": 3600, "30m": 1800, "15m": 900, "5m": 300}


def apply(outlook: Outlook, job: Candidate, change: Change) -> tuple[Outlook, Candidate]:
    """Make the change as its hint says."""
    words = change.hint.split()
    fields: dict[str, Any] = {}
    if change.what in ("tasks", "gpus"):
        fields = {change.what: int(words[1])}
    elif change.what == "cpus":
        fields = {"cpu_slots": int(words[1])}
    elif change.what == "memory":
        fields = {"memory_bytes": int(words[1].removesuffix("G")) << 30}
    elif change.what == "queue":
        fields = {"queue": words[1]}
    elif change.what == "priority":
        fields = {"priority": int(words[1])}
    elif change.what == "time_limit":
        fields = {"time_limit_seconds": float(SPANS[words[1].rstrip(",")])}
    elif change.what == "host_label":
        gone = words[2].split("=")[0] if words else None
        left = {k: v for k, v in job.host_labels.items() if gone is not None and k != gone}
        fields = {"host_labels": left}
    elif change.what in ("quota", "budget"):
        outlook = msgspec.structs.replace(outlook, quotas={})
    elif change.what == "max_running":
        outlook = msgspec.structs.replace(outlook, headroom={})
    return outlook, msgspec.structs.replace(job, **fields)


@given(outlooks())
def test_each_change_that_is_named_makes_the_job_start(outlook: Outlook) -> None:
    """FORECAST-3: the whole line is planned with the changed job in it."""
    for job in outlook.line:
        for change in find_changes(outlook, job, ("gpu", "other")):
            changed, other = apply(outlook, job, change)
            others = [each for each in outlook.line if each is not job]
            if change.what == "priority":
                line = [each for each in others if each.priority >= other.priority]
                line += [other, *[e for e in others if e.priority < other.priority]]
            else:
                line = [other if each is job else each for each in outlook.line]
            plan = plan_once(changed, line)
            if change.stops:
                assert any(each.job_id == job.job_id for each in plan.preemptions), change
            else:
                assert any(each.job_id == job.job_id for each in plan.placements), change


def test_a_job_that_starts_as_it_is_needs_no_change() -> None:
    outlook = make_outlook(line=(make_job("a"),), hosts=(make_host("h", 1),))
    assert find_changes(outlook, outlook.line[0], ("gpu", "other")) == []


def say(outlook: Outlook, **words: Any) -> list[str]:
    job = outlook.line[-1]
    return [each.message for each in find_changes(outlook, job, ("gpu", "fast"), **words)]


def test_fewer_gpus_are_named_with_the_most_that_start() -> None:
    job = make_job("a", gpus=8)
    assert say(make_outlook(line=(job,), hosts=(make_host("h", 3),))) == [
        "with 3 GPUs in place of 8"
    ]


def test_fewer_tasks_another_queue_and_a_host_label_less_are_named() -> None:
    hosts = (
        make_host("h", 2, queues=frozenset({"gpu"}), labels={"zone": "a"}),
        make_host("f", 4, queues=frozenset({"fast"}), labels={"zone": "a"}),
        make_host("g", 4, queues=frozenset({"gpu"}), labels={"zone": "b"}),
    )
    job = make_job("a", tasks=3, host_labels={"zone": "a"})
    assert say(make_outlook(line=(job,), hosts=hosts)) == [
        "with 2 tasks in place of 3",
        "without the host label zone=a",
        "in queue fast",
    ]


def test_a_quota_a_limit_of_the_queue_and_a_paused_queue_are_named() -> None:
    job = make_job("a", project="x")
    hosts = (make_host("h", 1, queues=frozenset({"gpu"})),)
    short = make_outlook(line=(job,), hosts=hosts, quotas={"x": QuotaLeft(gpus=0)})
    assert say(short) == ["if project x had a larger quota (quota_gpus)"]
    full = make_outlook(line=(job,), hosts=hosts, headroom={"gpu": 0})
    assert say(full) == ["if queue gpu were allowed to run more jobs at once (max_running)"]
    assert say(make_outlook(line=(job,), hosts=hosts), paused=True) == [
        "if queue gpu were not paused"
    ]


def test_a_project_that_spent_its_budget_is_told_of_its_budget_and_of_no_quota() -> None:
    """And no start is foretold, because no end of another job lets it start (QUOTA-3)."""
    job, held = make_job("a", project="x"), QuotaLeft(jobs=0, held="project x has spent its budget")
    outlook = make_outlook(
        line=(job,),
        hosts=(make_host("h", 1),),
        running=(make_task("r", "h", project="x"),),
        ends={"r": Spread((100.0,))},
        quotas={"x": held},
    )
    assert say(outlook) == [
        "if project x had a larger budget for this month (budget_usd_per_month)"
    ]
    told = foretell_line(outlook)
    assert find_forecast(outlook, told, job, 0) is None
    paced = msgspec.structs.replace(outlook, pace=StartPace(starts=9, seconds=60.0))
    assert find_forecast(paced, Foretold(whole=False), job, 0) is None


def test_a_higher_priority_is_named_with_the_jobs_that_it_would_stop() -> None:
    task = make_task("r", "h", priority=20, preemptible=True, stoppable=True, ends_in_seconds=900.0)
    outlook = make_outlook(
        line=(make_job("a", priority=20),),
        hosts=(make_host("h", 0),),
        running=(task,),
        lowest_preemptible=20,
    )
    assert say(outlook) == [
        "with priority 21 in place of 20, once 1 running job had been stopped for it"
    ]


def test_a_shorter_time_limit_is_named_where_room_is_held_back() -> None:
    gang = make_job("gang", gpus=2, waited_seconds=100.0)
    small = make_job("small", time_limit_seconds=50_000.0)
    outlook = make_outlook(
        line=(gang, small),
        hosts=(make_host("h", 1),),
        running=(make_task("r", "h", time_limit_seconds=2060.0, ends_in_seconds=2000.0),),
        hold_back_seconds=60.0,
    )
    assert say(outlook)[0].startswith("with a time limit of 30m or less")


def test_nothing_is_claimed_where_jobs_ahead_are_not_known() -> None:
    job = make_job("deep", gpus=8)
    outlook = make_outlook(
        line=(make_job("a", gpus=8),), hosts=(make_host("h", 3),), floors={"gpu": 50}
    )
    assert find_changes(outlook, job, ("gpu",)) == []
