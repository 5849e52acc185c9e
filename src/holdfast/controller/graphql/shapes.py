"""The types of the schema. Their sources are the records themselves: a field without a resolver is
the record's own.

A resolver is typed by its field's annotation, and returns records, which is what `Any` stands for
here.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

import strawberry
from strawberry import ID, Info, Parent

from holdfast.controller.api.hosts import view_host
from holdfast.controller.graphql.reads import Chain, Members, Ranks, Reads, Tail
from holdfast.controller.graphql.scalars import BigInt, Json
from holdfast.controller.why.retry_state import PENDING, make_chain
from holdfast.core.causes import Cause
from holdfast.core.records import AttemptRecord, HostRecord, JobRecord
from holdfast.core.states import AttemptState, HostState, JobState, Outcome, TaskState
from holdfast.wire.api import Why as WhyView


def reads_of(info: Info) -> Reads:
    """The reads of the query that is being answered."""
    found: Reads = info.context.reads
    return found


def _own(name: str, description: str) -> Any:
    """A field that the record has under another name."""

    def get(root: Parent[Any]) -> Any:
        return getattr(root, name)

    return strawberry.field(resolver=get, description=description)


def _json(name: str, description: str) -> Any:
    """A field of any JSON."""

    def get(root: Parent[Any], info: Info) -> Any:
        value = getattr(root, name)
        return None if value is None else reads_of(info).pack(value)

    return strawberry.field(resolver=get, description=description)


def _field(resolver: Callable[..., Any], description: str) -> Any:
    return strawberry.field(resolver=resolver, description=description)


# ---- retries


@strawberry.type(description="A retry policy, every field decided. Delays in seconds.")
class RetryPolicy:
    """See `core.retry.RetryPolicy`."""

    max_retries: int
    retry_delay: float
    backoff: str
    backoff_multiplier: float
    max_retry_delay: float | None
    jitter: str
    jitter_ratio: float
    eligible_causes: list[Cause]
    emit_retry_events: bool


@strawberry.type(description="Where a job stands in its chain: attempt 2 of 4, next at 12:03:20.")
class RetryState:
    """See `wire.api.RetryState`."""

    sentence: str
    attempt: int
    of: int
    retries_left: int
    next_at: datetime | None
    held: str | None


@strawberry.type(description="One attempt in a chain, without its weight.")
class ChainLink:
    """See `wire.api.ChainLink`."""

    number: int
    parent: int | None
    retry_count: int
    outcome: Outcome | None
    cause: Cause | None
    charged_to: str | None
    reason: str
    host: str | None
    started_at: datetime | None
    ended_at: datetime | None
    next_at: datetime | None


@strawberry.type(description="One thing that holds a job, and what to do about it.")
class WhyLine:
    """See `wire.api.WhyLine`."""

    code: str
    message: str
    hint: str


def _why_lines(root: Parent[WhyView], first: int = 10) -> Any:
    return root.lines[:first]


@strawberry.type(description="Why a job is where it is.")
class Why:
    """See `wire.api.Why`."""

    state: JobState
    summary: str
    lines: list[WhyLine] = _field(_why_lines, "Everything that holds it.")


# ---- hosts, queues, projects


@strawberry.type(description="One device of a host.")
class Gpu:
    """See `core.gpus.Gpu`."""

    index: int
    uuid: str
    model: str
    memory_bytes: BigInt
    vendor: str


def _gpus(root: Parent[HostRecord], first: int = 16) -> Any:
    return root.gpus[:first]


def _slots(root: Parent[HostRecord], info: Info) -> Any:
    return reads_of(info).pack(view_host(root).slots)


def _dead(root: Parent[HostRecord]) -> bool:
    return root.flagged_dead_at is not None


@strawberry.type(
    description="A machine with its agent. What is busy comes from live leases, never from the "
    "host's own word."
)
class Host:
    """See `core.records.HostRecord`."""

    id: ID
    name: str
    pool: str
    state: HostState
    reason: str
    incarnation: str
    queues: list[str]
    labels: Json = _json("labels", "Its labels.")
    cpu_slots: int
    memory_bytes: BigInt
    address: str
    version: str
    probe: str
    busy_cpu_slots: int
    busy_memory_bytes: BigInt
    busy_gpus: list[int]
    running: int
    registered_at: datetime
    heartbeat_at: datetime | None
    flagged_dead_at: datetime | None
    drain_deadline: datetime | None
    gpus: list[Gpu] = _field(_gpus, "Its devices.")
    slots: Json = _field(_slots, "Total and busy, of cpu and gpu.")
    dead: bool = _field(_dead, "It holds work and sends no heartbeat.")


@strawberry.type(description="A named lane of jobs with defaults, and what is in it.")
class Queue:
    """See `core.records.QueueRecord`."""

    name: str
    settings: Json = _json("settings", "Its own settings.")
    paused_at: datetime | None
    paused_reason: str
    waiting: int
    queued: int
    running: int
    created_at: datetime


@strawberry.type(description="Who pays: retry defaults and quotas, and what of it is in use.")
class Project:
    """See `core.records.ProjectRecord`."""

    name: str
    settings: Json = _json("settings", "Its own settings.")
    running: int
    gpus: int
    unfinished: int
    created_at: datetime | None


# ---- what belongs to a job


async def _job_of(root: Parent[Any], info: Info) -> Any:
    return await reads_of(info).jobs.load(root.job_id)


async def _host_of(root: Parent[Any], info: Info) -> Any:
    return await reads_of(info).hosts.load(root.host_id) if root.host_id else None


@strawberry.type(description="One line of the append-only record.")
class Event:
    """See `core.records.EventRecord`."""

    id: ID
    at: datetime
    kind: str
    job_id: str | None
    attempt: int | None
    epoch: BigInt | None
    rank: int | None
    host_id: str | None
    queue: str | None
    project: str | None
    message: str
    data: Json = _json("data", "What else is known of it.")
    host: Host | None = _field(_host_of, "The host it is about, if it is about one.")


@strawberry.type(
    description="One rank of the current attempt, while the job is reserved, running or draining."
)
class Task:
    """See `core.records.TaskRecord`."""

    job_id: str
    rank: int
    epoch: BigInt
    attempt: int
    state: TaskState
    host_id: str | None
    host_name: str | None
    incarnation: str | None
    devices: list[int]
    lease_ttl_seconds: float
    lease_until: datetime | None
    offered_at: datetime | None
    claimed_at: datetime | None
    barrier: bool
    port: int | None
    started_at: datetime | None
    ended_at: datetime | None
    step: BigInt | None
    total: BigInt | None
    beat_at: datetime | None
    section: str | None
    replaced: int
    reserved_at: datetime | None
    ready_at: datetime | None
    start_failures: int
    stop_cause: Cause | None
    stop_reason: str | None
    facts: Json | None = _json("facts", "What its agent knows of its end.")
    host: Host | None = _field(_host_of, "Where it is placed.")


@strawberry.type(
    description="How one rank of an ended attempt ended. trigger: it began the fall; cascade: it "
    "fell because another did."
)
class Member:
    """See `core.records.MemberRecord`."""

    rank: int
    host: str | None
    state: TaskState
    exit_code: int | None
    cause: Cause | None
    rule: str | None
    message: str
    evidence: Json = _json("evidence", "What the cause was found by.")
    trigger: bool
    cascade: bool
    facts: Json | None = _json("facts", "What its agent knows of its end.")


async def _parent_of(root: Parent[AttemptRecord], info: Info) -> Any:
    if root.parent is None:
        return None
    return await reads_of(info).attempt.load((root.job_id, root.parent))


async def _cause_of_parent(root: Parent[AttemptRecord], info: Info) -> Any:
    parent = await _parent_of(root, info)
    return None if parent is None else parent.cause


async def _members(
    root: Parent[AttemptRecord], info: Info, first: int = 10, after: int = -1
) -> Any:
    return await reads_of(info).members.load(Members((root.job_id, root.number), first, after))


async def _tasks_of_attempt(
    root: Parent[AttemptRecord], info: Info, first: int = 10, after: int = -1
) -> Any:
    if root.state is AttemptState.ENDED:
        return []
    tasks = await reads_of(info).tasks.load(Ranks(root.job_id, first, after))
    return [task for task in tasks if task.attempt == root.number]


async def _hosts_of_attempt(root: Parent[AttemptRecord], info: Info, first: int = 10) -> Any:
    ids = list(dict.fromkeys(root.host_ids))[:first]
    return [host for host in await reads_of(info).hosts.load_many(ids) if host is not None]


@strawberry.type(description="One execution of the whole job, all its tasks.")
class Attempt:
    """See `core.records.AttemptRecord`."""

    job_id: str
    number: int
    epoch: BigInt
    state: AttemptState
    outcome: Outcome | None
    cause: Cause | None
    rule: str | None
    charged_to: str | None
    retry_count: int
    next_at: datetime | None
    exit_code: int | None
    reason: str
    trigger_rank: int | None
    step: BigInt | None
    total: BigInt | None
    has_forensics: bool
    reserved_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    host_name: str | None = _own("host", "Where it ran, in words.")
    parent_number: int | None = _own("parent", "The number of the attempt before it.")
    retry_policy: RetryPolicy | None = _own("policy", "The policy its end was decided by.")
    parent: Attempt | None = _field(_parent_of, "The attempt before it.")
    retry_cause: Cause | None = _field(
        _cause_of_parent, "Why there is this attempt: the cause its parent ended of."
    )
    members: list[Member] = _field(
        _members, "How its ranks ended, in the order of their ranks, those after rank `after`."
    )
    tasks: list[Task] = _field(
        _tasks_of_attempt, "Its tasks while it lives, those after rank `after`."
    )
    hosts: list[Host] = _field(_hosts_of_attempt, "Where it ran.")
    job: Job = _field(_job_of, "Its job.")


# ---- jobs


async def _attempts(
    root: Parent[JobRecord],
    info: Info,
    last: int = 10,
    before: int | None = None,
    cause: Cause | None = None,
) -> Any:
    return (
        await reads_of(info).attempts.load(Chain(root.id, last, before, cause))
        if root.attempts
        else []
    )


async def _attempt(root: Parent[JobRecord], info: Info, number: int) -> Any:
    return await reads_of(info).attempt.load((root.id, number))


async def _tasks(root: Parent[JobRecord], info: Info, first: int = 10, after: int = -1) -> Any:
    return await reads_of(info).tasks.load(Ranks(root.id, first, after))


async def _chain(root: Parent[JobRecord], info: Info, last: int = 10) -> Any:
    return (
        make_chain(await reads_of(info).attempts.load(Chain(root.id, last)))
        if root.attempts
        else ()
    )


async def _events(root: Parent[JobRecord], info: Info, last: int = 10) -> Any:
    return await reads_of(info).events.load(Tail(root.id, last))


async def _why(root: Parent[JobRecord], info: Info) -> Any:
    return await reads_of(info).whys.load(root)


async def _policy(root: Parent[JobRecord], info: Info) -> Any:
    return await reads_of(info).policy(root)


async def _max_retries(root: Parent[JobRecord], info: Info) -> int:
    return 0 if root.spec.interactive else (await reads_of(info).policy(root)).max_retries


async def _retry_state(root: Parent[JobRecord], info: Info) -> Any:
    return await reads_of(info).retry_state(root)


async def _retry_count(root: Parent[JobRecord], info: Info) -> int:
    """As the filters `retriesMin` and `retriesMax` count: the charge of the failure that ended a
    job was no retry."""
    if root.ended_at is None:
        return root.retries_charged
    ending = await reads_of(info).ending(root)
    return ending[-1].retry_count if ending else 0


async def _retry_cause(root: Parent[JobRecord], info: Info) -> Any:
    ending = await reads_of(info).ending(root)
    followed = ending if root.state in PENDING else ending[:-1]
    return followed[-1].cause if followed else None


async def _queue(root: Parent[JobRecord], info: Info) -> Any:
    return (await reads_of(info).queues()).get(root.queue)


async def _project(root: Parent[JobRecord], info: Info) -> Any:
    return (await reads_of(info).projects()).get(root.project)


@strawberry.type(
    description="A job: what was submitted, where it is, and the last decision's sentence of "
    "reason."
)
class Job:
    """See `core.records.JobRecord`."""

    id: ID
    name: str
    priority: int
    state: JobState
    reason: str
    gpus: int
    cpu_slots: int
    memory_bytes: BigInt
    labels: Json = _json("labels", "Its labels.")
    spec: Json = _json("spec", "As it was submitted; of secrets the names alone.")
    epoch: BigInt
    retries_charged: int
    watchdog_charged: int
    infra_charged: int
    avoid_hosts: list[str]
    wait_cause: str | None
    wait_until: datetime | None
    retry_at: datetime | None
    best_step: BigInt | None
    no_progress: int
    rank_charges: Json = _json(
        "rank_charges", "What each rank of a gang was charged, by its number."
    )
    start_failures: int
    drain_cause: Cause | None
    drain_reason: str | None
    drain_since: datetime | None
    trigger_rank: int | None
    outcome: Outcome | None
    cause: Cause | None
    exit_code: int | None
    step: BigInt | None
    total: BigInt | None
    beat_at: datetime | None
    created_at: datetime
    queued_at: datetime | None
    started_at: datetime | None
    ended_at: datetime | None
    revision: BigInt
    queue_name: str = _own("queue", "The name of its queue.")
    project_name: str = _own("project", "The name of its project.")
    task_count: int = _own("tasks", "How many ranks run together.")
    attempt_count: int = _own("attempts", "How many attempts it has had, the running one included.")
    queue: Queue | None = _field(_queue, "Its queue; null where that was deleted.")
    project: Project | None = _field(
        _project, "Its project; null where it has no settings and no unfinished job."
    )
    attempts: list[Attempt] = _field(
        _attempts, "Its last attempts, oldest first; `before` a number, or of one cause."
    )
    attempt: Attempt | None = _field(_attempt, "One attempt by its number.")
    tasks: list[Task] = _field(
        _tasks, "The tasks of its current attempt, those after rank `after`."
    )
    retry_count: int = _field(_retry_count, "Retries made or decided.")
    max_retries: int = _field(_max_retries, "How many retries it may have.")
    retry_policy: RetryPolicy = _field(
        _policy, "The policy in force; of an ended job the one it ended under."
    )
    retry_cause: Cause | None = _field(
        _retry_cause, "What the last attempt that was followed by another ended of."
    )
    retry_state: RetryState = _field(_retry_state, "Where it stands in its chain.")
    retry_chain: list[ChainLink] = _field(_chain, "The last links of its chain, oldest first.")
    events: list[Event] = _field(_events, "Its last events, oldest first.")
    why: Why = _field(_why, "Why it is where it is, and what to do.")
