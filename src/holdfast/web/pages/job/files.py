"""The files that a job left: checkpoints, logs and outputs, each as a download and never as a page."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from typing import Any

import msgspec

from holdfast.client.rest import RestCall, path_to
from holdfast.core.bundles.manifest import FILE, Entry, decode_manifest, list_digests, show_path
from holdfast.core.bundles.packs import BundlePlan, decode_plan
from holdfast.core.data.outputs import OutputFile, OutputsRecord
from holdfast.errors import HoldfastError, NotFound, ValidationError
from holdfast.web.page import PageRequest, together
from holdfast.wire.operations.work import outputs as on_outputs

SHOWN_OUTPUTS = 50
LISTED_OUTPUTS = 4
SHOWN_FILES = 500


class OutputsShown(msgspec.Struct, frozen=True, kw_only=True):
    """The outputs of one rank of an attempt. files: the first of them, where they are listed; more:
    the number of the others."""

    record: OutputsRecord
    files: list[OutputFile] | None = None
    more: int = 0


async def read_files(ask: PageRequest, *, keeps: bool) -> dict[str, Any]:
    """Return what the tab shows. keeps: the job asks for outputs."""
    reader, job_id = ask.reader, ask.params["job"]
    checkpoints, streams = await together(reader.checkpoints(job_id), reader.log_streams(job_id))
    records = await reader.outputs(job_id) if keeps else []
    newest = sorted(records, key=lambda each: (-each.attempt, each.rank))
    shown = [await _list(ask, each, n) for n, each in enumerate(newest[:SHOWN_OUTPUTS])]
    return {
        "checkpoints": checkpoints,
        "streams": streams,
        "outputs": shown,
        "outputs_more": len(newest) - len(shown),
        "keeps": keeps,
    }


async def _list(ask: PageRequest, record: OutputsRecord, number: int) -> OutputsShown:
    chosen = ask.query.get("of") == f"{record.attempt}.{record.rank}"
    if not record.digest or not (chosen or number < LISTED_OUTPUTS):
        return OutputsShown(record=record)
    try:
        found = await ask.reader.output_files(record.job_id, record.attempt, record.rank)
    except HoldfastError:  # they expired meanwhile, which the record says at the next look
        return OutputsShown(record=record)
    return OutputsShown(
        record=record, files=found[:SHOWN_FILES], more=max(0, len(found) - SHOWN_FILES)
    )


async def open_output(ask: PageRequest) -> tuple[str, AsyncIterator[bytes]]:
    """Return the name of the output file that a request means, and its bytes. Raises NotFound."""
    attempt, rank, path = (ask.query.get(name, "") for name in ("attempt", "rank", "path"))
    if not (attempt.isdigit() and rank.isdigit()):
        raise ValidationError("an attempt and a rank are numbers", field="attempt")
    where = path_to(on_outputs.LIST_OUTPUT_FILES, ask.params["job"], attempt, rank).removesuffix(
        "/files"
    )
    plan = decode_plan(await ask.reader.call(RestCall("GET", f"{where}/plan", bytes)))
    _, entries = await asyncio.to_thread(decode_manifest, plan.manifest)
    found = (each for each in entries if each.kind == FILE and show_path(each.path) == path)
    entry = next(found, None)
    if entry is None:
        raise NotFound(
            f"the outputs of rank {rank} of attempt {attempt} have no file {path[:200]!r}"
        )
    places = dict(zip(list_digests(entries), plan.places, strict=True))
    return path.rpartition("/")[2], _read_file(ask, where, plan, places, entry)


async def _read_file(
    ask: PageRequest,
    where: str,
    plan: BundlePlan,
    places: dict[bytes, tuple[int, int]],
    entry: Entry,
) -> AsyncIterator[bytes]:
    """Yield the pieces of a file, one pack in memory at a time."""
    number, pack = -1, b""
    for digest, _, size in entry.list_pieces():
        wanted, at = places[digest]
        if wanted != number:
            call = RestCall("GET", f"{where}/packs/{plan.packs[wanted]}", bytes)
            number, pack = wanted, await ask.reader.call(call)
        piece = pack[at : at + size]
        if hashlib.sha256(piece).digest() != digest:
            raise HoldfastError("other bytes are kept than were sent", code="checksum_mismatch")
        yield piece
