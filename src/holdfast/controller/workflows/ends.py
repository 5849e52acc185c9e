"""Make the ends of nodes from the ends of their work, and stop a node's work."""

import msgspec

from holdfast.controller.runtime.context import Controller
from holdfast.core.records import JobRecord
from holdfast.core.states import JobState
from holdfast.core.workflows.advance import NodeEnd
from holdfast.core.workflows.records import NodeWork
from holdfast.core.workflows.values import NodeState
from holdfast.errors import NotFound
from holdfast.moves.workflows import STOP_HARD, STOP_QUEUED, Post

_ENDS = {
    JobState.SUCCEEDED: NodeState.SUCCEEDED,
    JobState.FAILED: NodeState.FAILED,
    JobState.CANCELLED: NodeState.CANCELLED,
}


def describe_job_end(job: JobRecord | None) -> NodeEnd | None:
    """Return the end of a node whose job has ended; None where the job goes on, because a person
    retried it."""
    if job is None:
        return NodeEnd(state=NodeState.FAILED, reason="its job is not on record any more")
    if not job.state.terminal:
        return None
    result = None
    if job.state is JobState.SUCCEEDED:
        about = {"job": job.id, "exit_code": job.exit_code or 0, "attempts": job.attempts}
        result = msgspec.json.encode(about).decode()
    return NodeEnd(state=_ENDS[job.state], result=result, reason=job.reason)


def describe_silence(work: NodeWork) -> NodeEnd | None:
    """Return the end of a question that was not answered in time."""
    ask = work.spec.ask
    if ask is None or work.state is not NodeState.STARTED:
        return None
    if ask.default is not None:
        result = msgspec.json.encode(ask.default).decode()
        reason = f"no answer came in time; {ask.default!r} was taken"
        return NodeEnd(state=NodeState.SUCCEEDED, result=result, reason=reason)
    late = f"no answer came within {ask.timeout_seconds:g} s"
    return NodeEnd(state=NodeState.FAILED, reason=late)


async def stop_job(controller: Controller, post: Post, reason: str) -> bool:
    """Stop a node's job, as its post asks. Returns False where the job is not on record or has
    ended."""
    store = controller.store.jobs
    job = (await store.get_jobs([post.ref])).get(post.ref)
    if job is None or job.state.terminal:
        return False
    if post.kind == STOP_QUEUED and job.state not in (JobState.WAITING, JobState.QUEUED):
        return True
    try:
        job = await store.cancel_job(post.ref, reason, hard=post.kind == STOP_HARD)
    except NotFound:
        return False
    if job.state is JobState.DRAINING:
        controller.poke_hosts_of(job.id)
    controller.poke("admit", "drain", "events")
    return True
