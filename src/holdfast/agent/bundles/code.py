"""Bring the code of a job to this host, and lay it into its work folder before it starts.

LAID-1  Every attempt gets the same code: the bundle that its job names, from the first attempt to
        the last, also where the folder that it came from has changed since.
LAID-2  Code is laid into a folder by one thread at a time, and once for an attempt: the ranks of a
        gang on one host share the folder, and ranks that run already are not disturbed.
LAID-3  Code in the folders of jobs that are not here any more takes bounded room: after an hour,
        and beyond the newest eight, files that have not changed since they were laid are deleted.
        Files that a job wrote or changed stay.
"""

import asyncio
import contextlib
import logging
import os
import random
import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from pathlib import Path

import msgspec

from holdfast.agent.bundles.git import fetch_commit
from holdfast.agent.bundles.kept import KeptPacks
from holdfast.agent.bundles.setups import write_code
from holdfast.agent.folders import WorkFolders, make_folder
from holdfast.agent.offload import run_aside
from holdfast.agent.tasks.task import AgentTask
from holdfast.agent.uplink.transfers import Transfers, Wire
from holdfast.core.bundles.code import CodeRef
from holdfast.core.bundles.manifest import MAX_MANIFEST_BYTES, decode_manifest, list_digests
from holdfast.core.bundles.packs import MAX_PACK_BYTES, BundlePlan, decode_plan
from holdfast.core.ids import TaskKey
from holdfast.errors import (
    Conflict,
    Forbidden,
    HoldfastError,
    NotFound,
    TooLarge,
    Unavailable,
    ValidationError,
)
from holdfast.process.files import write_atomic
from holdfast.unpack.unpack import Unpacked, Unpacker, check_piece, remove_unpacked
from holdfast.wire.agent import LaunchOrder

log = logging.getLogger("holdfast.agent.bundles")

FETCH_SECONDS = 120.0
KEPT_FOLDERS, KEPT_SECONDS = 8, 3600.0
_AGAIN_SECONDS = (0.2, 5.0)
_FINAL = (NotFound, Forbidden, ValidationError, TooLarge, Conflict)
_laid = msgspec.msgpack.Decoder(Unpacked)


class CodeUnpacking:
    """Writes the code of this host's tasks into their work folders. folder: where packs and records
    are kept."""

    def __init__(self, folder: Path, works: WorkFolders, transfers: Transfers) -> None:
        self._folder = folder
        self._works = works
        self._transfers = transfers
        self._packs = KeptPacks(folder / "packs")
        self._locks: dict[str, asyncio.Lock] = {}
        self._guard = threading.Lock()
        self._laying: set[str] = set()  # folders that are being laid, which no sweep touches

    async def unpack(self, task: AgentTask, order: LaunchOrder) -> str | None:
        """Lay the code of a task into its work folder. Return None once the code is there, or where
        the task has none; otherwise a sentence on why it cannot be laid. Raises Unavailable where
        the code cannot be fetched now, and OSError where this host's disk is the reason."""
        code = order.code
        if code is None:
            return None
        wire, loop = Wire(), asyncio.get_running_loop()
        give_up_at, pause = loop.time() + FETCH_SECONDS, _AGAIN_SECONDS[0]
        folder = self._works.make(order)
        lock = self._locks.setdefault(folder, asyncio.Lock())
        try:
            while True:
                try:
                    async with lock:
                        if code.url:
                            given = {**order.env, **order.secrets}
                            fetch = partial(fetch_commit, code, folder, given, os.environ)
                            paths: Iterable[bytes] = await run_aside(fetch)
                        else:
                            work = partial(self._lay, task.key, code, folder, order.attempt, wire)
                            paths = await run_aside(work)
                    if order.makes_environment:
                        write_code(task, paths)
                    log.info(f"its code is here: {code.name}", extra=task.about())
                    return None
                except HoldfastError as error:
                    wrong = getattr(error, "code", "") == "checksum_mismatch"
                    if isinstance(error, _FINAL) and not wrong:
                        return f"its code {code.name} cannot be had: {error}"
                    if loop.time() > give_up_at:
                        raise Unavailable(
                            f"its code {code.name} cannot be had now: {error}"
                        ) from None
                    log.warning(f"its code cannot be had yet: {error}", extra=task.about())
                await asyncio.sleep(pause * random.uniform(0.75, 1.25))
                pause = min(2 * pause, _AGAIN_SECONDS[1])
        finally:
            wire.stop()
            if not lock.locked():
                self._locks.pop(folder, None)

    def _lay(
        self, key: TaskKey, code: CodeRef, folder: str, attempt: int, wire: Wire
    ) -> Iterable[bytes]:
        with self._guard:
            self._laying.add(folder)
        try:
            return self._lay_alone(key, code, folder, attempt, wire)
        finally:
            self._laying.discard(folder)

    def _lay_alone(
        self, key: TaskKey, code: CodeRef, folder: str, attempt: int, wire: Wire
    ) -> Iterable[bytes]:
        """Lay a bundle into a folder, and return the paths of its files."""
        record, boot = self._record_of(folder), _read_boot()
        before = _read_laid(record)
        known = before is not None and (before.digest, before.boot) == (code.digest, boot)
        if before is not None and known and before.attempt == attempt:
            return before.marks  # LAID-2
        where = f"bundles/{code.digest}"
        limit = MAX_MANIFEST_BYTES * 2
        plan = decode_plan(self._transfers.fetch_bytes(where, key, wire, limit))
        digest, entries = decode_manifest(plan.manifest)
        if digest != code.digest:
            raise ValidationError(f"the manifest of {digest} came for {code.digest}")
        pieces = _Pieces(
            self._packs,
            plan,
            list(list_digests(entries)),
            lambda pack: self._transfers.fetch_bytes(
                f"{where}/packs/{pack}", key, wire, MAX_PACK_BYTES
            ),
        )
        layer = Unpacker(folder, before.marks if before is not None and known else {}, pieces.read)
        try:
            marks = layer.unpack(entries)
        finally:
            pieces.close()
        make_folder(str(record.parent))
        write_atomic(record, msgspec.msgpack.encode(Unpacked(code.digest, boot, attempt, marks)))
        return marks

    def _record_of(self, folder: str) -> Path:
        name = os.path.relpath(folder, self._works.root).replace("/", "+")
        return self._folder / "laid" / name

    def sweep(self, busy: Collection[str], now: float) -> None:
        """Delete code of jobs that are not among `busy` (LAID-3), and the records of work folders
        that are gone. Called in a thread. now: Unix time."""
        found = []
        with contextlib.suppress(OSError), os.scandir(self._folder / "laid") as entries:
            for entry in entries:
                if entry.name.partition("+")[0] not in busy:
                    found.append((entry.stat().st_mtime, entry.name))
        for number, (laid_at, name) in enumerate(sorted(found, reverse=True)):
            folder = f"{self._works.root}/{name.replace('+', '/')}"
            if os.path.isdir(folder) and number < KEPT_FOLDERS and laid_at >= now - KEPT_SECONDS:
                continue
            with self._guard, contextlib.suppress(OSError):
                if folder not in self._laying:
                    record = self._folder / "laid" / name
                    laid = _read_laid(record)
                    record.unlink()
                    if laid is not None:
                        remove_unpacked(folder, laid.marks)


class _Pieces:
    """Reads pieces out of packs. A pack is fetched when its first piece is needed."""

    def __init__(
        self,
        packs: KeptPacks,
        plan: BundlePlan,
        digests: Sequence[bytes],
        fetch: Callable[[str], bytes],
    ) -> None:
        self._packs, self._plan, self._fetch = packs, plan, fetch
        if len(digests) != len(plan.places):
            raise ValidationError("the places of the bundle do not fit its manifest")
        self._places = dict(zip(digests, plan.places, strict=True))
        self._fds: dict[int, int] = {}

    def read(self, sha256: bytes, size: int) -> bytes:
        """Return the bytes of a digest, fetching the pack with them where it is missing
        (PACKS-1)."""
        number, at = self._places[sha256]
        if not 0 <= number < len(self._plan.packs):
            raise ValidationError("the places of the bundle do not fit its manifest")
        try:
            return check_piece(sha256, os.pread(self._open(number), size, at))
        except ValidationError:
            self._drop(number)  # what this disk has of it is not whole: fetch it anew, once
            return check_piece(sha256, os.pread(self._open(number), size, at))

    def _open(self, number: int) -> int:
        if number not in self._fds:
            pack = self._plan.packs[number]
            fd = self._packs.open_pack(pack)
            if fd is None:
                self._packs.add(pack, self._fetch(pack))
                fd = self._packs.open_pack(pack)
            if fd is None:
                raise OSError(f"the pack {pack} was deleted while it was used")
            if len(self._fds) >= 64:
                os.close(self._fds.pop(next(iter(self._fds))))
            self._fds[number] = fd
        return self._fds[number]

    def _drop(self, number: int) -> None:
        os.close(self._fds.pop(number))
        self._packs.remove(self._plan.packs[number])

    def close(self) -> None:
        """Close the packs that are open."""
        while self._fds:
            os.close(self._fds.popitem()[1])


def _read_laid(path: Path) -> Unpacked | None:
    try:
        return _laid.decode(path.read_bytes())
    except (OSError, msgspec.DecodeError):
        return None


def _read_boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
