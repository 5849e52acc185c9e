"""Decide which work a caller may change.

OWNER-1  Work is changed by its owner's tokens, by admins, and, in a project whose setting `shared`
         is on, by any submit token. Reading is free. Work without an owner, from before there were
         owners, may be changed by every submit token.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, TypeVar

import msgspec

from holdfast.core.arrays.records import ArrayRecord, ScheduleRecord
from holdfast.core.ids import ID_PATTERN
from holdfast.core.records import JobRecord
from holdfast.core.workflows.records import RunRecord
from holdfast.errors import Forbidden, NotFound
from holdfast.wire.calls import CallSetView
from holdfast.wire.operations.queries import ME

if TYPE_CHECKING:
    from holdfast.controller.http.endpoints import ApiCall
    from holdfast.wire.operations.operation import Owned

Q = TypeVar("Q", bound=msgspec.Struct)
Work = JobRecord | ArrayRecord | CallSetView | RunRecord | ScheduleRecord


def name_caller(call: ApiCall, query: Q) -> Q:
    """Return the query with the caller's user in place of `@me`."""
    owner = getattr(query, "owner", None)
    if isinstance(owner, tuple):
        named = tuple(call.user if each == ME else each for each in owner)
        return msgspec.structs.replace(query, owner=named)
    return msgspec.structs.replace(query, owner=call.user) if owner == ME else query


async def check_owner(call: ApiCall, kind: Owned) -> None:
    """Raise Forbidden where the caller may not change the work that the path names (OWNER-1). A
    path that names nothing passes, because its handler answers that it was not found."""
    if call.caller.role == "admin":
        return
    try:
        work = await _find_work(call, kind)
    except NotFound:
        return
    refused = await find_refusal(call, work)
    if refused is not None:
        raise refused


async def find_refused(call: ApiCall, job_ids: Collection[str]) -> dict[str, Forbidden]:
    """Return the jobs among these that the caller may not change, each with the reason."""
    if call.caller.role == "admin":
        return {}
    found = await call.store.jobs.get_jobs(job_ids)
    refused = {job.id: await find_refusal(call, job) for job in found.values()}
    return {job_id: error for job_id, error in refused.items() if error is not None}


async def find_refusal(call: ApiCall, work: Work) -> Forbidden | None:
    """Return the reason why the caller may not change the work, or None."""
    what = _name_work(work)
    if isinstance(work, JobRecord) and work.spec.executor:
        return Forbidden(
            f"{what} runs calls of every user of its queue; cancel a call set instead, or ask an "
            "admin"
        )
    if work.owner in ("", call.user):
        return None
    project = work.spec.project if isinstance(work, CallSetView) else work.project
    settings = call.controller.settings
    if (await settings.recent()).is_shared(project):
        return None
    if (await settings.refresh()).is_shared(project):  # the project may have become shared
        return None
    return Forbidden(
        f"{what} belongs to {work.owner}, and this token acts for {call.user}: ask {work.owner} or "
        f"an admin, or have an admin let all users of the project change it: `holdfast projects "
        f"set {project} shared=true`",
        code="not_the_owner",
    )


async def _find_work(call: ApiCall, kind: Owned) -> Work:
    """Return the owner and project of the work that the path names. Raises NotFound."""
    store, name = call.store, call.params["name" if kind == "schedule" else "id"]
    if kind in ("job", "array", "set") and not ID_PATTERN.fullmatch(name):
        raise NotFound(f"there is no {kind} {name[:64]!r}")
    if kind == "job":
        return await store.jobs.get_job(name)
    if kind == "array":
        return await store.arrays.get_array(name)
    if kind == "set":
        return await store.calls.read_set(name)
    if kind == "run":
        return await store.workflows.get_run(name)
    return await store.schedules.get_schedule(name)


def _name_work(work: Work) -> str:
    if isinstance(work, ScheduleRecord):
        return f"schedule {work.name}"
    words = {JobRecord: "job", ArrayRecord: "array", CallSetView: "call set"}
    return f"{words.get(type(work), 'workflow run')} {work.id}"
