"""The routes of schedules."""

import itertools
import re

import msgspec
from starlette.responses import Response

from holdfast.controller.api.jobs import check_specs, find_notes
from holdfast.controller.api.schedule_runs import run_now
from holdfast.controller.http.endpoints import ApiCall
from holdfast.controller.http.owners import name_caller
from holdfast.controller.http.pages import answer_page
from holdfast.controller.http.problems import answer_json
from holdfast.controller.runtime.auth import make_new_id
from holdfast.core.arrays.schedules import ScheduleSpec, check_schedule, list_times, next_after
from holdfast.core.bundles.code import CodeRef
from holdfast.errors import ValidationError
from holdfast.moves.values import NewSchedule
from holdfast.wire.operations.queries import NextQuery, RunsOfScheduleQuery, SchedulesQuery
from holdfast.wire.schedules import SchedulePause, ScheduleTimes

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


async def put_schedule(call: ApiCall) -> Response:
    """Make a schedule, or change the schedule of that name."""
    name = call.params["name"]
    if not _NAME.fullmatch(name):
        text = "a schedule's name is letters, digits, dots, dashes and underscores"
        raise ValidationError(text, field="name")
    now = await call.store.now()
    spec = check_schedule(await call.body(ScheduleSpec), now)
    (checked,) = await check_specs(call.controller, [spec.job], ["job."], owner=call.user)
    schedule = NewSchedule(
        id=make_new_id(),
        name=name,
        owner=call.user,
        spec=spec,
        queue=checked.queue,
        next_at=next_after(spec, now, now),
    )
    # Its anchor is the very moment from which its first time was counted, or that would come twice.
    made = await call.store.schedules.put_schedule(schedule, now=now)
    call.controller.poke("schedules", "events")
    return answer_json(made, 200, await find_notes(call.controller, [spec.job]))


async def pin_schedule(call: ApiCall) -> Response:
    """Give the schedule's job other code; its times and all else of it stay."""
    code, store = await call.body(CodeRef), call.store.schedules
    schedule = await store.get_schedule(call.params["name"])
    secrets = await store.read_secrets(schedule.name)
    job = msgspec.structs.replace(schedule.spec.job, code=code, secrets=secrets)
    spec = msgspec.structs.replace(schedule.spec, job=job)
    (checked,) = await check_specs(call.controller, [job], ["job."], owner=schedule.owner)
    pinned = await store.put_schedule(
        NewSchedule(
            id=schedule.id,
            name=schedule.name,
            owner=schedule.owner,
            spec=spec,
            queue=checked.queue,
            next_at=schedule.next_at,
        )
    )
    call.controller.poke("events")
    return answer_json(pinned)


async def list_schedules(call: ApiCall) -> Response:
    """List every schedule, or those of one owner."""
    owner = name_caller(call, call.query(SchedulesQuery)).owner
    found = await call.store.schedules.list_schedules()
    return answer_page([row for row in found if owner in (None, row.owner)])


async def get_schedule(call: ApiCall) -> Response:
    """Return one schedule."""
    return answer_json(await call.store.schedules.get_schedule(call.params["name"]))


async def delete_schedule(call: ApiCall) -> Response:
    """Forget the schedule; its jobs stay."""
    await call.store.schedules.delete_schedule(call.params["name"])
    call.controller.poke("events")
    return Response(status_code=204)


async def pause_schedule(call: ApiCall) -> Response:
    """Pause the schedule: none of its times starts a job."""
    request = await call.body(SchedulePause, default=SchedulePause())
    reason = request.reason or f"paused by {call.caller_name}"
    paused = await call.store.schedules.pause_schedule(call.params["name"], reason)
    call.controller.poke("events")
    return answer_json(paused)


async def resume_schedule(call: ApiCall) -> Response:
    """Resume the schedule, from now on."""
    schedule = await call.store.schedules.get_schedule(call.params["name"])
    following = next_after(schedule.spec, schedule.anchor, await call.store.now())
    resumed = await call.store.schedules.resume_schedule(schedule.name, following)
    call.controller.poke("schedules", "events")
    return answer_json(resumed)


async def run_schedule(call: ApiCall) -> Response:
    """Submit the schedule's job now."""
    schedule = await call.store.schedules.get_schedule(call.params["name"])
    await check_specs(call.controller, [schedule.spec.job], ["job."], owner=schedule.owner)
    job_id = await run_now(call.controller, schedule)
    return answer_json(await call.store.jobs.get_job(job_id), 201)


async def list_next(call: ApiCall) -> Response:
    """List the schedule's next times."""
    query = call.query(NextQuery)
    schedule = await call.store.schedules.get_schedule(call.params["name"])
    now = await call.store.now()
    times = list_times(schedule.spec, schedule.anchor, now)
    found = list(itertools.islice(times, query.count))
    return answer_json(ScheduleTimes(times=found, time_zone=schedule.spec.time_zone))


async def list_runs(call: ApiCall) -> Response:
    """List the schedule's past times, each with its job or with the reason why there is none."""
    query = call.query(RunsOfScheduleQuery)
    runs = await call.store.schedules.list_runs(call.params["name"], limit=query.limit)
    return answer_page(runs)
