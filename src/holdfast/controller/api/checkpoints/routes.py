"""The routes of checkpoints, for agents and for people. Their bodies are the bytes themselves."""

import logging

from starlette.responses import Response

from holdfast.controller.api.checkpoints import bytes as checkpoint_bytes
from holdfast.controller.api.jobs import find_job
from holdfast.controller.http.endpoints import ApiCall
from holdfast.controller.http.pages import answer_page
from holdfast.controller.http.problems import answer_json
from holdfast.controller.http.sse import StreamAnswer, chain_pieces
from holdfast.controller.runtime.context import Controller
from holdfast.controller.runtime.settings import Settings
from holdfast.core.ids import TaskKey
from holdfast.core.records import CheckpointRecord, shared_fields
from holdfast.core.spec import JobSpec
from holdfast.errors import NotFound, ValidationError
from holdfast.moves.checkpoints import check_by_hand
from holdfast.wire import agent as wire
from holdfast.wire.operations.fleet.agents import AgentCheckpointQuery
from holdfast.wire.operations.work.jobs import CheckpointQuery, WhichCheckpointsQuery

log = logging.getLogger("holdfast.controller")


# ---- agents


async def put_agent_checkpoint(call: ApiCall) -> Response:
    """Keep a checkpoint that a task of this host saved (CKPT-1)."""
    controller, host, query = call.controller, call.host, call.query(AgentCheckpointQuery)
    assert host is not None
    key = TaskKey(query.job, query.rank, query.epoch)
    await controller.store.checkpoints.check_checkpoint(host.id, query.incarnation, key)
    limit, keep = await _limits(controller, key.job_id)
    announced = checkpoint_bytes.read_announcement(call, limit, need_sha=True)
    new = await checkpoint_bytes.keep_bytes(controller, call, key, announced, limit, query.step)
    try:
        added = await controller.store.checkpoints.add_checkpoint(
            host.id, query.incarnation, key, new, keep
        )
    except BaseException:
        controller.background.start(checkpoint_bytes.drop_unknown(controller, new.blob))
        raise
    checkpoint_bytes.note_added(controller, key, added)
    return answer_json(wire.CheckpointStored(number=added.record.number))


async def get_agent_checkpoint(call: ApiCall) -> Response:
    """Send a task of this host what an earlier attempt of its rank saved."""
    controller, host, query = call.controller, call.host, call.query(AgentCheckpointQuery)
    assert host is not None
    await controller.store.checkpoints.check_checkpoint(
        host.id, query.incarnation, TaskKey(query.job, query.rank, query.epoch)
    )
    record, blob = await controller.store.checkpoints.find_checkpoint(
        query.job, query.rank, number=query.number
    )
    return await _answer_bytes(controller, record, blob)


async def skip_agent_checkpoint(call: ApiCall) -> Response:
    """Offer a task of this host the checkpoint before the last one offered, because the task cannot
    use the last one (SAVE-4)."""
    controller, host = call.controller, call.host
    assert host is not None
    said = await call.body(wire.CheckpointSkip)
    key = said.key
    older = await controller.store.checkpoints.skip_checkpoint(
        host.id, said.incarnation, key, said.number, said.reason
    )
    log.warning(
        "checkpoint %d of rank %d cannot be used, number %d is handed on: %s",
        said.number,
        key.rank,
        older.number,
        said.reason,
        extra={"job": key.job_id, "epoch": key.epoch, "rank": key.rank, "host": host.id},
    )
    controller.poke("events")
    return answer_json(wire.CheckpointOffer(**shared_fields(older, wire.CheckpointOffer)))


# ---- people


async def list_checkpoints(call: ApiCall) -> Response:
    """List the checkpoints of a job that are kept."""
    job = await find_job(call)
    return answer_page(await call.store.checkpoints.list_checkpoints(job.id))


async def put_checkpoint(call: ApiCall) -> Response:
    """Keep a checkpoint that a person sends."""
    query = call.query(CheckpointQuery)
    if query.number is not None:
        raise ValidationError("a checkpoint's number is given by the server", field="query.number")
    controller, job = call.controller, await find_job(call)
    # Checked first, because bytes that will be refused should not be sent. A supervised job's ranks
    # have epochs of their own, which the store checks.
    if not job.spec.supervised:
        check_by_hand(
            job.id,
            query.rank,
            query.epoch,
            state=job.state,
            now=job.epoch,
            attempts=job.attempts,
            tasks=job.tasks,
        )
    limit, keep = limits_of(await controller.settings.current(), job.queue, job.spec)
    key = TaskKey(job.id, query.rank, max(1, job.epoch))
    announced = checkpoint_bytes.read_announcement(call, limit, need_sha=False)
    new = await checkpoint_bytes.keep_bytes(controller, call, key, announced, limit, query.step)
    try:
        added = await controller.store.checkpoints.put_checkpoint(
            job.id, query.rank, query.epoch, new, keep
        )
    except BaseException:
        controller.background.start(checkpoint_bytes.drop_unknown(controller, new.blob))
        raise
    checkpoint_bytes.note_added(controller, key, added)
    return answer_json(added.record, 201)


async def get_checkpoint(call: ApiCall) -> Response:
    """Send a checkpoint's bytes."""
    query = call.query(CheckpointQuery)
    job = await find_job(call)
    record, blob = await call.store.checkpoints.find_checkpoint(
        job.id, query.rank, number=query.number, epoch=query.epoch
    )
    return await _answer_bytes(call.controller, record, blob)


async def delete_checkpoints(call: ApiCall) -> Response:
    """Delete checkpoints, so that the next attempt starts from an earlier one, or from nothing."""
    query = call.query(WhichCheckpointsQuery)
    job = await find_job(call)
    blobs = await call.store.checkpoints.delete_checkpoints(
        job.id, rank=query.rank, number=query.number
    )
    if not blobs:
        raise NotFound(
            f"job {job.id} has no such checkpoint; `holdfast checkpoints {job.id}` lists them"
        )
    checkpoint_bytes.drop_blobs(call.controller, blobs)
    return Response(status_code=204)


async def _limits(controller: Controller, job_id: str) -> tuple[int, int]:
    queue, spec = await controller.specs.find(job_id)
    return limits_of(await controller.settings.current(), queue, spec)


def limits_of(settings: Settings, queue: str, spec: JobSpec) -> tuple[int, int]:
    """Return the largest size of a checkpoint in bytes, and how many of each rank are kept."""
    most = settings.number("checkpoint_max_mb", queue, spec) * 2**20
    return int(most), int(settings.number("checkpoint_keep", queue, spec))


async def _answer_bytes(controller: Controller, record: CheckpointRecord, blob: str) -> Response:
    pieces = checkpoint_bytes.read_checked(controller, record, blob)
    # The first piece before the head: a blob that cannot be read is a problem, not a broken stream.
    first = await anext(pieces, b"")
    headers = {
        checkpoint_bytes.SHA_HEADER: record.sha256,
        "Holdfast-Checkpoint-Number": str(record.number),
    }
    if record.step is not None:
        headers["Holdfast-Checkpoint-Step"] = str(record.step)
    answer = StreamAnswer(
        controller,
        chain_pieces(first, pieces),
        media_type="application/octet-stream",
        headers=headers,
        keep_alive=False,
    )
    answer.headers["content-length"] = str(record.size)  # shows a stream that breaks off
    return answer
