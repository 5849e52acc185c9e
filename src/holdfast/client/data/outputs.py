"""Fetch kept outputs into a folder, as a script that both clients run."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection, Sequence
from fnmatch import fnmatchcase

import msgspec

from holdfast.client.data.arrive import Arrival
from holdfast.client.data.copy import MAGIC
from holdfast.client.late import on_outputs
from holdfast.client.rest import RestCall, path_to
from holdfast.client.scripts import Script, take_answer
from holdfast.core.bundles.manifest import FILE, FOLDER, LINK, Entry, decode_manifest, list_digests
from holdfast.core.bundles.packs import BundlePlan, decode_plan
from holdfast.errors import HoldfastError

_KEPT_PACKS = 4


class Fetched(msgspec.Struct, kw_only=True):
    """The outcome of a fetch. attempt: the attempt whose outputs these are. files: number of files
    that were written; kept: number of files that were here already. bytes: the bytes that were
    fetched. refused: links that are not made, because they may lead out."""

    attempt: int = 0
    files: int = 0
    kept: int = 0
    bytes: int = 0
    refused: list[str] = []


def fetch_outputs(
    job_id: str,
    to: str | os.PathLike[str],
    attempt: int,
    rank: int,
    names: Sequence[str] = (),
    *,
    strip: bool = False,
) -> Script[Fetched]:
    """Write the outputs of one rank below the folder `to` (ARRIVE-1…3).

    names: fetch only these files, and the files below these folders; `*` stands for any letters in
    a name that is not there itself.
    strip: write the files without the folders in front of their names, and a single file under the
    name `to`, where `to` is no folder.
    """
    where = path_to(on_outputs.LIST_OUTPUT_FILES, job_id, str(attempt), str(rank)).removesuffix(
        "/files"
    )
    data = yield from take_answer(RestCall("GET", f"{where}/plan", bytes))
    plan = decode_plan(data)
    _, entries = decode_manifest(plan.manifest)
    packs = _Packs(where, plan, entries)
    there = {os.fsdecode(entry.path) for entry in entries}
    patterns = {name for name in names if MAGIC.search(name) and name.rstrip("/") not in there}
    wanted = [entry for entry in entries if _is_wanted(entry.path, names, patterns)]
    if strip:
        to, wanted = _strip_names(os.fspath(to), wanted, names, patterns)
    found = Fetched(attempt=attempt)
    with Arrival(to) as arrival:
        for entry in wanted:
            if entry.kind == FOLDER:
                arrival.make_folder(entry.path)
            elif entry.kind == LINK:
                if not arrival.make_link(entry.path, entry.target):
                    found.refused.append(os.fsdecode(entry.path))
            else:
                yield from _fetch_file(arrival, entry, packs, found)
        for entry in reversed(wanted):
            if entry.kind == FOLDER:
                arrival.set_bits(entry.path, entry.bits)
    return found


def _is_wanted(path: bytes, names: Sequence[str], patterns: Collection[str]) -> bool:
    text = os.fsdecode(path)
    return not names or any(
        text == name
        or text.startswith(f"{name.rstrip('/')}/")
        or f"{name}".startswith(f"{text}/")
        or (name in patterns and fnmatchcase(text, name))
        for name in names
    )


def _strip_names(
    to: str, wanted: Sequence[Entry], names: Sequence[str], patterns: Collection[str]
) -> tuple[str, list[Entry]]:
    """Return the folder to write to and the entries, named as `cp` names them."""
    plain = [MAGIC.split(name)[0] if name in patterns else name for name in names if name]
    bases = [os.fsencode(os.path.dirname(name)) for name in plain]
    base = os.path.commonpath(bases) + b"/" if bases and all(bases) else b""
    stripped = [
        msgspec.structs.replace(entry, path=entry.path.removeprefix(base))
        for entry in wanted
        if entry.path.startswith(base) and entry.path != base.rstrip(b"/")
    ]
    one = len(stripped) == 1 and stripped[0].kind == FILE
    if not one or os.path.isdir(to) or to.endswith("/"):
        return to, stripped
    name = os.fsencode(os.path.basename(to))
    return os.path.dirname(to) or ".", [msgspec.structs.replace(stripped[0], path=name)]


def _fetch_file(arrival: Arrival, entry: Entry, packs: _Packs, found: Fetched) -> Script[None]:
    file = arrival.begin(entry.path, hashlib.sha256(entry.digests).hexdigest())
    try:
        here = file.size
        for digest, at, size in entry.list_pieces():
            if at + size <= here and file.hash_piece(at, size) == digest.hex():
                continue
            data = yield from packs.read(digest, size)
            file.write(at, data)
            found.bytes += size
        file.cut(entry.size)
    except BaseException:
        file.close()
        raise
    file.finish(entry.bits)
    found.files += 1


class _Packs:
    """Reads the packs of a bundle. Each pack is fetched when its first piece is needed."""

    def __init__(self, where: str, plan: BundlePlan, entries: Sequence[Entry]) -> None:
        self._where, self._plan = where, plan
        self._places = dict(zip(list_digests(entries), plan.places, strict=True))
        self._known: dict[int, bytes] = {}

    def read(self, digest: bytes, size: int) -> Script[bytes]:
        """Return the bytes of a digest. Raises HoldfastError where the bytes have another
        digest."""
        number, at = self._places[digest]
        if number not in self._known:
            while len(self._known) >= _KEPT_PACKS:
                del self._known[next(iter(self._known))]
            call = RestCall("GET", f"{self._where}/packs/{self._plan.packs[number]}", bytes)
            self._known[number] = yield from take_answer(call)
        data = self._known[number][at : at + size]
        if hashlib.sha256(data).digest() != digest:
            raise HoldfastError(
                f"other bytes came than those of {digest.hex()}", code="checksum_mismatch"
            )
        return data
