"""Decide which calls a running job may make with its own token.

JOB-TOKEN-2  A job submits jobs, arrays, calls and workflows for its owner, in its own project, and
             reads and cancels the work that it submitted itself; nothing else. A running call may
             do the same, for the owner of its set.
JOB-TOKEN-3  Jobs that submit jobs end: their depth is at most `MAX_DEPTH` below the first, and each
             may have `job_children` unfinished ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from holdfast.core.calls.values import FunctionSpec
from holdfast.core.ids import ID_PATTERN
from holdfast.core.records import JobTokenRecord
from holdfast.core.spec import JobSpec
from holdfast.core.workflows.values import NodeSpec, WorkflowSpec
from holdfast.errors import Forbidden, NotFound

if TYPE_CHECKING:
    from holdfast.controller.http.endpoints import ApiCall, Endpoint
    from holdfast.store.postgres.store import PostgresStore

MAX_DEPTH = 4
PARENT_LABEL = "holdfast/parent"
"""The label of a workflow's run that names the job that submitted the run."""
_OPEN = {
    ("POST", "/v1/jobs"),
    ("POST", "/v1/jobs/batch"),
    ("POST", "/v1/arrays"),
    ("POST", "/v1/call-sets"),
    ("POST", "/v1/workflows"),
    ("PUT", "/v1/values/{sha256}"),
    ("GET", "/v1/values/{sha256}"),
    ("POST", "/v1/bundles/missing"),
    ("PUT", "/v1/bundles/packs"),
    ("POST", "/v1/bundles"),
    ("GET", "/v1/bundles/{digest}"),
    ("GET", "/v1/jobs"),
    ("GET", "/v1/arrays"),
    ("GET", "/v1/whoami"),
    ("GET", "/v1/server"),
}
"""The routes open to every job's token. Their paths name no existing work, except in two lists,
which show a job only the work that it submitted."""
_ACTS = ("/cancel", "/calls")
_MAY = (
    "a job's own token submits work, and reads and cancels what it submitted; for anything else give "
    "the job a token as a secret (`--secret HOLDFAST_TOKEN`)"
)


async def check_job_call(call: ApiCall, endpoint: Endpoint) -> None:
    """Raise Forbidden where the caller's token is a job's and the job may not make the call
    (JOB-TOKEN-2)."""
    token = call.caller
    assert isinstance(token, JobTokenRecord)
    settings = await call.controller.settings.recent()
    if not settings.gives_tokens(token.project):
        raise Forbidden(
            f"project {token.project} gives its jobs no tokens; an admin allows them: `holdfast "
            f"projects set {token.project} job_tokens=true`",
            code="no_job_tokens",
        )
    if (endpoint.method, endpoint.path) in _OPEN:
        return
    if endpoint.method == "GET" or endpoint.path.endswith(_ACTS):
        name, kind = call.params.get("id", ""), endpoint.path.split("/")[2]
        if name and await _find_parent(call.store, kind, name) == token.job_id:
            return
    raise Forbidden(f"{token.name} may not do this: {_MAY}")


async def _find_parent(store: PostgresStore, kind: str, name: str) -> str:
    """Return the id of the job that submitted the work that a path names; empty where no job
    did."""
    name, bracket, _ = name.partition("[")
    if not ID_PATTERN.fullmatch(name):
        return ""
    try:
        if kind == "arrays" or bracket:
            return (await store.arrays.get_array(name)).spec.parent
        if kind == "jobs":
            return (await store.jobs.get_job(name)).spec.parent
        if kind == "call-sets":
            return (await store.calls.read_set(name)).spec.parent
        if kind == "workflows":
            return (await store.workflows.get_run(name)).labels.get(PARENT_LABEL, "")
    except NotFound:
        pass
    return ""


async def enter_project(
    call: ApiCall, specs: Sequence[JobSpec], count: int | None = None
) -> Sequence[JobSpec]:
    """Return specs for the caller: unchanged for a user, and in the job's project for a job that
    submits them. count: the number of jobs that the specs make, where it is not one each.

    Raises:
        Forbidden: the specs are for another project, too many, or too deep (JOB-TOKEN-3).
    """
    token = call.caller
    if not isinstance(token, JobTokenRecord):
        return specs
    await _check_bounds(call, token, len(specs) if count is None else count)
    return [
        msgspec.structs.replace(spec, project=_choose_project(token, spec.project))
        for spec in specs
    ]


def adopt(call: ApiCall, spec: JobSpec) -> JobSpec:
    """Return a checked spec with the calling job as its parent; unchanged where no job calls."""
    token = call.caller
    if not isinstance(token, JobTokenRecord):
        return spec
    return msgspec.structs.replace(spec, parent=token.job_id)


async def adopt_function(call: ApiCall, spec: FunctionSpec) -> FunctionSpec:
    """Return the function of a call set with the calling job as its parent, and in the job's
    project; unchanged where no job calls. Raises Forbidden."""
    token = call.caller
    if not isinstance(token, JobTokenRecord):
        return msgspec.structs.replace(spec, parent="")
    await _check_bounds(call, token, 1)
    project = _choose_project(token, spec.project)
    return msgspec.structs.replace(spec, project=project, parent=token.job_id)


async def adopt_workflow(call: ApiCall, spec: WorkflowSpec) -> WorkflowSpec:
    """Return a workflow with the calling job as its parent, and every node in the job's project;
    unchanged where no job calls. Raises Forbidden."""
    token = call.caller
    if not isinstance(token, JobTokenRecord):
        return spec
    await _check_bounds(call, token, 1)
    return msgspec.structs.replace(
        spec,
        project=_choose_project(token, spec.project),
        nodes=[_enter_node(token, node) for node in spec.nodes],
        labels={**spec.labels, PARENT_LABEL: token.job_id},
    )


def _enter_node(token: JobTokenRecord, node: NodeSpec) -> NodeSpec:
    for work in (node.job, node.call):
        if work is not None:
            project = _choose_project(token, work.spec.project)
            own = msgspec.structs.replace(work, spec=_place(work.spec, token, project))
            name = "job" if work is node.job else "call"
            return msgspec.structs.replace(node, **{name: own})
    return node


def _place(
    spec: JobSpec | FunctionSpec, token: JobTokenRecord, project: str
) -> JobSpec | FunctionSpec:
    if isinstance(spec, FunctionSpec):
        return msgspec.structs.replace(spec, project=project, parent=token.job_id)
    return msgspec.structs.replace(spec, project=project)


def _choose_project(token: JobTokenRecord, asked: str) -> str:
    if asked not in (token.project, "default"):
        raise Forbidden(
            f"a job submits in its own project, which is {token.project}, and not in {asked}"
        )
    return token.project


async def _check_bounds(call: ApiCall, token: JobTokenRecord, count: int) -> None:
    """Raise Forbidden where a job submits work that is too deep, or too much (JOB-TOKEN-3)."""
    store, parent = call.store, token.job_id
    for _ in range(MAX_DEPTH):
        parent = await _find_parent(store, "jobs", parent) or await _find_parent(
            store, "call-sets", parent
        )
        if not parent:
            break
    else:
        raise Forbidden(
            f"{token.name} is {MAX_DEPTH} below the first that submitted work, and work is submitted "
            "no deeper",
            code="too_deep",
        )
    most = (await call.controller.settings.recent()).children_limit(token.project)
    there = await store.jobs.count_children(token.job_id)
    if there + count > most:
        raise Forbidden(
            f"{token.name} has {there} unfinished jobs, and {count} more would be over the {most} that "
            f"it may have; wait for some, or have an admin raise job_children of project "
            f"{token.project}",
            code="too_many_children",
        )
