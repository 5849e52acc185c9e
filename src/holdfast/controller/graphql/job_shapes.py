"""The types of jobs and their attempts; `shapes` has all other types."""

from __future__ import annotations

from typing import Any

from strawberry import Info, Parent

from holdfast.controller.graphql import shapes
from holdfast.controller.graphql.mirror import mirrors
from holdfast.controller.graphql.reads import Chain, Members, Ranks, Tail
from holdfast.controller.graphql.scalars import Json
from holdfast.controller.graphql.shapes import (
    ChainLinkType,
    EventType,
    HostType,
    MemberType,
    ProjectType,
    QueueType,
    RetryPolicyType,
    RetryStateType,
    TaskType,
    WhyType,
)
from holdfast.controller.why.retry_state import PENDING, make_chain
from holdfast.core.bundles.code import CodeRef
from holdfast.core.causes import Cause
from holdfast.core.records import AttemptRecord, JobRecord
from holdfast.core.states import AttemptState

# ---- attempts


async def _job_of(root: Parent[AttemptRecord], info: Info) -> Any:
    return await shapes.reads_of(info).jobs.load(root.job_id)


async def _parent_of(root: Parent[AttemptRecord], info: Info) -> Any:
    if root.parent is None:
        return None
    return await shapes.reads_of(info).attempt.load((root.job_id, root.parent))


async def _cause_of_parent(root: Parent[AttemptRecord], info: Info) -> Any:
    parent = await _parent_of(root, info)
    return None if parent is None else parent.cause


async def _members(
    root: Parent[AttemptRecord], info: Info, first: int = 10, after: int = -1
) -> Any:
    return await shapes.reads_of(info).members.load(
        Members((root.job_id, root.number), first, after)
    )


async def _tasks_of_attempt(
    root: Parent[AttemptRecord], info: Info, first: int = 10, after: int = -1
) -> Any:
    if root.state is AttemptState.ENDED:
        return []
    tasks = await shapes.reads_of(info).tasks.load(Ranks(root.job_id, first, after))
    return [task for task in tasks if task.attempt == root.number]


async def _hosts_of_attempt(root: Parent[AttemptRecord], info: Info, first: int = 10) -> Any:
    ids = list(dict.fromkeys(root.host_ids))[:first]
    return [host for host in await shapes.reads_of(info).hosts.load_many(ids) if host is not None]


@mirrors(CodeRef, "The code that a job's attempts run: a bundle, or a commit of a repository.")
class CodeType:
    """See `core.bundles.code.CodeRef`."""


@mirrors(
    AttemptRecord, "One execution of the whole job, all its tasks.", but="host host_ids policy"
)
class AttemptType:
    """See `core.records.AttemptRecord`."""

    code: CodeType | None = shapes.own_field("code", "The code that it ran.")
    host_name: str | None = shapes.own_field("host", "Where it ran, in words.")
    parent_number: int | None = shapes.own_field("parent", "The number of the attempt before it.")
    retry_policy: RetryPolicyType | None = shapes.own_field(
        "policy", "The policy its end was decided by."
    )
    parent: AttemptType | None = shapes.make_field(_parent_of, "The attempt before it.")
    retry_cause: Cause | None = shapes.make_field(
        _cause_of_parent, "Why there is this attempt: the cause its parent ended of."
    )
    members: list[MemberType] = shapes.make_field(
        _members, "How its ranks ended, in the order of their ranks, those after rank `after`."
    )
    tasks: list[TaskType] = shapes.make_field(
        _tasks_of_attempt, "Its tasks while it lives, those after rank `after`."
    )
    hosts: list[HostType] = shapes.make_field(_hosts_of_attempt, "Where it ran.")
    job: JobType = shapes.make_field(_job_of, "Its job.")


# ---- jobs


async def _attempts(
    root: Parent[JobRecord],
    info: Info,
    last: int = 10,
    before: int | None = None,
    cause: Cause | None = None,
) -> Any:
    if not root.attempts:
        return []
    return await shapes.reads_of(info).attempts.load(Chain(root.id, last, before, cause))


async def _attempt(root: Parent[JobRecord], info: Info, number: int) -> Any:
    return await shapes.reads_of(info).attempt.load((root.id, number))


async def _tasks(root: Parent[JobRecord], info: Info, first: int = 10, after: int = -1) -> Any:
    return await shapes.reads_of(info).tasks.load(Ranks(root.id, first, after))


async def _chain(root: Parent[JobRecord], info: Info, last: int = 10) -> Any:
    return make_chain(await _attempts(root, info, last))


async def _events(root: Parent[JobRecord], info: Info, last: int = 10) -> Any:
    return await shapes.reads_of(info).events.load(Tail(root.id, last))


async def _why(root: Parent[JobRecord], info: Info) -> Any:
    return await shapes.reads_of(info).whys.load(root)


async def _policy(root: Parent[JobRecord], info: Info) -> Any:
    return await shapes.reads_of(info).policy(root)


async def _max_retries(root: Parent[JobRecord], info: Info) -> int:
    return 0 if root.spec.interactive else (await shapes.reads_of(info).policy(root)).max_retries


async def _retry_state(root: Parent[JobRecord], info: Info) -> Any:
    return await shapes.reads_of(info).retry_state(root)


async def _retry_count(root: Parent[JobRecord], info: Info) -> int:
    """Count as the filters `retriesMin` and `retriesMax` do: the failure that ended a job was
    charged but not retried."""
    if root.ended_at is None:
        return root.retries_charged
    ending = await shapes.reads_of(info).ending(root)
    return ending[-1].retry_count if ending else 0


async def _retry_cause(root: Parent[JobRecord], info: Info) -> Any:
    ending = await shapes.reads_of(info).ending(root)
    followed = ending if root.state in PENDING else ending[:-1]
    return followed[-1].cause if followed else None


async def _queue(root: Parent[JobRecord], info: Info) -> Any:
    return (await shapes.reads_of(info).queues()).get(root.queue)


async def _project(root: Parent[JobRecord], info: Info) -> Any:
    return (await shapes.reads_of(info).projects()).get(root.project)


@mirrors(
    JobRecord, "A job: what was submitted, where it is, and the last decision's sentence of reason."
)
class JobType:
    """See `core.records.JobRecord`."""

    labels: Json = shapes.json_field("labels", "Its labels.")
    spec: Json = shapes.json_field("spec", "As it was submitted; of secrets the names alone.")
    rank_charges: Json = shapes.json_field(
        "rank_charges", "What each rank of a gang was charged, by its number."
    )
    queue_name: str = shapes.own_field("queue", "The name of its queue.")
    project_name: str = shapes.own_field("project", "The name of its project.")
    task_count: int = shapes.own_field("tasks", "How many ranks run together.")
    attempt_count: int = shapes.own_field(
        "attempts", "How many attempts it has had, the running one included."
    )
    queue: QueueType | None = shapes.make_field(_queue, "Its queue; null where that was deleted.")
    project: ProjectType | None = shapes.make_field(
        _project, "Its project; null where it has no settings and no unfinished job."
    )
    attempts: list[AttemptType] = shapes.make_field(
        _attempts, "Its last attempts, oldest first; `before` a number, or of one cause."
    )
    attempt: AttemptType | None = shapes.make_field(_attempt, "One attempt by its number.")
    tasks: list[TaskType] = shapes.make_field(
        _tasks, "The tasks of its current attempt, those after rank `after`."
    )
    retry_count: int = shapes.make_field(_retry_count, "Retries made or decided.")
    max_retries: int = shapes.make_field(_max_retries, "How many retries it may have.")
    retry_policy: RetryPolicyType = shapes.make_field(
        _policy, "The policy in force; of an ended job the one it ended under."
    )
    retry_cause: Cause | None = shapes.make_field(
        _retry_cause, "What the last attempt that was followed by another ended of."
    )
    retry_state: RetryStateType = shapes.make_field(_retry_state, "Where it stands in its chain.")
    retry_chain: list[ChainLinkType] = shapes.make_field(
        _chain, "The last links of its chain, oldest first."
    )
    events: list[EventType] = shapes.make_field(_events, "Its last events, oldest first.")
    why: WhyType = shapes.make_field(_why, "Why it is where it is, and what to do.")
