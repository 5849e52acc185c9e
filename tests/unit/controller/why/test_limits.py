"""What stops a job by the clock, and how long it should take, in the words of `submit`, `show`, `why`."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from holdfast.controller.why.limits import explain_queued, explain_running, make_limits
from holdfast.core.records import JobRecord
from holdfast.core.settings.resolve import Effective
from holdfast.core.settings.watch import WatchSettings
from holdfast.core.spec import JobSpec
from holdfast.core.states import JobState
from holdfast.wire.api import JobLimits, WhyLine

T0 = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
NONE = Effective("time_limit_seconds", None, "default")
UNWATCHED = WatchSettings(stall_watch=False, health_watch="off")


def make_job(**spec: Any) -> JobRecord:
    return JobRecord(
        id="j", project="p", queue="q", state=JobState.RUNNING, reason="", tasks=1, epoch=1, attempts=1, created_at=T0,
        name="n", priority=50, gpus=0, cpu_slots=1, memory_bytes=0, labels={}, started_at=T0,
        spec=JobSpec(argv=("x",), **spec),
    )  # fmt: skip


def limits_of(
    job: JobRecord,
    limit: Effective = NONE,
    history: float | None = None,
    watch: WatchSettings = UNWATCHED,
) -> JobLimits:
    return make_limits(job, limit, history, watch)


def say(job: JobRecord, limits: JobLimits, seconds: float) -> dict[str, WhyLine]:
    lines = explain_running(job, limits, T0 + timedelta(seconds=seconds), watched=True)
    return {line.code: line for line in lines}


def test_the_sentence_names_whose_limit_stops_it_or_that_none_does() -> None:
    job = make_job()
    assert "nothing stops it" in limits_of(job).sentence
    hung = limits_of(job, watch=WatchSettings()).sentence
    assert "2 min after its last beat if it does nothing (after 30 min where" in hung
    unlimited = limits_of(job, watch=WatchSettings(silence_limit_seconds=None)).sentence
    assert "30 min" not in unlimited
    assert hung.startswith("it has no time limit")
    for source, words in {
        "job": "its submission names", "queue": "queue q sets", "project": "project p sets", "cluster": "the cluster sets",
    }.items():  # fmt: skip
        limit = Effective("time_limit_seconds", 7200.0, source)
        said = limits_of(job, limit).sentence
        assert said == f"it is stopped after 2.0 h, the time limit that {words}"
        assert words in say(job, limits_of(job, limit), 60.0)["time_limit"].message


def test_an_overrun_is_told_with_the_promise_that_it_goes_on() -> None:
    own = make_job(expected_seconds=100.0)
    by_name = limits_of(make_job(), history=100.0)
    assert (by_name.expected_source, by_name.backfills) == ("history", True)
    assert limits_of(own, history=900.0).expected_seconds == 100.0
    early = say(own, limits_of(own), 40.0)["expected"].message
    assert early == "it should end in about 60 s, if it takes 100 s, as its submission says"
    late = say(own, by_name, 160.0)["overrun"].message
    assert late.startswith(
        "it has run 60 s longer than 100 s, which it should take as the last jobs"
    )
    assert late.endswith("it goes on, because an expectation stops nothing")


def test_a_queued_job_without_an_end_is_told_what_starts_it_sooner() -> None:
    job = make_job()
    (line,) = explain_queued(job, limits_of(job))
    assert "--expected" in line.hint
    limit = Effective("time_limit_seconds", 60.0, "queue")
    assert list(explain_queued(job, limits_of(job, limit))) == []
    assert list(explain_queued(job, limits_of(job, history=5.0))) == []
    executor = make_job(executor="app-1")
    assert list(explain_queued(executor, limits_of(executor))) == []
