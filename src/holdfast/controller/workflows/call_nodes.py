"""The calls of workflow nodes: submit them as one call set, and read their ends and results."""

from typing import Any

from holdfast.controller.calls.sets import find_queue, poke_family
from holdfast.controller.calls.values import keep_value
from holdfast.controller.runtime.context import Controller
from holdfast.core.calls.large import read_result
from holdfast.core.calls.texts import shorten
from holdfast.core.calls.values import CallState
from holdfast.core.workflows.advance import NodeEnd
from holdfast.core.workflows.plan_start import MAX_LOOKED_BYTES, PlannedCalls
from holdfast.core.workflows.records import NodeWork, RunRecord
from holdfast.core.workflows.values import NodeKind, NodeState
from holdfast.errors import Conflict, NotFound, ValidationError
from holdfast.moves.workflows import STOP_HARD, Post, Started
from holdfast.store.postgres.calls.values import CallSetOrigin
from holdfast.wire.calls import CallSetView

CHUNK_CALLS = 10_000
PAGE_CALLS = 1000


async def start_calls(
    controller: Controller, run: RunRecord, work: NodeWork, plan: PlannedCalls, out_dir: str
) -> Started | NodeEnd:
    """Submit a node's calls as one set; after a restart, retry the calls that did not succeed.
    Where the run is being stopped, the calls submitted so far are cancelled at once and the others
    as they are added, so that the set is complete when the node is retried."""
    store, set_id = controller.store.calls, work.ref or ""
    try:
        found = await find_set(controller, set_id) if work.rounds > 1 else None
        if found is not None and found.submitted == found.count:
            return await _go_on(controller, found, work)
        origin = CallSetOrigin(run=run.id, node=work.number, out_dir=out_dir)
        queue, count = find_queue(plan.spec), len(plan.args)
        first = await _shorten_args(controller, plan.args[:CHUNK_CALLS])
        stopping = run.stopping
        if stopping:  # the set's first calls are on record
            await store.cancel_calls(set_id, reason=run.reason)
        else:
            await store.create_set(
                set_id, plan.spec, queue, count=count, args=first, origin=origin, owner=run.owner
            )
        for begin in range(CHUNK_CALLS, count, CHUNK_CALLS):
            more = await _shorten_args(controller, plan.args[begin : begin + CHUNK_CALLS])
            if not stopping and await _is_stopping(controller, run.id):
                stopping = True
                await store.cancel_calls(set_id, reason="its run stops")
            await store.append_calls(set_id, begin, more)
    except (Conflict, ValidationError) as error:
        return NodeEnd(state=NodeState.FAILED, reason=error.message)
    poke_family(controller, plan.spec, queue)
    return Started()


async def _is_stopping(controller: Controller, run_id: str) -> bool:
    return (await controller.store.workflows.get_run(run_id)).stopping


async def _shorten_args(controller: Controller, texts: list[str]) -> list[str]:
    """Return the arguments with each large one replaced by its name in the blob store."""
    kept: dict[str, bytes] = {}
    short = [shorten(text, kept.__setitem__) for text in texts]
    for data in kept.values():
        await keep_value(controller, data)
    return short


async def find_set(controller: Controller, set_id: str) -> CallSetView | None:
    """Return a node's call set, None where it is not on record."""
    try:
        return await controller.store.calls.read_set(set_id)
    except NotFound:
        return None


async def _go_on(controller: Controller, found: CallSetView, work: NodeWork) -> Started | NodeEnd:
    if found.state == "open":
        return Started()
    if found.failed or found.cancelled:
        await controller.store.calls.retry_calls(found.id)
        poke_family(controller, found.spec, find_queue(found.spec))
        return Started()
    return await describe_calls_end(controller, work) or Started()


async def describe_calls_end(controller: Controller, work: NodeWork) -> NodeEnd | None:
    """Return the end of a node whose call set has ended; None where calls of it go on."""
    found = await find_set(controller, work.ref or "")
    if found is None:
        return NodeEnd(state=NodeState.FAILED, reason="its calls are not on record any more")
    if found.state == "open":
        return None
    if found.failed or found.cancelled:
        return await _describe_failure(controller, found, work)
    if work.kind is NodeKind.MAP:
        reason = f"{found.succeeded} call{'s' if found.succeeded != 1 else ''} succeeded"
        return NodeEnd(state=NodeState.SUCCEEDED, reason=reason)
    (result,) = await controller.store.calls.read_results(found.id, indices=[0])
    return NodeEnd(state=NodeState.SUCCEEDED, result=result.value or "null", reason=result.reason)


async def _describe_failure(controller: Controller, found: CallSetView, work: NodeWork) -> NodeEnd:
    state = CallState.FAILED if found.failed else CallState.CANCELLED
    ended = await controller.store.calls.read_results(found.id, states=[state], limit=1)
    words = ended[0].reason if ended else ""
    if work.kind is NodeKind.MAP:
        number, what = (
            (found.failed, "failed") if found.failed else (found.cancelled, "were cancelled")
        )
        first = f"; call {ended[0].index}: {words}" if ended else ""
        words = f"{number} of {found.submitted} calls {what}{first}"
    return NodeEnd(state=NodeState.FAILED if found.failed else NodeState.CANCELLED, reason=words)


async def read_map_result(controller: Controller, work: NodeWork) -> list[Any]:
    """Return the results of a map, in the order of its items. Raises ValidationError for more than
    a node may hold."""
    values: list[Any] = []
    size = 0
    while True:
        page = await controller.store.calls.read_results(
            work.ref or "", first=len(values), limit=PAGE_CALLS
        )
        size += sum(len(result.value) for result in page)
        if size > MAX_LOOKED_BYTES:
            raise ValidationError(
                f"the results of node {work.name} are over {MAX_LOOKED_BYTES} characters together, "
                "too many for one node: keep them as files in out_dir and return their paths"
            )
        values += [read_result(work.name, result.value or "null") for result in page]
        if len(page) < PAGE_CALLS:
            return values


async def stop_calls(controller: Controller, post: Post, reason: str) -> bool:
    """Cancel a node's calls: waiting ones at once; running ones cooperatively, or, for a hard stop,
    with their executors. Returns False where no call of the node is on record or goes on."""
    try:
        found = await controller.store.calls.cancel_calls(
            post.ref, reason=reason, hard=post.kind == STOP_HARD
        )
    except NotFound:
        return False
    poke_family(controller, found.spec, find_queue(found.spec))
    controller.poke(f"set:{post.ref}", "workflows")
    return found.state == "open"
