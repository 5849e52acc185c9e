"""The types of the schema but jobs and attempts. Their sources are the records themselves: a field
without a resolver is the record's own.

A resolver returns records, which strawberry types by the field's annotation; hence `Any` here.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

import strawberry
from strawberry import ID, Info, Parent

from holdfast.controller.api.hosts import view_host
from holdfast.controller.graphql.reads import Reads
from holdfast.controller.graphql.scalars import BigInt, Json
from holdfast.core.causes import Cause
from holdfast.core.records import HostRecord
from holdfast.core.states import HostState, JobState, Outcome, TaskState
from holdfast.wire.api import Why


def reads_of(info: Info) -> Reads:
    """Return the reads of the query that is being answered."""
    found: Reads = info.context.reads
    return found


def own_field(name: str, description: str) -> Any:
    """Return a field that the record has under another name."""

    def get(root: Parent[Any]) -> Any:
        return getattr(root, name)

    return strawberry.field(resolver=get, description=description)


def json_field(name: str, description: str) -> Any:
    """Return a field of any JSON."""

    def get(root: Parent[Any], info: Info) -> Any:
        value = getattr(root, name)
        return None if value is None else reads_of(info).pack(value)

    return strawberry.field(resolver=get, description=description)


def make_field(resolver: Callable[..., Any], description: str) -> Any:
    """Return a field with a resolver."""
    return strawberry.field(resolver=resolver, description=description)


# ---- retries


@strawberry.type(
    name="RetryPolicy", description="A retry policy, every field decided. Delays in seconds."
)
class RetryPolicyType:
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


@strawberry.type(
    name="RetryState",
    description="Where a job stands in its chain: attempt 2 of 4, next at 12:03:20.",
)
class RetryStateType:
    """See `wire.api.RetryState`."""

    sentence: str
    attempt: int
    of: int
    retries_left: int
    next_at: datetime | None
    held: str | None


@strawberry.type(name="ChainLink", description="One attempt in a chain, without its weight.")
class ChainLinkType:
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


@strawberry.type(name="WhyLine", description="One thing that holds a job, and what to do about it.")
class WhyLineType:
    """See `wire.api.WhyLine`."""

    code: str
    message: str
    hint: str


def _why_lines(root: Parent[Why], first: int = 10) -> Any:
    return root.lines[:first]


@strawberry.type(name="Why", description="Why a job is where it is.")
class WhyType:
    """See `wire.api.Why`."""

    state: JobState
    summary: str
    lines: list[WhyLineType] = make_field(_why_lines, "Everything that holds it.")


# ---- hosts, queues, projects


@strawberry.type(name="Gpu", description="One device of a host.")
class GpuType:
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
    name="Host",
    description="A machine with its agent. What is busy comes from live leases, never from the "
    "host's own word.",
)
class HostType:
    """See `core.records.HostRecord`."""

    id: ID
    name: str
    pool: str
    state: HostState
    reason: str
    incarnation: str
    queues: list[str]
    labels: Json = json_field("labels", "Its labels.")
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
    gpus: list[GpuType] = make_field(_gpus, "Its devices.")
    slots: Json = make_field(_slots, "Total and busy, of cpu and gpu.")
    dead: bool = make_field(_dead, "It holds work and sends no heartbeat.")


@strawberry.type(name="Queue", description="A named lane of jobs with defaults, and what is in it.")
class QueueType:
    """See `core.records.QueueRecord`."""

    name: str
    settings: Json = json_field("settings", "Its own settings.")
    paused_at: datetime | None
    paused_reason: str
    waiting: int
    queued: int
    running: int
    created_at: datetime


@strawberry.type(
    name="Project", description="Who pays: retry defaults and quotas, and what of it is in use."
)
class ProjectType:
    """See `core.records.ProjectRecord`."""

    name: str
    settings: Json = json_field("settings", "Its own settings.")
    running: int
    gpus: int
    unfinished: int
    created_at: datetime | None


# ---- what belongs to a job


async def _host_of(root: Parent[Any], info: Info) -> Any:
    return await reads_of(info).hosts.load(root.host_id) if root.host_id else None


@strawberry.type(name="Event", description="One line of the append-only record.")
class EventType:
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
    data: Json = json_field("data", "What else is known of it.")
    host: HostType | None = make_field(_host_of, "The host it is about, if it is about one.")


@strawberry.type(
    name="Task",
    description="One rank of the current attempt, while the job is reserved, running or draining.",
)
class TaskType:
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
    facts: Json | None = json_field("facts", "What its agent knows of its end.")
    host: HostType | None = make_field(_host_of, "Where it is placed.")


@strawberry.type(
    name="Member",
    description="How one rank of an ended attempt ended. trigger: it began the fall; cascade: it "
    "fell because another did.",
)
class MemberType:
    """See `core.records.MemberRecord`."""

    rank: int
    host: str | None
    state: TaskState
    exit_code: int | None
    cause: Cause | None
    rule: str | None
    message: str
    evidence: Json = json_field("evidence", "What the cause was found by.")
    trigger: bool
    cascade: bool
    facts: Json | None = json_field("facts", "What its agent knows of its end.")
