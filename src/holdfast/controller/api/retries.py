"""The routes of retries: a job's policy, a person's retry, and the kill switches."""

from starlette.responses import Response

from holdfast.controller.api.jobs import find_job
from holdfast.controller.http.endpoints import ApiCall
from holdfast.controller.http.problems import answer_json
from holdfast.controller.runtime.context import Controller
from holdfast.core.records import JobRecord
from holdfast.core.retry import SETTING_OF
from holdfast.core.settings.resolve import Value
from holdfast.core.states import JobState
from holdfast.errors import Conflict
from holdfast.wire.api import (
    PolicyField,
    PolicyView,
    RetriesOf,
    RetriesView,
    RetryHold,
    RetryRequest,
)


async def get_policy(call: ApiCall) -> Response:
    """Return its retry policy, and where each field comes from."""
    job = await find_job(call)
    settings = await call.controller.settings.current()
    effective = settings.effective(job.queue, job.spec)
    policy = settings.policy(job.queue, job.spec)
    fields = []
    for field, name in SETTING_OF.items():
        value: Value | list[str] = effective[name].value
        if field == "eligible_causes":
            value = [str(cause) for cause in policy.retry.eligible_causes]
        fields.append(PolicyField(field=field, source=effective[name].source, value=value))
    return answer_json(PolicyView(policy=policy.retry, fields=fields, held=policy.held))


async def retry_job(call: ApiCall) -> Response:
    """Give a job that failed, was cancelled or is parked another attempt, or the parked members of
    one that runs another try."""
    request = await call.body(RetryRequest, default=RetryRequest())
    controller, job = call.controller, await find_job(call)
    caller = call.caller_name
    if job.state in (JobState.RESERVED, JobState.RUNNING) and not (
        request.counted or request.from_scratch
    ):
        going_on = await controller.store.members.unpark_members(job.id, f"tried again by {caller}")
        controller.poke("admit", "events")
        return answer_json(going_on)
    if job.wait_cause == "back_off":
        reason = f"{caller} had it tried again before its back-off was over"
    elif request.counted:
        number, allowed = await _count_retry(controller, job)
        reason = f"retried by {caller}, counted as retry {number} of {allowed}"
    else:
        reason = f"retried by {caller}, not counted: all its budgets begin anew"
    if request.from_scratch:
        reason += "; from scratch"
    revived = await controller.store.jobs.revive_job(
        job.id, reason, counted=request.counted, from_scratch=request.from_scratch
    )
    controller.poke("admit", "events")
    return answer_json(revived)


async def _count_retry(controller: Controller, job: JobRecord) -> tuple[int, int]:
    """Return the number of a counted retry, and how many there may be. Raises Conflict when they
    are spent."""
    settings = await controller.settings.current()
    allowed = settings.policy(job.queue, job.spec).retry.max_retries
    if job.spec.interactive:
        raise Conflict(
            f"job {job.id} is interactive and has no retries; leave --counted out",
            code="retries_spent",
        )
    attempts = await controller.store.jobs.list_attempts(job.id)
    # Counted before its last attempt, because the last failure was charged but not retried.
    made = max(attempts, key=lambda a: a.number).retry_count if attempts else 0
    if job.tasks > 1:
        made = max(0, job.counted_retries - 1)
    if job.state.terminal and made >= allowed:
        had = "it was given no retries"
        if allowed:
            had = "its one retry is" if allowed == 1 else f"all {allowed} of its retries are"
            had += " spent"
        raise Conflict(
            f"job {job.id}: {had}. Retry it without counting (all budgets begin anew), or raise "
            "max_retries",
            code="retries_spent",
        )
    return made + 1, allowed


async def get_retries(call: ApiCall) -> Response:
    """List the kill switches that hold retries back, and count the jobs that wait."""
    settings = await call.controller.settings.refresh()
    counts = await call.store.jobs.count_waiting()
    projects = {project for project, cause in counts if cause in ("back_off", "retries_held")}
    rows = [
        RetriesOf(
            project=p,
            backing_off=counts.get((p, "back_off"), 0),
            held=counts.get((p, "retries_held"), 0),
        )
        for p in sorted(projects)
    ]
    limit = settings.value("retry_rate_limit")
    view = RetriesView(
        enabled=not settings.find_holders(),
        holds=[RetryHold(source=s, project=p, reason=r) for s, p, r in settings.find_holders()],
        backing_off=sum(row.backing_off for row in rows),
        held=sum(row.held for row in rows),
        rate_limit=None if limit is None else float(limit),
        projects=rows,
    )
    return answer_json(view)
