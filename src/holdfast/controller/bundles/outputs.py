"""The routes of outputs: how hosts send what tasks left, and how people see and fetch it.

OUT-3  A host sends outputs of its own tasks into their project alone, and a digest is no key to
       bytes there either (BUNDLE-2).
"""

import asyncio

import msgspec
from starlette.responses import Response

from holdfast.controller.api.jobs import find_job
from holdfast.controller.bundles.downloads import answer_pack, answer_plan
from holdfast.controller.bundles.uploads import keep_bundle, keep_pack
from holdfast.controller.http.bodies import decode_packed, read_body
from holdfast.controller.http.endpoints import ApiCall
from holdfast.controller.http.problems import answer_json
from holdfast.controller.runtime.bundles.kept import PLANS
from holdfast.core.bundles.manifest import (
    FILE,
    FOLDER,
    MAX_MANIFEST_BYTES,
    WHOLE_BYTES,
    Entry,
    decode_manifest,
    show_path,
)
from holdfast.core.bundles.packs import MAX_PACK_BYTES, decode_plan
from holdfast.core.data.outputs import OutputFile, OutputsRecord, settle_state
from holdfast.core.ids import TaskKey
from holdfast.core.states import OutputsEvent, OutputsState
from holdfast.errors import Conflict, NotFound
from holdfast.store.postgres.bundles.outputs import NewOutputs, OutputsTask
from holdfast.wire.data.bundles import MissingAnswer
from holdfast.wire.data.outputs import OutputsMissing, OutputsReport, OutputsStored
from holdfast.wire.operations.fleet.agents import AgentOutputsQuery
from holdfast.wire.operations.work.outputs import OutputsQuery

_REPORT = msgspec.msgpack.Decoder(OutputsReport)
_FRAME_BYTES = 4 << 20  # what a report takes beside its manifest


async def _find_task(call: ApiCall) -> tuple[TaskKey, OutputsTask]:
    host, query = call.host, call.query(AgentOutputsQuery)
    assert host is not None
    key = TaskKey(query.job, query.rank, query.epoch)
    task = await call.store.outputs.find_outputs_task(
        host.id, query.incarnation, key, query.attempt
    )
    if not task.wanted:
        raise NotFound(f"job {key.job_id} asks for no outputs")
    return key, task


async def find_missing_outputs(call: ApiCall) -> Response:
    """Answer which digests the project of a host's task has no bytes of (OUT-3)."""
    _, task = await _find_task(call)
    request = await call.body(OutputsMissing, limit_bytes=4 << 20)
    held = await call.store.bundles.find_places(task.project, request.digests)
    missing = [digest for digest in dict.fromkeys(request.digests) if digest not in held]
    return answer_json(MissingAnswer(missing=missing))


async def put_outputs_pack(call: ApiCall) -> Response:
    """Keep a pack of a task's outputs; the body is its bytes."""
    _, task = await _find_task(call)
    data = await read_body(call.scope, call.receive, MAX_PACK_BYTES)
    await keep_pack(call, task.project, data)
    return Response(status_code=204)


async def put_outputs(call: ApiCall) -> Response:
    """Record a host's report on the outputs of a task."""
    controller, host = call.controller, call.host
    assert host is not None
    key, task = await _find_task(call)
    limit = MAX_MANIFEST_BYTES + _FRAME_BYTES
    report = decode_packed(await read_body(call.scope, call.receive, limit), _REPORT)
    event, fields = OutputsEvent.SEND, {"digest": "", "files": 0, "bytes": 0}
    if report.manifest is not None:
        digest, entries = await asyncio.to_thread(decode_manifest, report.manifest)
        view = await keep_bundle(call, task.project, digest, report.manifest, entries)
        fields = {"digest": digest, "files": view.files, "bytes": view.bytes}
    if report.ended:
        left = bool(report.left or report.left_more)
        whole = settle_state(left=left, reason=report.reason) is OutputsState.COMPLETE
        event = OutputsEvent.FINISH if whole else OutputsEvent.CUT
    new = NewOutputs(
        event=event,
        left_out=report.left,
        left_more=report.left_more,
        reason=report.reason,
        **fields,  # type: ignore[arg-type]  # a str and two ints, as above
    )
    written = await controller.store.outputs.put_outputs(host.id, task, key, new)
    if written.plans:
        await controller.bundles.delete([PLANS + plan for plan in written.plans])
    if report.ended:
        controller.poke(f"outputs:{key.job_id}", "fleet")
    return answer_json(OutputsStored(state=written.state))


# ---- for people


async def list_outputs(call: ApiCall) -> Response:
    """List the outputs of a job's attempts."""
    job, query = await find_job(call), call.query(OutputsQuery)
    if not job.spec.outputs:
        raise NotFound(
            f"job {job.id} keeps no outputs; submit it with --outputs PATH", code="no_outputs"
        )
    return answer_json(await _read(call, query.attempt, query.rank))


async def _read(call: ApiCall, attempt: int | None, rank: int | None) -> list[OutputsRecord]:
    settings = await call.controller.settings.recent()
    return await call.store.outputs.list_outputs(
        call.params["id"],
        lost_seconds=settings.number("outputs_lost_seconds"),
        attempt=attempt,
        rank=rank,
    )


async def list_output_files(call: ApiCall) -> Response:
    """List the files of one rank of an attempt, with their sizes and digests."""
    project, digest = await _find_kept(call)
    found = await call.store.bundles.find_bundle(project, digest)
    if found is None:
        raise NotFound(f"the bytes of these outputs are gone ({digest})", code="bundle_gone")
    plan = decode_plan(await call.controller.bundles.read(PLANS + found.plan))
    _, entries = await asyncio.to_thread(decode_manifest, plan.manifest)
    return answer_json([_show(entry) for entry in entries])


def _show(entry: Entry) -> OutputFile:
    kind = "file" if entry.kind == FILE else "folder" if entry.kind == FOLDER else "link"
    whole = entry.kind == FILE and entry.size <= WHOLE_BYTES
    digests = [digest.hex() for digest, _, _ in entry.list_pieces()] if entry.kind == FILE else []
    return OutputFile(
        path=show_path(entry.path),
        kind=kind,
        bits=entry.bits,
        size=entry.size,
        sha256=digests[0] if whole and digests else "",
        pieces=[] if whole else digests,
        target=show_path(entry.target) if entry.target else "",
    )


async def get_outputs_plan(call: ApiCall) -> Response:
    """Send the manifest of the outputs of one rank, and the places of their bytes."""
    return await answer_plan(call, *await _find_kept(call))


async def get_outputs_pack(call: ApiCall) -> Response:
    """Send a pack of the outputs of one rank."""
    return await answer_pack(call, *await _find_kept(call))


async def _find_kept(call: ApiCall) -> tuple[str, str]:
    """Return the project and the bundle of the outputs that the path of the request names. Raises
    NotFound, Conflict."""
    job = await find_job(call)
    try:
        attempt, rank = int(call.params["attempt"]), int(call.params["rank"])
    except ValueError:
        raise NotFound("an attempt and a rank are numbers") from None
    where = f"rank {rank} of attempt {attempt} of job {job.id}"
    found = await _read(call, attempt, rank) if 0 < attempt < 2**30 and 0 <= rank < 2**16 else []
    if not found:
        raise NotFound(f"there are no outputs of {where}", code="no_outputs")
    (record,) = found
    if record.digest:
        return job.project, record.digest
    if record.expired_at is not None:
        raise NotFound(f"the outputs of {where} have expired (outputs_keep_days)", code="expired")
    if record.state is OutputsState.COLLECTING:
        raise Conflict(f"the outputs of {where} are still collected", code="collecting")
    raise NotFound(f"nothing of the outputs of {where} is kept: {record.reason or 'it left none'}")
