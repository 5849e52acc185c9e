"""The reasons why a node of a run is in its present state."""

from holdfast.controller.calls.why import view_call
from holdfast.controller.runtime.context import Controller
from holdfast.controller.why.explain import explain
from holdfast.controller.why.reads import find_circumstances
from holdfast.controller.why.words import line
from holdfast.core.workflows.records import NodeRecord, RunRecord
from holdfast.core.workflows.values import NodeKind, NodeState
from holdfast.wire.api import WhyLine
from holdfast.wire.workflows import NodeWhy

MAX_NAMED = 10
LOOKED_CALLS = 1000


async def explain_node(controller: Controller, run: RunRecord, node: NodeRecord) -> NodeWhy:
    """Return every reason that holds a node, a sentence each, and what to do about it."""
    lines = await _list_lines(controller, run, node)
    summary = lines[0].message if lines else (node.reason or str(node.state))
    return NodeWhy(run=run.id, node=node.name, state=str(node.state), summary=summary, lines=lines)


async def _list_lines(controller: Controller, run: RunRecord, node: NodeRecord) -> list[WhyLine]:
    if node.state is NodeState.WAITING:
        return [await _explain_wait(controller, run, node)]
    if node.state is NodeState.READY:
        return [line("ready", "its parents are over; it is being started")]
    if node.state is NodeState.STARTED and node.kind is NodeKind.ASK:
        hint = f"holdfast workflow answer {run.id} {node.name} ANSWER"
        return [line("asks", "it waits for a person's answer and holds no host", hint)]
    if node.state is NodeState.STARTED and node.kind is NodeKind.JOB and node.ref is not None:
        job = (await controller.store.jobs.get_jobs([node.ref])).get(node.ref)
        if job is not None:
            (found,) = await find_circumstances(controller, [job])
            return [line("started", f"its job is {job.state}", f"holdfast why {job.id}"),
                    *explain(found).lines]  # fmt: skip
    if node.state is NodeState.STARTED and node.ref is not None:
        return await _explain_calls(controller, node.ref)
    if node.state in (NodeState.FAILED, NodeState.CANCELLED):
        text = (
            f"it {'failed' if node.state is NodeState.FAILED else 'was cancelled'}: {node.reason}"
        )
        hint = f"holdfast workflow restart {run.id}" if run.state.terminal else ""
        if run.failed_node not in (None, node.name):
            hint = f"see why node {run.failed_node} failed, then {hint}" if hint else ""
        return [line(str(node.state), text, hint)]
    return [line(str(node.state), node.reason)] if node.reason else []


async def _explain_calls(controller: Controller, set_id: str) -> list[WhyLine]:
    found = await controller.store.calls.read_set(set_id)
    over = found.succeeded + found.failed + found.cancelled
    text = f"{over} of {found.submitted} calls have ended"
    if found.failed:
        text += f", {found.failed} of them badly"
    lines = [line("calls", text, f"holdfast calls show {set_id}")]
    index = await _find_waiting(controller, set_id, found.submitted)
    if index is None:
        return lines
    view = await view_call(controller, set_id, index)
    return lines + [
        line(each.code, f"call {index}: {each.message}", each.hint)
        for each in view.why
        if each.code not in ("running", "ended")
    ]


async def _find_waiting(controller: Controller, set_id: str, submitted: int) -> int | None:
    """Return the index of the first call of a set that has not ended, as far as one page of results
    shows it."""
    ended = await controller.store.calls.read_results(set_id, first=0, limit=LOOKED_CALLS)
    return len(ended) if len(ended) < min(submitted, LOOKED_CALLS) else None


async def _explain_wait(controller: Controller, run: RunRecord, node: NodeRecord) -> WhyLine:
    store = controller.store.workflows
    works = await store.read_works(run.id, node.parents[:1000])
    left = [works[n] for n in node.parents[:1000] if n in works and not works[n].state.passes]
    named = ", ".join(f"{work.name} ({work.state})" for work in left[:MAX_NAMED])
    more = node.waiting_on - min(len(left), MAX_NAMED)
    others = f" and {more} more" if more > 0 else ""
    noun = "node" if node.waiting_on == 1 else "nodes"
    return line("waiting_parents", f"it waits for {node.waiting_on} {noun}: {named}{others}")
