"""Read the code of a job again: its files, the differences between two jobs, and a copy of it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from holdfast.client.late import LateModule
from holdfast.client.rest import RestCall, path_to
from holdfast.client.scripts import Caller
from holdfast.core.bundles.manifest import Entry, decode_manifest, list_digests
from holdfast.core.bundles.packs import BundlePlan, decode_plan
from holdfast.errors import HoldfastError, ValidationError
from holdfast.unpack.unpack import Unpacker, check_piece

if TYPE_CHECKING:
    from holdfast.wire.operations.work import bundles as on_bundles
else:
    on_bundles = LateModule("holdfast.wire.operations.work.bundles")


class JobCode(msgspec.Struct, frozen=True):
    """The bundle of a job."""

    job_id: str
    digest: str
    entries: list[Entry]
    plan: BundlePlan


class CodeDifference(msgspec.Struct, frozen=True):
    """A path in which the code of two jobs differs. what: "added", "removed" or "changed"."""

    path: bytes
    what: str


def fetch_code(caller: Caller, job_id: str) -> JobCode:
    """Return the code of a job: its bundle, and the entries in it. Raises NotFound where the job
    has no code."""
    data = caller.call(RestCall("GET", path_to(on_bundles.GET_JOB_PLAN, job_id), bytes))
    try:
        plan = decode_plan(data)
    except msgspec.DecodeError as error:
        raise HoldfastError(f"the controller's answer is not understood: {error}") from None
    digest, entries = decode_manifest(plan.manifest)
    return JobCode(job_id, digest, entries, plan)


def compare_codes(old: JobCode, new: JobCode) -> list[CodeDifference]:
    """Return the differences between the code of two jobs, sorted by path."""
    before = {entry.path: entry for entry in old.entries}
    after = {entry.path: entry for entry in new.entries}
    found = []
    for path in sorted(before.keys() | after.keys()):
        if path not in before:
            found.append(CodeDifference(path, "added"))
        elif path not in after:
            found.append(CodeDifference(path, "removed"))
        elif before[path] != after[path]:
            found.append(CodeDifference(path, "changed"))
    return found


def restore_code(caller: Caller, code: JobCode, folder: str) -> None:
    """Write the code of a job into a folder, which must be new or empty. Raises ValidationError,
    OSError."""
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    if any(target.iterdir()):
        raise ValidationError(f"{folder} is not empty; name a new folder", field="get")
    places = dict(zip(list_digests(code.entries), code.plan.places, strict=True))
    last = (-1, b"")

    def read(sha256: bytes, size: int) -> bytes:
        nonlocal last
        number, at = places[sha256]
        if last[0] != number:
            path = path_to(on_bundles.GET_JOB_PACK, code.job_id, code.plan.packs[number])
            last = number, caller.call(RestCall("GET", path, bytes))
        return check_piece(sha256, last[1][at : at + size])

    Unpacker(os.fspath(target), {}, read).unpack(code.entries)
