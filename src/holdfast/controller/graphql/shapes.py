"""The types of the schema, except those of jobs and attempts. Their sources are the records
themselves: a field without a resolver is the record's own.

A resolver returns records, which strawberry types by the field's annotation; hence `Any` here.
"""

from collections.abc import Callable
from typing import Any

import strawberry
from strawberry import Info, Parent

from holdfast.controller.api.hosts import view_host
from holdfast.controller.graphql.mirror import mirrors
from holdfast.controller.graphql.reads import Reads
from holdfast.controller.graphql.scalars import Json
from holdfast.core.causes import Cause
from holdfast.core.gpus import Gpu
from holdfast.core.records import (
    EventRecord,
    HostRecord,
    MemberRecord,
    ProjectRecord,
    QueueRecord,
    TaskRecord,
)
from holdfast.core.retry import RetryPolicy
from holdfast.core.states import JobState, Outcome
from holdfast.wire.api import ChainLink, RetryState, Why, WhyLine


def reads_of(info: Info) -> Reads:
    """Return the reads of the query that is being answered."""
    found: Reads = info.context.reads
    return found


def own_field(name: str, description: str) -> Any:
    """Return a field whose name in the record differs from its name in the schema."""

    def get(root: Parent[Any]) -> Any:
        return getattr(root, name)

    return strawberry.field(resolver=get, description=description)


def json_field(name: str, description: str) -> Any:
    """Return a field that holds any JSON value."""

    def get(root: Parent[Any], info: Info) -> Any:
        value = getattr(root, name)
        return None if value is None else reads_of(info).pack(value)

    return strawberry.field(resolver=get, description=description)


def make_field(resolver: Callable[..., Any], description: str) -> Any:
    """Return a field with a resolver."""
    return strawberry.field(resolver=resolver, description=description)


# ---- retries


@mirrors(RetryPolicy, "A retry policy, every field decided. Delays in seconds.")
class RetryPolicyType:
    """See `core.retry.RetryPolicy`."""


@mirrors(RetryState, "Where a job stands in its chain: attempt 2 of 4, next at 12:03:20.")
class RetryStateType:
    """See `wire.api.RetryState`."""


@mirrors(ChainLink, "One attempt in a chain, without its weight.")
class ChainLinkType:
    """See `wire.api.ChainLink`."""

    outcome: Outcome | None
    cause: Cause | None


@mirrors(WhyLine, "One thing that holds a job, and what to do about it.")
class WhyLineType:
    """See `wire.api.WhyLine`."""


def _why_lines(root: Parent[Why], first: int = 10) -> Any:
    return root.lines[:first]


@mirrors(Why, "Why a job is where it is.", but="job_id forecast would_start")
class WhyType:
    """See `wire.api.Why`."""

    state: JobState
    lines: list[WhyLineType] = make_field(_why_lines, "Everything that holds it.")


# ---- hosts, queues, projects


@mirrors(Gpu, "One device of a host.")
class GpuType:
    """See `core.gpus.Gpu`."""


def _gpus(root: Parent[HostRecord], first: int = 16) -> Any:
    return root.gpus[:first]


def _slots(root: Parent[HostRecord], info: Info) -> Any:
    return reads_of(info).pack(view_host(root).slots)


def _dead(root: Parent[HostRecord]) -> bool:
    return root.flagged_dead_at is not None


@mirrors(
    HostRecord,
    "A machine with its agent. What is busy comes from live leases, never from the "
    "host's own word.",
)
class HostType:
    """See `core.records.HostRecord`."""

    labels: Json = json_field("labels", "Its labels.")
    faults: Json = json_field("faults", "What a part of it cannot do now.")
    gpus: list[GpuType] = make_field(_gpus, "Its devices.")
    slots: Json = make_field(_slots, "Total and busy, of cpu and gpu.")
    dead: bool = make_field(_dead, "It holds work and sends no heartbeat.")


@mirrors(QueueRecord, "A named lane of jobs with defaults, and what is in it.")
class QueueType:
    """See `core.records.QueueRecord`."""

    settings: Json = json_field("settings", "Its own settings.")


@mirrors(ProjectRecord, "Owns jobs: retry defaults and quotas, and how much of them is in use.")
class ProjectType:
    """See `core.records.ProjectRecord`."""

    settings: Json = json_field("settings", "Its own settings.")


# ---- what belongs to a job


async def _host_of(root: Parent[Any], info: Info) -> Any:
    return await reads_of(info).hosts.load(root.host_id) if root.host_id else None


@mirrors(EventRecord, "One line of the append-only record.")
class EventType:
    """See `core.records.EventRecord`."""

    data: Json = json_field("data", "What else is known of it.")
    host: HostType | None = make_field(_host_of, "The host it is about, if it is about one.")


@mirrors(
    TaskRecord, "One rank of the current attempt, while the job is reserved, running or draining."
)
class TaskType:
    """See `core.records.TaskRecord`."""

    facts: Json | None = json_field("facts", "What its agent knows of its end.")
    host: HostType | None = make_field(_host_of, "Where it is placed.")


@mirrors(
    MemberRecord,
    "How one rank of an ended attempt ended. trigger: it began the fall; cascade: it "
    "fell because another did.",
)
class MemberType:
    """See `core.records.MemberRecord`."""

    evidence: Json = json_field("evidence", "What the cause was found by.")
    facts: Json | None = json_field("facts", "What its agent knows of its end.")
