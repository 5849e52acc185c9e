"""The routes of workflows: submit, list, show, cancel, restart, answer."""

from collections.abc import Sequence
from typing import Annotated

import msgspec
from msgspec import Meta
from starlette.responses import Response

from holdfast.controller.api.jobs import (
    check_bundles,
    check_job,
    check_project,
    find_notes,
    knows_project,
    queue_of,
    refuse_impossible,
)
from holdfast.controller.calls.sets import check_function, find_queue
from holdfast.controller.http.endpoints import ApiCall
from holdfast.controller.http.job_tokens import adopt_workflow
from holdfast.controller.http.owners import name_caller
from holdfast.controller.http.pages import answer_page, make_cursor, read_cursor
from holdfast.controller.http.problems import answer_json
from holdfast.controller.runtime.context import Controller
from holdfast.controller.runtime.settings import Settings
from holdfast.controller.workflows.why import explain_node
from holdfast.core.calls.values import FunctionSpec
from holdfast.core.placement.possible import HostShape
from holdfast.core.spec import JobSpec
from holdfast.core.workflows.check import check_workflow
from holdfast.core.workflows.plan_start import find_out_dir
from holdfast.core.workflows.records import RunRecord
from holdfast.core.workflows.values import NodeSpec, WorkflowSpec
from holdfast.errors import ValidationError
from holdfast.moves.workflows import NewRun
from holdfast.wire.operations.work.workflows import NodesQuery, RunsQuery
from holdfast.wire.workflows import (
    MAX_WORKFLOW_BYTES,
    AnswerRequest,
    CancelRun,
    NewWorkflow,
    NodeView,
    RestartRun,
    RunView,
)

Text = Annotated[str, Meta(min_length=1, max_length=256)]


async def submit_workflow(call: ApiCall) -> Response:
    """Submit a workflow. A repeat under the same id answers with the first submission's run."""
    controller = call.controller
    request = await call.body(NewWorkflow, limit_bytes=MAX_WORKFLOW_BYTES)
    settings = await controller.settings.current()
    asked = await adopt_workflow(call, request.spec)
    if _names_unknown(asked, settings):
        settings = await controller.settings.refresh()
    check_project(asked.project, settings)
    graph = check_workflow(asked)
    jobs = [node.job.spec for node in asked.nodes if node.job is not None]
    notes = await find_notes(controller, jobs)
    sizes = await controller.sizes.current()
    nodes = [_settle_node(n, node, settings, sizes) for n, node in enumerate(asked.nodes)]
    spec = msgspec.structs.replace(asked, nodes=nodes)
    await _check_code(controller, spec)
    root = spec.out_dir or str(settings.value("workflow_out_dir") or "")
    out_dir = f"{root.rstrip('/')}/{request.id}" if root else ""
    new = NewRun(id=request.id, spec=spec, owner=call.user, parents=graph.parents, out_dir=out_dir)
    run = await controller.store.workflows.submit_run(new)
    controller.poke("workflows", "events")
    view = await _view(controller, run)
    return answer_json(view, 201, {"Location": f"/v1/workflows/{run.id}"} | notes)


async def _check_code(controller: Controller, spec: WorkflowSpec) -> None:
    """Raise ValidationError where a node names a bundle that its project does not hold."""
    named: list[tuple[str, JobSpec | FunctionSpec]] = []
    for number, node in enumerate(spec.nodes):
        if node.job is not None:
            named.append((f"nodes[{number}].job.spec.", node.job.spec))
        if node.call is not None:
            named.append((f"nodes[{number}].call.spec.", node.call.spec))
    await check_bundles(controller, [one for _, one in named], [where for where, _ in named])


def _names_unknown(spec: WorkflowSpec, settings: Settings) -> bool:
    names = {queue_of(node.job.spec) for node in spec.nodes if node.job is not None}
    names |= {find_queue(node.call.spec) for node in spec.nodes if node.call is not None}
    projects = {node.job.spec.project for node in spec.nodes if node.job is not None}
    projects |= {node.call.spec.project for node in spec.nodes if node.call is not None}
    known = all(knows_project(name, settings) for name in {spec.project, *projects})
    return not known or any(name not in settings.queues for name in names)


def _settle_node(
    number: int, node: NodeSpec, settings: Settings, sizes: Sequence[HostShape]
) -> NodeSpec:
    """Return the node with its queue named. Raises ValidationError with the node's name."""
    try:
        if node.job is not None:
            spec = check_job(node.job.spec, settings)
            refuse_impossible(spec, sizes)
            if spec.supervised:
                raise ValidationError("a node's job cannot be a supervised one", field="supervised")
            job = msgspec.structs.replace(spec, queue=queue_of(spec))
            return msgspec.structs.replace(node, job=msgspec.structs.replace(node.job, spec=job))
        if node.call is not None:
            function = _settle_function(node.call.spec, settings)
            call = msgspec.structs.replace(node.call, spec=function)
            return msgspec.structs.replace(node, call=call)
    except ValidationError as error:
        where = f"nodes[{number}].{error.field}" if error.field else f"nodes[{number}]"
        raise ValidationError(
            f"node {node.name}: {error.message}", code=error.code, field=where
        ) from None
    return node


def _settle_function(spec: FunctionSpec, settings: Settings) -> FunctionSpec:
    queue = find_queue(spec)
    check_function(spec, queue, settings.queues)
    check_project(spec.project, settings)
    return msgspec.structs.replace(spec, queue=queue)


async def _view(controller: Controller, run: RunRecord) -> RunView:
    counts = await controller.store.workflows.count_nodes(run.id)
    return RunView(**msgspec.structs.asdict(run), counts=counts)


async def list_runs(call: ApiCall) -> Response:
    """List runs, newest first."""
    query = name_caller(call, call.query(RunsQuery))
    found = await call.store.workflows.list_runs(
        states=query.state,
        project=query.project,
        owner=query.owner,
        name=query.name,
        before=read_cursor(query.cursor) if query.cursor else None,
        limit=query.limit + 1,
    )
    items = found[: query.limit]
    more = len(found) > query.limit
    return answer_page(items, make_cursor(items[-1].id) if more else None)


async def get_run(call: ApiCall) -> Response:
    """Return one run."""
    run = await call.store.workflows.get_run(call.params["id"])
    return answer_json(await _view(call.controller, run))


async def list_nodes(call: ApiCall) -> Response:
    """List the nodes of a run."""
    query = call.query(NodesQuery)
    run = await call.store.workflows.get_run(call.params["id"])
    after = -1 if query.cursor is None else int(query.cursor)
    found = await call.store.workflows.list_nodes(
        run.id, states=query.state, after=after, limit=query.limit + 1
    )
    items = found[: query.limit]
    more = len(found) > query.limit
    return answer_page(items, str(items[-1].number) if more else None)


async def get_node(call: ApiCall) -> Response:
    """Return one node with its work and its result."""
    store = call.store.workflows
    run = await store.get_run(call.params["id"])
    node = await store.find_node(run.id, call.params["node"])
    work = (await store.read_works(run.id, [node.number]))[node.number]
    result = None if work.result is None else msgspec.json.decode(work.result)
    view = NodeView(
        **msgspec.structs.asdict(node),
        spec=work.spec,
        result=result,
        out_dir=find_out_dir(run.out_dir, node.name),
    )
    return answer_json(view)


async def get_node_why(call: ApiCall) -> Response:
    """Explain why a node is where it is."""
    store = call.store.workflows
    run = await store.get_run(call.params["id"])
    node = await store.find_node(run.id, call.params["node"])
    return answer_json(await explain_node(call.controller, run, node))


async def cancel_run(call: ApiCall) -> Response:
    """Cancel a run: waiting work at once, running work cooperatively."""
    request = await call.body(CancelRun, default=CancelRun())
    reason = request.reason or f"cancelled by {call.caller_name}"
    run_id = call.params["id"]
    run = await call.store.workflows.cancel_run(run_id, reason, hard=request.hard)
    call.controller.poke("workflows", "events")
    return answer_json(await _view(call.controller, run), 200 if run.state.terminal else 202)


async def restart_run(call: ApiCall) -> Response:
    """Run the nodes again that did not succeed; results of finished nodes are used again."""
    request = await call.body(RestartRun, default=RestartRun())
    reason = request.reason or f"restarted by {call.caller_name}"
    run_id = call.params["id"]
    run = await call.store.workflows.restart_run(run_id, reason, origins=request.origins)
    call.controller.poke("workflows", "events")
    return answer_json(await _view(call.controller, run))


async def answer_node(call: ApiCall) -> Response:
    """Answer a node's question."""
    request = await call.body(AnswerRequest)
    run_id, name = call.params["id"], call.params["node"]
    node = await call.store.workflows.answer_node(run_id, name, request.answer, call.caller_name)
    call.controller.poke("workflows", "events")
    return answer_json(node)
