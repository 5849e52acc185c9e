"""Start the nodes of a run: resolve what they refer to, and submit their work.

A start is repeated where a replica died in it; the work's id was on record before (FLOW-2), so a
repeat finds what the first one submitted.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from holdfast.controller.calls.values import load_value
from holdfast.controller.runtime.context import Controller
from holdfast.controller.workflows.call_nodes import find_set, read_map_result, start_calls
from holdfast.controller.workflows.ends import describe_job_end
from holdfast.core.calls.large import read_result
from holdfast.core.records import JobRecord
from holdfast.core.states import JobState
from holdfast.core.workflows.advance import NodeEnd
from holdfast.core.workflows.plan_start import (
    Planned,
    PlannedCalls,
    PlannedJob,
    find_out_dir,
    list_looked_into,
    name_references,
    plan_start,
)
from holdfast.core.workflows.records import NodeWork, RunRecord
from holdfast.core.workflows.references import SKIPPED
from holdfast.core.workflows.values import AskWork, NodeKind, NodeState
from holdfast.errors import Conflict, NotFound, ValidationError
from holdfast.moves.values import NewJob, NodeOrigin
from holdfast.moves.workflows import Post, Processed, Started


async def start_nodes(
    controller: Controller, run: RunRecord, posts: Sequence[Post]
) -> list[Processed]:
    """Submit the work of the nodes that these posts start. Raises QuotaExceeded and Unavailable."""
    store = controller.store.workflows
    works = await store.read_works(run.id, [post.node for post in posts])
    ready = {n: work for n, work in works.items() if work.state is NodeState.READY}
    begun = await _find_begun(controller, ready) if run.stopping else {}
    changes: dict[int, Any] = {number: Started() for number in begun}
    if run.stopping:  # nothing else begins (FLOW-5); each node is ended by its own stop
        ready = {n: ready[n] for n, whole in begun.items() if not whole}
    plans = await _plan_starts(controller, run, ready)
    changes |= await _submit_jobs(controller, run, ready, plans)
    for number, plan in plans.items():
        if isinstance(plan, PlannedCalls):
            out_dir = find_out_dir(run.out_dir, ready[number].name)
            changes[number] = await start_calls(controller, run, ready[number], plan, out_dir)
        elif isinstance(plan, AskWork):
            seconds = None if plan.timeout_seconds == "off" else plan.timeout_seconds
            choices = f" ({', '.join(plan.choices)})" if plan.choices else ""
            changes[number] = Started(prompt=plan.prompt + choices, over_seconds=seconds)
        elif isinstance(plan, NodeEnd):
            changes[number] = plan
    return [Processed(post=post, change=changes.get(post.node)) for post in posts]


async def _find_begun(controller: Controller, works: Mapping[int, NodeWork]) -> dict[int, bool]:
    """Return, for each node whose work is on record and goes on, whether all of the work is on
    record."""
    jobs = {work.ref or "": n for n, work in works.items() if work.kind is NodeKind.JOB}
    there = await controller.store.jobs.get_jobs(list(jobs)) if jobs else {}
    begun = {jobs[job.id]: True for job in there.values() if not job.state.terminal}
    for number, work in works.items():
        if work.kind in (NodeKind.CALL, NodeKind.MAP):
            found = await find_set(controller, work.ref or "")
            if found is not None and found.state == "open":
                begun[number] = found.submitted == found.count
    return begun


async def _plan_starts(
    controller: Controller, run: RunRecord, works: Mapping[int, NodeWork]
) -> dict[int, Planned]:
    names = {name for work in works.values() for name in name_references(work.spec)}
    parents = await controller.store.workflows.read_parents(run.id, list(works), names)
    results: dict[str, Any] = {}
    loaded: dict[str, Any] = {}
    plans: dict[int, Planned] = {}
    for number, work in works.items():
        try:
            for name in name_references(work.spec) - results.keys():
                results[name] = await _read_result(controller, parents[name])
            for large in list_looked_into(work.spec, results):
                if large.sha256 not in loaded:
                    data = await load_value(controller, large.sha256)
                    loaded[large.sha256] = msgspec.json.decode(data)
        except (NotFound, ValidationError) as error:
            plans[number] = NodeEnd(state=NodeState.FAILED, reason=error.message)
        else:
            out_dir = find_out_dir(run.out_dir, work.name)
            plans[number] = plan_start(run.id, work, results, out_dir, loaded)
    return plans


async def _read_result(controller: Controller, parent: NodeWork) -> Any:
    if parent.state is NodeState.SKIPPED:
        return SKIPPED
    if parent.result is not None:
        return read_result(parent.name, parent.result)
    if parent.kind is NodeKind.MAP and parent.state is NodeState.SUCCEEDED:
        return await read_map_result(controller, parent)
    return None


async def _submit_jobs(
    controller: Controller,
    run: RunRecord,
    works: Mapping[int, NodeWork],
    plans: Mapping[int, Planned],
) -> dict[int, Any]:
    specs = {n: plan.spec for n, plan in plans.items() if isinstance(plan, PlannedJob)}
    hidden = [number for number, spec in specs.items() if spec.secrets]
    secrets = await controller.store.workflows.read_secrets(run.id, hidden) if hidden else {}
    jobs: dict[int, NewJob] = {}
    for number, spec in specs.items():
        if number in secrets:
            spec = msgspec.structs.replace(spec, secrets=secrets[number])
        origin = NodeOrigin(run=run.id, node=number)
        job_id, queue = works[number].ref or "", spec.queue or "cpu"
        jobs[number] = NewJob(id=job_id, spec=spec, queue=queue, origin=origin, owner=run.owner)
    again = {n: job.id for n, job in jobs.items() if works[n].rounds > 1}
    there = await controller.store.jobs.get_jobs(list(again.values())) if again else {}
    changes: dict[int, Any] = {}
    for number, job_id in again.items():
        if job_id in there:
            changes[number] = await _go_on(controller, there[job_id])
    new = {n: job for n, job in jobs.items() if n not in changes}
    changes |= await _submit(controller, new)
    if jobs:
        controller.poke("admit", "events")
    return changes


async def _submit(controller: Controller, jobs: Mapping[int, NewJob]) -> dict[int, Any]:
    """Submit jobs together; where one is refused, submit each by itself, so that only its node
    fails."""
    if not jobs:
        return {}
    try:
        await controller.store.jobs.submit_jobs(list(jobs.values()))
    except (ValidationError, Conflict) as error:
        if len(jobs) == 1:
            return dict.fromkeys(jobs, NodeEnd(state=NodeState.FAILED, reason=error.message))
        changes: dict[int, Any] = {}
        for number, job in jobs.items():
            changes |= await _submit(controller, {number: job})
        return changes
    return dict.fromkeys(jobs, Started())


async def _go_on(controller: Controller, job: JobRecord) -> Started | NodeEnd:
    """Retry the job of an earlier round, with its checkpoints and fresh budgets."""
    if job.state is JobState.SUCCEEDED:
        return describe_job_end(job) or Started()
    if job.state.terminal:
        try:
            await controller.store.jobs.revive_job(job.id, "its workflow was restarted")
        except (Conflict, NotFound, ValidationError) as error:
            return NodeEnd(state=NodeState.FAILED, reason=error.message)
    return Started()
