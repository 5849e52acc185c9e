"""The routes of jobs: submit, list, show, cancel one or many."""

import asyncio
import difflib
import secrets
from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import UTC, datetime

import msgspec
from starlette.responses import Response

from holdfast.controller.http.endpoints import ApiCall
from holdfast.controller.http.job_tokens import adopt, enter_project
from holdfast.controller.http.owners import find_refused, name_caller
from holdfast.controller.http.pages import answer_page, check_job_id, make_cursor, read_cursor
from holdfast.controller.http.problems import answer_json, problem_of
from holdfast.controller.notices.targets import check_wishes
from holdfast.controller.runtime.auth import make_new_id
from holdfast.controller.runtime.context import Controller
from holdfast.controller.runtime.settings import Settings
from holdfast.controller.why.explain import explain
from holdfast.controller.why.foreseen import foresee_line, foresee_start
from holdfast.controller.why.reads import find_circumstances, find_environment, find_limits
from holdfast.controller.why.retry_state import (
    count_retries,
    make_chain,
    make_retry_state,
    policy_of_end,
)
from holdfast.core.calls.values import FunctionSpec
from holdfast.core.placement.plan import Candidate
from holdfast.core.placement.possible import HostShape, find_impossible, foresee
from holdfast.core.records import JobRecord, JobTokenRecord
from holdfast.core.run_seed import SEED_BYTES, mint_secrets
from holdfast.core.settings.resolve import check_layer, job_layer
from holdfast.core.spec import JobSpec, check_spec
from holdfast.core.states import JobState, Outcome
from holdfast.errors import HoldfastError, NotFound, Unavailable, ValidationError
from holdfast.moves.jobs.requests import Changed
from holdfast.moves.values import HostSync, JobFilter, NewJob, Submitted
from holdfast.store.postgres.store import PostgresStore
from holdfast.wire.api import (
    BatchRequest,
    CancelManyRequest,
    CancelRequest,
    ForensicsView,
    JobOutcome,
    JobView,
    SubmittedJob,
)
from holdfast.wire.operations.queries import AttemptQuery, JobsQuery, is_on

DEFAULT_PROJECT = "default"
MAX_NAMED = 10
MAX_KEY_CHARS = 256
MAX_NOTES = 3
MAX_NOTE_CHARS = 1000
NOTE_HEADER = "Holdfast-Note"
"""The header of an answer to a submission that warns of a problem with an accepted job, as one line
of ASCII."""
SHOWN_CHILDREN = 4
PART_JOBS = 200
"""The most jobs that one transaction changes, because other transactions wait for its locks."""


async def submit_job(call: ApiCall) -> Response:
    """Submit one job. An idempotency key that was used before answers 200 with the first job."""
    spec = take_key(await call.body(JobSpec), call.header("idempotency-key"))
    submitted = (await _submit(call, [spec], [""]))[0]
    location = {"Location": f"/v1/jobs/{submitted.job.id}"}
    if submitted.created and submitted.job.state is JobState.QUEUED:
        location |= await find_notes(call.controller, [spec])
    job, controller = submitted.job, call.controller
    settings = await controller.settings.recent()
    (limits,) = await find_limits(controller, settings, [job])
    answer = SubmittedJob(**msgspec.structs.asdict(job), limits=limits)
    return answer_json(answer, 201 if submitted.created else 200, location)


async def submit_batch(call: ApiCall) -> Response:
    """Submit many jobs, all or none."""
    if call.header("idempotency-key") is not None:
        raise ValidationError(
            "a batch takes no Idempotency-Key header; give each job its `idempotency_key`",
            field="Idempotency-Key",
        )
    request = await call.body(BatchRequest)
    names = [f"jobs[{n}]." for n in range(len(request.jobs))]
    submitted = await _submit(call, request.jobs, names)
    notes = await find_notes(call.controller, request.jobs)
    return answer_json({"items": [s.job for s in submitted], "next": None}, 201, notes)


def take_key(spec: JobSpec, key: str | None) -> JobSpec:
    """Return the spec with the idempotency key of the request's header. Raises ValidationError."""
    if key is None:
        return spec
    if not 1 <= len(key) <= MAX_KEY_CHARS or not all("\x21" <= c <= "\x7e" for c in key):
        raise ValidationError(
            f"the Idempotency-Key header is 1 to {MAX_KEY_CHARS} visible ASCII characters",
            field="Idempotency-Key",
        )
    if spec.idempotency_key not in (None, key):
        raise ValidationError(
            "the Idempotency-Key header and the field `idempotency_key` differ; send one of them",
            field="idempotency_key",
        )
    return msgspec.structs.replace(spec, idempotency_key=key)


async def _submit(call: ApiCall, specs: Sequence[JobSpec], where: Sequence[str]) -> list[Submitted]:
    controller = call.controller
    specs = await enter_project(call, specs)
    jobs = await check_specs(controller, specs, where, owner=call.user)
    if isinstance(call.caller, JobTokenRecord):
        jobs = [msgspec.structs.replace(j, spec=adopt(call, j.spec)) for j in jobs]
    placed = await _submit_to_host(controller, jobs[0]) if len(jobs) == 1 else None
    if placed is not None:
        return [placed]
    submitted = await controller.store.jobs.submit_jobs(jobs)
    if any(s.created for s in submitted):
        controller.poke("admit", "events")
    return submitted


async def check_specs(
    controller: Controller, specs: Sequence[JobSpec], where: Sequence[str], *, owner: str
) -> list[NewJob]:
    """Check specs against the settings and the sizes of the hosts, and return jobs ready to be
    written. where: the place of each spec in the request, for errors. owner: the caller's user,
    never a user that the request names. Raises ValidationError."""
    settings = await controller.settings.recent()
    if any(
        queue_of(spec) not in settings.queues or not knows_project(spec.project, settings)
        for spec in specs
    ):
        settings = await controller.settings.refresh()
    sizes = await controller.sizes.current()
    await check_bundles(controller, specs, where)
    jobs = []
    for spec, prefix in zip(specs, where, strict=True):
        try:
            spec = check_job(spec, settings)
            await check_wishes(controller, spec.project, spec.notify)
            if find_impossible(as_wanted(spec), sizes) is not None:
                sizes = await controller.sizes.refresh()  # a host may have joined a moment ago
            refuse_impossible(spec, sizes)
        except ValidationError as error:
            if prefix:
                field = prefix + (error.field or "")
                raise ValidationError(
                    f"{field}: {error.message}", code=error.code, field=field.rstrip(".")
                ) from None
            raise
        minted = mint_secrets(spec, secrets.token_bytes(SEED_BYTES)) if spec.supervised else {}
        jobs.append(
            NewJob(id=make_new_id(), spec=spec, queue=queue_of(spec), owner=owner, minted=minted)
        )
    return jobs


async def check_bundles(
    controller: Controller, specs: Sequence[JobSpec | FunctionSpec], where: Sequence[str]
) -> None:
    """Note the use of the specs' bundles. Raises ValidationError for a bundle that its project does
    not hold (BUNDLE-2)."""
    wanted = {
        (s.project, s.code.digest): w
        for s, w in zip(specs, where, strict=True)
        if s.code and s.code.digest
    }
    if not wanted:
        return
    known = await controller.store.bundles.use_bundles(wanted)
    for (project, digest), prefix in wanted.items():
        if (project, digest) not in known:
            raise ValidationError(
                f"{prefix}code: project {project} holds no bundle {digest}; send the folder again "
                "(--workdir)",
                code="no_bundle",
                field=f"{prefix}code.digest",
            )


async def _submit_to_host(controller: Controller, job: NewJob) -> Submitted | None:
    """Write a job and place it on a host whose poll waits and that has room, in one transaction; a
    start by the leader's loop takes two more. Returns None where no such host is known, or where
    more than free room decides about the job."""
    spec, terms = job.spec, (await controller.settings.recent()).take_terms
    plain = spec.tasks == 1 and not spec.supervised and not spec.after and spec.start_at is None
    if not plain or terms is None or job.queue not in terms.ttls:
        return None
    taker = controller.wakes.find_taker(job.queue, spec.cpu_slots, spec.gpus)
    if taker is None:
        return None
    host_id, incarnation = taker
    sync = HostSync(host_id=host_id, incarnation=incarnation, takes=True)
    found = await controller.store.leases.submit_to_host(job, sync, terms)
    if found is None:
        return None
    submitted, answer = found
    if answer.offers:
        controller.wakes.answer_poll(answer, incarnation)
        await asyncio.sleep(0)  # the order leaves first; the submission's answer is made meanwhile
    controller.poke_soon("events", *(() if answer.settled else ("admit",)))
    return submitted


async def find_notes(controller: Controller, specs: Iterable[JobSpec]) -> dict[str, str]:
    """Return the header that warns a user at once of jobs that cannot run with the present hosts
    and pools; an empty dict where all could run."""
    wanted = {shape_wanted(job): job for job in map(as_wanted, specs)}.values()
    sizes: Sequence[HostShape] = await controller.sizes.current()
    if any(foresee(job, sizes) for job in wanted):
        sizes = await controller.sizes.refresh()  # a host may have joined a moment ago
    notes = list(dict.fromkeys(filter(None, (foresee(job, sizes) for job in wanted))))
    words = "; ".join(notes[:MAX_NOTES]).encode("ascii", "replace").decode()
    return {NOTE_HEADER: words[:MAX_NOTE_CHARS]} if notes else {}


def shape_wanted(job: Candidate) -> tuple[object, ...]:
    """Return the parts of a job's request that decide which hosts can run it. Jobs with equal
    shapes are checked once."""
    labels = tuple(sorted(job.host_labels.items()))
    return job.queue, job.tasks, job.gpus, job.cpu_slots, job.memory_bytes, labels


def refuse_impossible(spec: JobSpec, sizes: Sequence[HostShape]) -> None:
    """Raise ValidationError for a spec that no known host could ever run."""
    reason = find_impossible(as_wanted(spec), sizes)
    if reason is not None:
        field = "gpus" if spec.gpus else "cpus"
        raise ValidationError(reason, code="impossible_resources", field=field)


def as_wanted(spec: JobSpec) -> Candidate:
    """Return the resources and labels that a spec asks of hosts."""
    return Candidate(
        job_id="",
        epoch=0,
        queue=queue_of(spec),
        priority=spec.priority,
        tasks=spec.tasks,
        gpus=spec.gpus,
        cpu_slots=spec.cpu_slots,
        memory_bytes=spec.memory_bytes,
        host_labels=spec.host_labels,
    )


def queue_of(spec: JobSpec) -> str:
    """Return the queue that a job goes to."""
    return spec.queue or ("gpu" if spec.gpus else "cpu")


def check_job(spec: JobSpec, settings: Settings) -> JobSpec:
    """Return the spec as it is stored (`check_spec`). Raises ValidationError where the job cannot
    run under these settings."""
    spec = check_spec(spec)
    check_layer(job_layer(spec), "job")
    check_queue(queue_of(spec), settings)
    check_project(spec.project, settings)
    return spec


def knows_project(name: str, settings: Settings) -> bool:
    """Return whether the project exists. The default project, of jobs that name none, always
    does."""
    return name == DEFAULT_PROJECT or name in settings.projects


def check_project(name: str, settings: Settings) -> None:
    """Raise ValidationError where there is no such project."""
    if not knows_project(name, settings):
        known = sorted({DEFAULT_PROJECT, *settings.projects})
        near = difflib.get_close_matches(name, known, 1)
        there = f"did you mean {near[0]}?" if near else f"there are {', '.join(known[:MAX_NAMED])}"
        raise ValidationError(
            f"there is no project {name!r}; {there}. An admin makes it with `holdfast projects create "
            f"{name}`",
            code="unknown_project",
            field="project",
        )


def check_queue(queue: str, settings: Settings) -> None:
    """Raise ValidationError where there is no such queue."""
    if queue not in settings.queues:
        raise ValidationError(
            f"there is no queue {queue!r}; there are "
            f"{', '.join(sorted(settings.queues)) or 'none yet'}. "
            f"An admin makes it with `holdfast queues set {queue}`",
            code="unknown_queue",
            field="queue",
        )


async def list_jobs(call: ApiCall) -> Response:
    """List jobs, newest first."""
    query = name_caller(call, call.query(JobsQuery))
    if isinstance(call.caller, JobTokenRecord):  # JOB-TOKEN-2
        query = msgspec.structs.replace(query, parent=call.caller.job_id)
    items, cursor = await read_jobs_page(call.store, query)
    return answer_page(items, cursor)


async def read_jobs_page(
    store: PostgresStore, query: JobsQuery
) -> tuple[list[JobRecord], str | None]:
    """Return a page of jobs and the next page's cursor. Raises NotFound for an unknown host."""
    host_ids = tuple([(await store.hosts.get_host(host)).id for host in query.host])
    found = await store.jobs.list_jobs(
        JobFilter(
            states=tuple(query.state),
            queues=query.queue,
            projects=query.project,
            owners=query.owner,
            parent=query.parent,
            names=query.name,
            part=query.match,
            since=None if query.since is None else datetime.fromtimestamp(query.since, UTC),
            prefix=query.prefix,
            labels=dict(label.split("=", 1) for label in query.label),
            causes=tuple(query.cause),
            min_retries=query.retries_min,
            max_retries=query.retries_max,
            host_ids=host_ids,
            array_id=None if query.array == "none" else query.array,
            single=query.array == "none",
            executors=None if query.executors == "show" else query.executors,
            supervised=is_on(query.supervised),
            before=read_cursor(query.cursor) if query.cursor else None,
            limit=query.limit + 1,
        )
    )
    items = found[: query.limit]
    return items, make_cursor(items[-1].id) if len(found) > query.limit else None


async def find_job(call: ApiCall) -> JobRecord:
    """Return the job that the path of the request names. Raises NotFound."""
    return await call.store.jobs.get_job(check_job_id(call.params["id"]))


async def get_job(call: ApiCall) -> Response:
    """Return one job, with its chain of attempts and the job's place in that chain."""
    return answer_json(await view_job(call.controller, await find_job(call)))


async def view_job(controller: Controller, job: JobRecord) -> JobView:
    """Return a job as `GET /v1/jobs/{id}` shows it."""
    jobs = controller.store.jobs
    listed = await jobs.list_attempts_of([job.id], last=job.attempts) if job.attempts else {}
    attempts = listed.get(job.id, [])
    settings, now = await controller.settings.current(), await controller.store.now()
    policy = policy_of_end(job, attempts) or settings.policy(job.queue, job.spec).retry
    state = make_retry_state(job, policy, held=settings.retries_held(job.project), now=now)
    requeued = [a for a in attempts if a.outcome is Outcome.REQUEUED]
    children = await controller.store.jobs.list_jobs(JobFilter(parent=job.id, limit=SHOWN_CHILDREN))
    return JobView(
        **msgspec.structs.asdict(job),
        retry_count=count_retries(job, policy.max_retries),
        max_retries=policy.max_retries,
        retry_policy=policy,
        retry_cause=max(requeued, key=lambda a: a.number).cause if requeued else None,
        retry_state=state,
        retry_chain=make_chain(attempts),
        limits=(await find_limits(controller, settings, [job]))[0],
        children=tuple(child.id for child in children),
    )


async def list_tasks(call: ApiCall) -> Response:
    """List the tasks of the job's current attempt."""
    job = await find_job(call)
    return answer_page(await call.store.jobs.list_tasks(job.id))


async def list_suspects(call: ApiCall) -> Response:
    """List the slow and wrong ranks of the job's attempts."""
    job = await find_job(call)
    return answer_page(await call.store.suspects.list_suspects([job.id]))


async def list_settings(call: ApiCall) -> Response:
    """List every setting in force for the job, and its source."""
    job = await find_job(call)
    settings = await call.controller.settings.current()
    return answer_page(list(settings.effective(job.queue, job.spec).values()))


async def list_forensics(call: ApiCall) -> Response:
    """List the diagnostics gathered before the job's tasks were killed."""
    query = call.query(AttemptQuery)
    job = await find_job(call)
    found = await call.store.logs.get_forensics(job.id, query.attempt)
    views = [
        ForensicsView(
            attempt=number,
            rank=forensics.key.rank,
            epoch=forensics.key.epoch,
            reason=forensics.reason,
            seconds=forensics.seconds,
            sections=forensics.sections,
        )
        for number, forensics in found
    ]
    return answer_page(views)


async def cancel_job(call: ApiCall) -> Response:
    """Cancel the job: at once while nothing of it runs, else by a drain."""
    request = await call.body(CancelRequest, default=CancelRequest())
    controller = call.controller
    job_id = check_job_id(call.params["id"])
    reason = request.reason or f"cancelled by {call.caller_name}"
    job = await controller.store.jobs.cancel_job(job_id, reason, hard=request.hard)
    controller.poke("children")
    if job.state is JobState.DRAINING:
        controller.poke("drain", "events")
        controller.poke_hosts_of(job.id)
        return answer_json(job, 202)
    controller.poke("admit", "events")
    return answer_json(job)


async def cancel_jobs(call: ApiCall) -> Response:
    """Cancel many jobs, each as `cancel_job` does."""
    request = await call.body(CancelManyRequest)
    controller = call.controller
    reason = request.reason or f"cancelled by {call.caller_name}"

    async def cancel(job_ids: Sequence[str]) -> Changed:
        done = await controller.store.jobs.cancel_jobs(job_ids, reason, hard=request.hard)
        draining = [job.id for job in done.jobs.values() if job.state is JobState.DRAINING]
        if draining:
            controller.poke("drain")
            controller.poke_hosts_of(*draining)
        controller.poke("admit", "children", "events")
        return done

    return await change_in_parts(call, request.ids, cancel)


async def change_in_parts(
    call: ApiCall, job_ids: Sequence[str], change: Callable[[Sequence[str]], Awaitable[Changed]]
) -> Response:
    """Change many jobs, `PART_JOBS` in a transaction, and answer with the outcome of each.

    Raises Unavailable where the first transaction fails; the jobs of a later transaction that fails
    are answered as refused.
    """
    asked = list(dict.fromkeys(job_ids))
    found, refused = dict[str, JobRecord](), dict[str, HoldfastError]()
    for job_id in asked:
        try:
            check_job_id(job_id)
        except NotFound as error:
            refused[job_id] = error
    known = sorted(job_id for job_id in asked if job_id not in refused)
    for start in range(0, len(known), PART_JOBS):
        part = known[start : start + PART_JOBS]
        try:
            refused |= await find_refused(call, part)
            done = await change([job_id for job_id in part if job_id not in refused])
        except Unavailable as error:
            if start == 0:
                raise
            refused |= dict.fromkeys(known[start:], error)
            break
        found |= done.jobs
        refused |= done.refused
    return answer_page(
        [
            JobOutcome(id=job_id, job=found[job_id])
            if job_id in found
            else JobOutcome(id=job_id, problem=problem_of(refused[job_id]))
            for job_id in asked
        ]
    )


async def get_why(call: ApiCall) -> Response:
    """Explain why the job is in its present state."""
    job = await find_job(call)
    (found,) = await find_circumstances(call.controller, [job])
    environment = await find_environment(call.controller, job)
    foreseen = await foresee_start(call.controller, job)
    told = msgspec.structs.replace(found, environment=environment, foreseen=foreseen)
    return answer_json(explain(told))


async def list_forecasts(call: ApiCall) -> Response:
    """List the first queued jobs in their order, each with its expected start."""
    return answer_page(await foresee_line(call.controller), None)
