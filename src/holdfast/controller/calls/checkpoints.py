"""The agent's route of calls' checkpoints: bytes for the next attempt, whichever host it runs on."""

import logging

from starlette.responses import Response

from holdfast.blobs.interface import BlobMissing, BlobSpoilt
from holdfast.controller.api.checkpoints.bytes import (
    SHA_HEADER,
    Upload,
    drop_blobs,
    read_announcement,
)
from holdfast.controller.api.checkpoints.routes import limits_of
from holdfast.controller.http.endpoints import ApiCall
from holdfast.controller.http.sse import StreamAnswer, chain_pieces
from holdfast.controller.runtime.auth import make_new_id
from holdfast.core.ids import TaskKey
from holdfast.errors import NotFound
from holdfast.moves.calls.checkpoints import CallHolder, name_blob
from holdfast.moves.checkpoints import NewCheckpoint
from holdfast.wire.operations.fleet.agents import CallCheckpointQuery

log = logging.getLogger("holdfast.controller")


async def put_call_checkpoint(call: ApiCall) -> Response:
    """Keep the checkpoint that a running call saved, in place of its last one; the body is the
    bytes."""
    controller, holder = call.controller, _read_holder(call)
    kept = await controller.store.call_checkpoints.find_kept(holder)
    queue, spec = await controller.specs.find(holder.key.job_id)
    limit, _ = limits_of(await controller.settings.current(), queue, spec)
    announced = read_announcement(call, limit, need_sha=True)
    upload = Upload(call.receive, announced, limit)
    blob = name_blob(kept, make_new_id())
    await controller.blobs.write(blob, upload.pieces(), size=announced.size)
    new = NewCheckpoint(blob=blob, size=upload.size, sha256=upload.digest)
    # Where this fails its outcome may be unknown; the sweep deletes a blob that no row names.
    drop_blobs(controller, await controller.store.call_checkpoints.keep(holder, new))
    return Response(status_code=204)


async def get_call_checkpoint(call: ApiCall) -> Response:
    """Send a running call the last checkpoint that an earlier attempt of it saved."""
    controller = call.controller
    kept = await controller.store.call_checkpoints.find_kept(_read_holder(call))
    name = f"call {kept.set_id}.{kept.index}"
    if kept.blob is None:
        raise NotFound(f"{name} has no checkpoint")
    pieces = controller.blobs.read(kept.blob, size=kept.size)
    try:
        # Read the first piece before the head goes out: a checkpoint that cannot be read is then a
        # problem, not a broken stream.
        first = await anext(pieces, b"")
    except (BlobMissing, BlobSpoilt) as error:
        log.error("%s starts from nothing, because its checkpoint is lost: %s", name, error)
        raise NotFound(f"the checkpoint of {name} is lost: {error.message}") from None
    answer = StreamAnswer(
        controller,
        chain_pieces(first, pieces),
        media_type="application/octet-stream",
        headers={SHA_HEADER: kept.sha256},
        keep_alive=False,
    )
    answer.headers["content-length"] = str(kept.size)  # shows a stream that breaks off
    return answer


def _read_holder(call: ApiCall) -> CallHolder:
    host, query = call.host, call.query(CallCheckpointQuery)
    assert host is not None
    key = TaskKey(query.job, query.rank, query.epoch)
    return CallHolder(host_id=host.id, key=key, batch=query.batch, position=query.position)
