"""`why` promises nothing that does not come: no end of others, no reclaim, no log."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from holdfast.controller.why.circumstances import Circumstances
from holdfast.controller.why.explain import explain
from holdfast.controller.why.retries import explain_quota
from holdfast.controller.why.shares import explain_idle, explain_share
from holdfast.core.placement.types import Share
from holdfast.core.records import ProjectRecord, QueueRecord, TaskRecord
from holdfast.core.report.idle import IdleGpus, IdlePolicy
from holdfast.core.states import TaskState
from tests.unit.cli.stub import host_record, job_record

NOW = datetime(2026, 5, 4, 12, tzinfo=UTC)


def around(job: Any, **more: Any) -> Circumstances:
    queue = QueueRecord(name="cpu", settings={}, created_at=NOW)
    fields: dict[str, Any] = {"queue": queue, "tasks": (), "hosts": (), "place": 0, "now": NOW}
    return Circumstances(job=job, **{**fields, **more})


@pytest.mark.parametrize(
    ("running", "may", "hint"),
    [
        (1, 1, "it starts when one of them ends; or holdfast projects set p quota_jobs=N"),
        (3, 1, "it starts when 3 of them end; or holdfast projects set p quota_jobs=N"),
        (1, 0, "no end of others makes it start, only a higher quota: holdfast projects set p quota_jobs=N"),
        (0, 0, "no end of others makes it start, only a higher quota: holdfast projects set p quota_jobs=N"),
    ],
)  # fmt: skip
def test_a_quota_of_jobs_says_how_many_ends_it_waits_for(running: int, may: int, hint: str) -> None:
    project = ProjectRecord(name="p", settings={}, running=running)
    found = around(job_record(state="queued"), project=project, quota_jobs=may)
    assert [line.hint for line in explain_quota(found)] == [hint]


@pytest.mark.parametrize(
    ("nans", "says"),
    [
        ([0], None),
        ([2], None),
        ([7], "the loss was NaN or infinite for the last 7 beats"),
        ([0, 3, 9], "the loss of 2 of its 3 ranks was NaN or infinite for the last 9 beats"),
    ],
)
def test_a_loss_that_stays_nan_is_told(nans: list[int], says: str | None) -> None:
    tasks = tuple(
        TaskRecord(
            job_id="j", rank=rank, epoch=1, attempt=1, state=TaskState.RUNNING, nan_beats=each
        )
        for rank, each in enumerate(nans)
    )
    found = around(job_record(state="running", attempts=1, tasks=len(nans)), tasks=tasks)
    told = [line.message for line in explain(found).lines if line.code == "loss_not_finite"]
    assert [each.partition(";")[0] for each in told] == ([] if says is None else [says])


@pytest.mark.parametrize(
    ("held", "may", "says"),
    [(4, 4, "when one of them is free"), (4, 3, "when 2 of them are free"), (0, 0, "no end of")],
)
def test_a_quota_of_gpus_does_so_too(held: int, may: int, says: str) -> None:
    project = ProjectRecord(name="p", settings={}, gpus=held)
    found = around(job_record(state="queued", gpus=1), project=project, quota_gpus=may)
    (line,) = explain_quota(found)
    assert says in line.hint


def test_a_spent_budget_says_what_releases_the_job() -> None:
    held = "project p has spent its budget of $5.00 for May 2026 (budget_usd_per_month, at_budget=hold)"
    project = ProjectRecord(name="p", settings={}, held=held)
    (line, *_) = explain_quota(around(job_record(state="queued"), project=project))
    assert line.message == f"{held}, so it waits for the next month or for a higher budget"
    assert line.hint == "holdfast projects set p budget_usd_per_month=N, or at_budget=notice"


def test_a_job_that_holds_idle_gpus_says_when_it_is_stopped() -> None:
    told_at = NOW - timedelta(minutes=10)
    since = NOW - timedelta(minutes=40)
    idle = IdleGpus(job_id="j", epoch=1, gpus=2, since=since, seen_at=NOW, told_at=told_at)
    job = job_record(state="running", gpus=2)
    (line,) = explain_idle(around(job, idle=idle, idle_policy=IdlePolicy(then="drain")))
    assert line.message == (
        "it holds 2 GPUs that did nothing for 40 min; unless they work, it is stopped in 20 min and "
        "queued again"
    )
    untold = msgspec.structs.replace(idle, told_at=None)
    assert list(explain_idle(around(job, idle=untold))) == []


@pytest.mark.parametrize(
    ("reclaims", "says"),
    [(True, "are stopped for it where that makes enough room"), (False, "it waits for free room")],
)
def test_a_reclaim_is_promised_only_where_one_may_come(reclaims: bool, says: str) -> None:
    share = Share(gpus=0, cpu_slots=4)
    found = around(job_record(state="queued"), share=share, reclaims=reclaims)
    (line,) = explain_share(found)
    assert line.message.endswith(says)


@pytest.mark.parametrize(("attempts", "offers"), [(0, False), (1, True)])
def test_logs_are_offered_only_where_there_are_some(attempts: int, offers: bool) -> None:
    job = job_record(state="cancelled", attempts=attempts, reason="cancelled by a")
    (line,) = explain(around(job)).lines
    assert ("holdfast logs" in line.hint) is offers
    assert "holdfast retry" in line.hint


def test_each_host_that_takes_no_work_has_its_own_way_back() -> None:
    hosts = tuple(host_record(id=s, name=s, state=s) for s in ("draining", "quarantined", "error"))
    (line,) = explain(around(job_record(state="queued", attempts=0), hosts=hosts)).lines
    assert line.message.endswith("draining is draining, quarantined is quarantined, error is error")
    assert line.hint == "holdfast hosts undrain draining or holdfast hosts release quarantined"
