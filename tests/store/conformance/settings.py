"""What every store must do for `store.settings`."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.core.causes import Cause, Watchdog
from holdfast.core.facts import TaskFacts, Trip
from holdfast.core.states import JobState, TaskState
from holdfast.errors import ValidationError
from tests.store.rig import Rig


async def test_a_hard_pause_stops_what_runs_at_no_charge(rig: Rig) -> None:
    await rig.host()
    job_id, key = await rig.running()
    told = await rig.submit()
    await rig.admit()
    assert sorted(
        await rig.store.settings.pause_queue("cpu", "broken data", hard=True, now=rig.now)
    ) == sorted([job_id, told])
    (order,) = (await rig.sync(live=[key])).preempts
    assert (order.operator_stop, order.cause, order.hard) == (True, Cause.PREEMPTED, False)
    assert (await rig.store.jobs.list_tasks(told))[
        0
    ].state is TaskState.PREEMPTED  # no host had been told
    trip = Trip(watchdog=Watchdog.OPERATOR_STOP, exit_code=79, reason="switched off")
    await rig.sync(ended=[(key, TaskFacts(signal=15, stopped=True, trip=trip))])
    await rig.complete()
    for found in (job_id, told):
        job = await rig.job(found)
        assert (job.state, job.retries_charged, job.infra_charged, job.watchdog_charged) == (
            JobState.QUEUED,
            0,
            0,
            0,
        )
    assert (await rig.store.jobs.list_attempts(job_id))[0].exit_code == 79


async def test_an_own_ingest_lane_begins_as_one(rig: Rig) -> None:
    """An hour, and a trip fails it, unless that is set; later changes stand by themselves."""
    put = rig.store.settings.put_queue
    lane = {"time_limit_seconds": 3600.0, "on_trip": "fail"}
    assert (await put("ingest-mirror", {}, now=rig.now)).settings == lane
    changed = await put("ingest-mirror", {"on_trip": "requeue"}, now=rig.now)
    assert changed.settings == {**lane, "on_trip": "requeue"}
    assert (await put("ingest-mirror", {}, ["on_trip"], now=rig.now)).settings == {
        "time_limit_seconds": 3600.0
    }
    own = await put("ingest-slow", {"time_limit_seconds": 60.0}, now=rig.now)
    assert own.settings == {"time_limit_seconds": 60.0, "on_trip": "fail"}
    assert (await put("ingested", {}, now=rig.now)).settings == {}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("no_such", 1),
        ("max_retries", -1),
        ("stall_timeout_seconds", 5),
        ("retry_on", "user_cancelled"),
        ("max_running", 3),
    ],
)
async def test_a_project_refuses_what_is_not_its_to_set(rig: Rig, name: str, value: Any) -> None:
    with pytest.raises(ValidationError):
        await rig.store.settings.put_project("a", {name: value}, now=rig.now)
    assert (await rig.store.settings.read_settings()).projects == {}
    with pytest.raises(ValidationError):
        await rig.store.settings.put_queue("gpu", {"max_retries": 1}, now=rig.now)
