"""The routes of retries: a job's policy and attempts, a person's retry, and the kill switches."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from starlette.responses import Response

from holdfast.controller.api.jobs import change_in_parts, find_job
from holdfast.controller.http.endpoints import ApiCall
from holdfast.controller.http.pages import answer_page, check_job_id
from holdfast.controller.http.problems import answer_json
from holdfast.controller.runtime.context import Controller
from holdfast.controller.runtime.settings import Settings
from holdfast.core.records import AttemptRecord, JobRecord
from holdfast.core.retry import SETTING_OF
from holdfast.core.settings.resolve import Value
from holdfast.core.states import JobState
from holdfast.errors import Conflict, NotFound
from holdfast.moves.jobs.requests import Changed, no_job
from holdfast.wire.api import (
    PolicyField,
    PolicyView,
    RetriesOf,
    RetriesView,
    RetryHold,
    RetryManyRequest,
    RetryRequest,
)
from holdfast.wire.operations.queries import AttemptsQuery, is_on


async def get_policy(call: ApiCall) -> Response:
    """Return a job's retry policy, and where each field comes from."""
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
    """Give a job that failed, was cancelled or is parked another attempt, or give the parked
    members of a job that runs another try."""
    request = await call.body(RetryRequest, default=RetryRequest())
    controller, job = call.controller, await find_job(call)
    caller = call.caller_name
    if _goes_on(job, request):
        going_on = await controller.store.members.unpark_members(job.id, f"tried again by {caller}")
        controller.poke("admit", "events")
        return answer_json(going_on)
    reason = _say_retry(job, request, caller, await _read_budgets(controller, [job], request))
    revived = await controller.store.jobs.revive_job(
        job.id, reason, counted=request.counted, from_scratch=request.from_scratch
    )
    controller.poke("admit", "events")
    return answer_json(revived)


async def retry_jobs(call: ApiCall) -> Response:
    """Retry many jobs, each as `retry_job` does, in the order of their submission."""
    request, caller = await call.body(RetryManyRequest), call.caller_name
    controller, store = call.controller, call.store

    async def retry(job_ids: Sequence[str]) -> Changed:
        found = await store.jobs.get_jobs(job_ids)
        budgets = await _read_budgets(controller, list(found.values()), request)
        done, reasons = Changed(jobs={}, refused={}), dict[str, str]()
        for job_id in job_ids:
            try:
                job = found.get(job_id)
                if job is None:
                    raise no_job(job_id)
                if _goes_on(job, request):
                    again = f"tried again by {caller}"
                    done.jobs[job_id] = await store.members.unpark_members(job_id, again)
                else:
                    reasons[job_id] = _say_retry(job, request, caller, budgets)
            except (NotFound, Conflict) as error:
                done.refused[job_id] = error
        if reasons:
            revived = await store.jobs.revive_jobs(
                reasons, counted=request.counted, from_scratch=request.from_scratch
            )
            done.jobs.update(revived.jobs)
            done.refused.update(revived.refused)
        controller.poke("admit", "events")
        return done

    return await change_in_parts(call, request.ids, retry)


def _goes_on(job: JobRecord, request: RetryRequest) -> bool:
    """Return whether a retry concerns the parked members of a job that runs."""
    runs = job.state in (JobState.RESERVED, JobState.RUNNING)
    return runs and not (request.counted or request.from_scratch)


class Budgets(NamedTuple):
    """The data that counted retries are checked against: the settings, and the last attempts by
    job."""

    settings: Settings
    last: Mapping[str, Sequence[AttemptRecord]]


async def _read_budgets(
    controller: Controller, jobs: Sequence[JobRecord], request: RetryRequest
) -> Budgets | None:
    if not request.counted:
        return None
    ids = [job.id for job in jobs]
    return Budgets(
        settings=await controller.settings.current(),
        last=await controller.store.jobs.list_attempts_of(ids, last=1),
    )


def _say_retry(job: JobRecord, request: RetryRequest, caller: str, budgets: Budgets | None) -> str:
    """Return the reason to record for a retry. Raises Conflict where the retry counts against the
    job's budget and the budget is spent."""
    if job.wait_cause == "back_off":
        reason = f"{caller} had it tried again before its back-off was over"
    elif budgets is not None:
        number, allowed = _count_retry(job, budgets)
        reason = f"retried by {caller}, counted as retry {number} of {allowed}"
    else:
        reason = f"retried by {caller}, not counted: all its budgets begin anew"
    return reason + "; from scratch" * request.from_scratch


def _count_retry(job: JobRecord, budgets: Budgets) -> tuple[int, int]:
    """Return the number of a counted retry, and how many the job may have. Raises Conflict where
    all of them are spent."""
    allowed = budgets.settings.policy(job.queue, job.spec).retry.max_retries
    if job.spec.interactive:
        raise Conflict(
            f"job {job.id} was submitted to run once and has no retries; leave --counted out",
            code="retries_spent",
        )
    attempts = budgets.last.get(job.id, ())
    # Counted before its last attempt, because the last failure was charged but not retried.
    made = attempts[-1].retry_count if attempts else 0
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


async def list_attempts(call: ApiCall) -> Response:
    """List the job's attempts, oldest first."""
    query = call.query(AttemptsQuery)
    if not is_on(query.members):
        job, last = await find_job(call), query.last
        found = await call.store.jobs.list_attempts_of([job.id], last=last, cause=query.cause)
        return answer_page(found.get(job.id, []))
    attempts = await call.store.jobs.list_attempts(check_job_id(call.params["id"]))
    return answer_page([a for a in attempts if query.cause in (None, a.cause)])
