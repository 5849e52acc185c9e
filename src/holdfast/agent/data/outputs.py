"""Keep the outputs of tasks: send them while the tasks run, and once more when they have ended.

OUT-4  A record of each task that keeps outputs stands on the disk from its launch until the
       controller has the last word on them, so that the agent that follows a killed one, or a host
       that comes back, sends the rest.
OUT-5  While a task runs, its outputs are sent each minute in which they changed, so that a lost host
       loses a minute of them.
OUT-6  Names that are left out are listed, with the reason: names that lead out, devices, files that
       changed each time that they were read, files beyond the bounds, and files for which the store
       has no room.
"""

import asyncio
import contextlib
import hashlib
import logging
import random
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from holdfast.agent.data.reader import FolderReader, ReaderGroups, ReaderStarved
from holdfast.agent.offload import run_aside
from holdfast.agent.tasks.table import TaskTable
from holdfast.agent.tasks.task import AgentTask
from holdfast.agent.uplink.transfers import Transfers, Wire
from holdfast.core.bundles.manifest import (
    FILE,
    FOLDER,
    LINK,
    PIECE_BYTES,
    WHOLE_BYTES,
    Entry,
    encode_manifest,
)
from holdfast.core.bundles.packs import PACK_BYTES, head_of_pack
from holdfast.core.data.outputs import MAX_FILES, MAX_LEFT, ROUND_SECONDS, LeftOut
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
from holdfast.process.files import make_private_folder, write_atomic
from holdfast.wire.data import outputs as wire_outputs
from holdfast.wire.data.outputs import OutputsOrder, OutputsReport

log = logging.getLogger("holdfast.agent.data.outputs")

_TICK_SECONDS = 5.0
_AGAIN_SECONDS = (1.0, 30.0)
_TRIES = 3
_CHANGED = "it changed each time that it was read"
_REFUSED = (NotFound, Forbidden, Conflict)


class OwedOutputs(msgspec.Struct, kw_only=True):
    """The record of a task whose outputs are kept. root: the folder in which its names stand.
    memory_bytes: the memory limit of the task, which its reader has, too; 0 without one."""

    key: TaskKey
    attempt: int
    root: str
    order: OutputsOrder
    memory_bytes: int = 0


class _Known(msgspec.Struct):
    """A file as it was when it was read last, and the digests of its pieces."""

    sign: list[int]
    size: int
    digests: bytes


class _Round(msgspec.Struct):
    """The findings of one look at a task's outputs."""

    entries: dict[str, Entry] = {}
    left: list[LeftOut] = []
    left_more: int = 0
    reason: str = ""

    def leave(self, path: str, why: str) -> None:
        """Note that a name is left out, and the reason (OUT-6)."""
        if len(self.left) < MAX_LEFT:
            self.left.append(LeftOut(path[:4096], why))
        else:
            self.left_more += 1


class Collector:
    """Sends the outputs of one task, and remembers what it has sent."""

    def __init__(
        self, task: OwedOutputs, transfers: Transfers, groups: ReaderGroups | None = None
    ) -> None:
        self.task = task
        self._transfers = transfers
        self._groups = groups
        self._known: dict[str, _Known] = {}
        self._told: tuple[str, int] | None = None
        self.sent_at = 0.0
        self.wire = Wire()

    def send(self, *, ended: bool) -> None:
        """Look at the outputs of the task and send the files that are new. The call blocks. Raises
        HoldfastError, OSError."""
        self.wire = Wire()
        round_ = _Round()
        reader = None
        try:
            reader = FolderReader(self.task.root, self._groups, self.task.memory_bytes)
            self._collect(reader, round_)
        except FileNotFoundError:
            round_.reason = "the task's folder is gone"
        except ReaderStarved as error:
            round_.reason = str(error)
        finally:
            if reader is not None:
                reader.close()
        digest, manifest = encode_manifest(_close_folders(round_.entries))
        told = digest, len(round_.left) + round_.left_more
        if not ended and told == self._told:
            return
        report = OutputsReport(
            manifest=manifest if round_.entries else None,
            ended=ended,
            left=round_.left,
            left_more=round_.left_more,
            reason=round_.reason,
        )
        try:
            self._call("PUT", "outputs", wire_outputs.encode_report(report))
        except Conflict as error:
            if error.code != "bundle_incomplete":
                raise
            self._known.clear()  # bytes that were sent long ago are gone: all is asked for anew
            raise Unavailable(str(error)) from error
        self._told = told

    def _collect(self, reader: FolderReader, round_: _Round) -> None:
        found: list[dict[str, Any]] = []
        for answer in reader.walk(self.task.order.paths, MAX_FILES):
            found += answer.get("entries", ())
            for one in answer.get("left", ()):
                round_.leave(one["path"], one["left"])
            round_.left_more += answer.get("left_more", 0)
        left_bytes = self.task.order.max_bytes
        files = []
        for one in found:
            if one["kind"] != "file":
                kind = FOLDER if one["kind"] == "folder" else LINK
                target = one.get("target", "").encode("utf-8", "surrogateescape")
                bits = one["bits"] if kind == FOLDER else 0
                if one["path"] != ".":
                    self._add(round_, Entry(_name(one["path"]), kind, bits, target=target))
            elif one["size"] > left_bytes:
                most = self.task.order.max_bytes / 2**20
                round_.leave(one["path"], f"beyond the {most:g} MiB that are kept (outputs_max_mb)")
            else:
                left_bytes -= one["size"]
                files.append(one)
        try:
            for path, entry in self._read_all(reader, files, round_):
                round_.entries[path] = entry
        except TooLarge as error:
            if error.code != "bundles_full":
                raise
            round_.reason = str(error)[:2048]
            kept = {one["path"] for one in files} & round_.entries.keys()
            for one in files:
                if one["path"] not in kept:
                    round_.leave(one["path"], "the store of outputs is full")

    @staticmethod
    def _add(round_: _Round, entry: Entry) -> None:
        round_.entries[entry.path.decode("utf-8", "surrogateescape")] = entry

    # ---- reading and sending

    def _read_all(
        self, reader: FolderReader, files: list[dict[str, Any]], round_: _Round
    ) -> Iterator[tuple[str, Entry]]:
        """Read the files that changed, send them in packs, and yield each file once its bytes are
        kept."""
        batch: dict[bytes, bytes] = {}
        size, ready = 0, list[tuple[str, Entry]]()
        for one in files:
            path = one["path"]
            known = self._known.get(path)
            if known is None or (known.sign, known.size) != (one["sign"], one["size"]):
                known = None
                for _ in range(_TRIES):
                    try:
                        known = self._read_file(reader, path, batch)
                    except ValidationError as error:
                        round_.leave(path, str(error))
                        break
                    if known is not None:
                        break
                else:
                    round_.leave(path, _CHANGED)
                if known is None:
                    continue
                self._known[path] = known
            ready.append((path, Entry(_name(path), FILE, one["bits"], known.size, known.digests)))
            size = sum(map(len, batch.values())) if len(batch) < 64 else PACK_BYTES
            if size >= PACK_BYTES:
                self._send_batch(batch)
                yield from ready
                batch, ready = {}, []
        self._send_batch(batch)
        yield from ready

    def _read_file(
        self, reader: FolderReader, path: str, batch: dict[bytes, bytes]
    ) -> _Known | None:
        """Read a whole file, and add its bytes to the batch, or send the bytes where they are many.
        Return None where the file changed meanwhile."""
        first, data = reader.read(path, 0, PIECE_BYTES)
        size, sign = first["size"], first["sign"]
        pieces = list[bytes]()
        if size <= WHOLE_BYTES:
            while len(data) < size:
                now, more = reader.read(path, len(data), PIECE_BYTES)
                if (now["size"], now["sign"]) != (size, sign) or not more:
                    return None
                data += more
            pieces = [data] if data else []
        digests = [hashlib.sha256(piece).digest() for piece in pieces]
        batch.update(zip(digests, pieces, strict=True))
        at = 0
        while size > WHOLE_BYTES and at < size:
            if at:
                now, data = reader.read(path, at, PIECE_BYTES)
                if (now["size"], now["sign"]) != (size, sign):
                    return None
            if len(data) != min(PIECE_BYTES, size - at):
                return None
            digests.append(hashlib.sha256(data).digest())
            self._send_batch({digests[-1]: data})
            at += len(data)
        if len(data) > size:
            return None
        return _Known(sign, size, b"".join(digests))

    def _send_batch(self, batch: dict[bytes, bytes]) -> None:
        if not batch:
            return
        asked = wire_outputs.OutputsMissing(digests=[digest.hex() for digest in batch])
        body = self._call("POST", "outputs/missing", wire_outputs.encode(asked))
        missing = set(msgspec.json.decode(body)["missing"])
        left = [(digest, data) for digest, data in batch.items() if digest.hex() in missing]
        if left:
            head = head_of_pack([(digest, len(data)) for digest, data in left])
            self._call("PUT", "outputs/packs", b"".join((head, *(data for _, data in left))))

    def _call(self, method: str, where: str, body: bytes) -> bytes:
        task = self.task
        return self._transfers.send_bytes(
            method, where, task.key, self.wire, body, attempt=task.attempt
        )


def _name(path: str) -> bytes:
    return path.encode("utf-8", "surrogateescape").removeprefix(b"./")


def _close_folders(entries: dict[str, Entry]) -> list[Entry]:
    """Return the entries together with those of the folders in which they stand."""
    found = {entry.path: entry for entry in entries.values()}
    for path in list(found):
        above = path.rpartition(b"/")[0]
        while above and above not in found:
            found[above] = Entry(above, FOLDER, 0o755)
            above = above.rpartition(b"/")[0]
    return list(found.values())


class OutputsKeeper:
    """Keeps the outputs of this host's tasks. folder: the folder with the records (OUT-4). groups:
    makes the control groups of those that read (OUT-7)."""

    def __init__(
        self,
        folder: Path,
        table: TaskTable,
        transfers: Transfers,
        groups: ReaderGroups | None = None,
    ) -> None:
        self._folder = folder
        self._table = table
        self._transfers = transfers
        self._groups = groups or ReaderGroups()
        self._collectors: dict[TaskKey, Collector] = {}
        self._works: dict[TaskKey, asyncio.Task[None]] = {}
        self._again: dict[TaskKey, tuple[float, float]] = {}  # when to try again, and the pause
        self._poked = asyncio.Event()

    @property
    def busy(self) -> bool:
        """Return whether any outputs are still to be sent."""
        return bool(self._collectors)

    @property
    def pending(self) -> int:
        """Return the number of tasks that have ended and whose outputs are still to be sent."""
        return sum(self._has_ended(key) for key in self._collectors)

    def begin(self, task: AgentTask, root: str, order: OutputsOrder, memory_bytes: int = 0) -> None:
        """Record that a task with outputs starts (OUT-4). Raises OSError."""
        record = OwedOutputs(
            key=task.key, attempt=task.attempt, root=root, order=order, memory_bytes=memory_bytes
        )
        make_private_folder(self._folder)
        write_atomic(self._path_of(task.key), msgspec.json.encode(record))
        self._collectors[task.key] = Collector(record, self._transfers, self._groups)
        self._poked.set()

    def poke(self) -> None:
        """Have the outputs looked at soon, because a task has ended."""
        self._poked.set()

    async def run(self) -> None:
        """Send outputs for ever, as tasks leave them."""
        self._load()
        while True:
            for key in list(self._collectors):
                if key not in self._works and self._is_due(key):
                    work = self._works[key] = asyncio.create_task(self._send(key))
                    work.add_done_callback(partial(self._end_work, key))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_TICK_SECONDS if self._collectors else None):
                    await self._poked.wait()
            self._poked.clear()

    async def wait_until_sent(self, seconds: float) -> None:
        """Wait until the outputs of tasks that have ended are sent, for `seconds` at most, because
        this host leaves."""
        self._again.clear()
        self.poke()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self.pending:
                    await asyncio.sleep(0.05)
        if self.pending:
            log.warning(f"leaves before the outputs of {self.pending} tasks were sent")

    def _load(self) -> None:
        for path in self._folder.glob("*.json") if self._folder.is_dir() else ():
            try:
                record = msgspec.json.decode(path.read_bytes(), type=OwedOutputs)
            except (OSError, msgspec.MsgspecError) as error:
                log.error(f"the record of outputs {path.name} cannot be read: {error}")
                continue
            collector = Collector(record, self._transfers, self._groups)
            self._collectors.setdefault(record.key, collector)

    def _has_ended(self, key: TaskKey) -> bool:
        task = self._table.get(key)
        return task is None or task.state.end_heard

    def _is_due(self, key: TaskKey) -> bool:
        now = time.monotonic()
        if key in self._again and now < self._again[key][0]:
            return False
        collector = self._collectors[key]
        if self._has_ended(key):
            return True
        task = self._table.get(key)
        return task is not None and task.began and now - collector.sent_at >= ROUND_SECONDS

    async def _send(self, key: TaskKey) -> None:
        collector, ended = self._collectors[key], self._has_ended(key)
        collector.sent_at = time.monotonic()
        about = {"job": key.job_id, "rank": key.rank, "attempt": collector.task.attempt}
        try:
            await run_aside(partial(collector.send, ended=ended))
        except _REFUSED as error:
            log.warning(f"its outputs are not taken: {error}", extra=about)
            self._forget(key)
        except (HoldfastError, OSError) as error:
            pause = self._again.get(key, (0.0, _AGAIN_SECONDS[0]))[1]
            log.warning(f"its outputs are not sent yet: {error}", extra=about)
            wait = pause * random.uniform(0.75, 1.25)
            self._again[key] = time.monotonic() + wait, min(2 * pause, _AGAIN_SECONDS[1])
        else:
            self._again.pop(key, None)
            if ended:
                log.info("its outputs are kept", extra=about)
                self._forget(key)

    def _end_work(self, key: TaskKey, work: asyncio.Task[None]) -> None:
        self._works.pop(key, None)
        if not work.cancelled() and work.exception() is not None:
            log.error("outputs cannot be sent", exc_info=work.exception())
            self._again[key] = time.monotonic() + _AGAIN_SECONDS[1], _AGAIN_SECONDS[1]
        self._poked.set()

    def _forget(self, key: TaskKey) -> None:
        self._collectors.pop(key, None)
        self._again.pop(key, None)
        with contextlib.suppress(OSError):
            self._path_of(key).unlink(missing_ok=True)

    def _path_of(self, key: TaskKey) -> Path:
        return self._folder / f"{key.job_id}.{key.rank}.{key.epoch}.json"
