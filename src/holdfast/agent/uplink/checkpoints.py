"""The agent's side of checkpoints: what tasks saved goes up in the background, what they start from
comes before the start.

SAVE-1  A task's end is told after what it saved is uploaded, so that the next attempt gets it; but
        never later than `HOLD_SECONDS`, or the length of its lease, after the end: a controller
        that hangs must not hold a job for ever.
SAVE-2  A file stays in the task's folder until the controller has it or refuses it for good, so an
        agent that is killed between
        the two loses nothing: the next one finds it there.
SAVE-3  A task that has a checkpoint never starts without it. What cannot be fetched is a failed
        start, with its reason.
SAVE-4  One whose bytes are not those on record, not as many, or gone, is not waited for: the next
        older one is taken, and the controller puts that on record. What only cannot be reached is
        no reason to go back.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec

from holdfast.agent.offload import run_aside
from holdfast.agent.tasks import AgentTask, TaskTable
from holdfast.agent.uplink.transfers import (
    Transfers,
    Wire,
    find_saved,
    hash_file,
    open_newest,
    remove_up_to,
)
from holdfast.core.ids import TaskKey
from holdfast.errors import Conflict, Forbidden, HoldfastError, NotFound, TooLarge, ValidationError
from holdfast.wire.agent import CheckpointOffer

log = logging.getLogger("holdfast.agent.uplink.checkpoints")

OUT_FOLDER, IN_FOLDER, IN_FILE = "checkpoint-out", "checkpoint-in", "checkpoint"
HOLD_SECONDS = 30.0
FETCH_SECONDS = 60.0
POLL_SECONDS = 5.0
_AT_ONCE = 4
_AGAIN_SECONDS = (0.2, 5.0)
_TORN_TRIES = 3
_LOST_CODES = frozenset(
    {"blob_missing", "blob_spoilt"}
)  # what the blob store says of a blob, no other try will change


class _Fetch(msgspec.Struct):
    work: asyncio.Task[None]
    wire: Wire


class CheckpointDesk:
    """All transfers of this agent. Nothing here waits in the agent's loop for a disk or the
    network."""

    def __init__(self, table: TaskTable, transfers: Transfers) -> None:
        self._table = table
        self._transfers = transfers
        self._slots = asyncio.Semaphore(_AT_ONCE)
        self._uploads: dict[TaskKey, asyncio.Task[None]] = {}
        self._wires: dict[TaskKey, Wire] = {}
        self._held: dict[TaskKey, Callable[[], None]] = {}
        self._fetches: dict[TaskKey, _Fetch] = {}
        self._said: set[TaskKey] = set()

    @property
    def holding(self) -> bool:
        """Whether ends wait for uploads."""
        return bool(self._held)

    # ---- up

    def poke(self, task: AgentTask) -> None:
        """It saved something, or may have."""
        if task.key not in self._uploads and find_saved(task.folder / OUT_FOLDER):
            work = asyncio.create_task(self._upload_all(task))
            self._uploads[task.key] = work
            work.add_done_callback(partial(self._end_upload, task))

    async def run(self) -> None:
        """Look for what no datagram told of, for ever."""
        while True:
            await asyncio.sleep(POLL_SECONDS)
            for task in self._table:
                if task.state == "running":
                    self.poke(task)

    async def _upload_all(self, task: AgentTask) -> None:
        folder = task.folder / OUT_FOLDER
        pause, longest = _AGAIN_SECONDS
        known: tuple[Path, int, int] | None = None
        torn, sha256 = 0, ""
        while (saved := open_newest(folder)) is not None:
            try:
                async with self._slots:
                    wire = self._wires[task.key] = Wire()
                    if (
                        saved.identity != known
                    ):  # not at every try: a controller that is away would cost a core
                        sha256 = await run_aside(partial(hash_file, saved.fd, saved.size))
                        known = saved.identity
                    number = await run_aside(
                        partial(self._transfers.upload, task.key, saved, sha256, wire)
                    )
            except (Conflict, NotFound, Forbidden, TooLarge) as error:
                log.error(
                    f"a checkpoint is not taken: {error}",
                    extra=task.about(size=saved.size, step=saved.step),
                )
                remove_up_to(folder, saved)
                continue
            except ValidationError as error:
                torn, known = torn + 1, None
                if torn < _TORN_TRIES:
                    continue
                log.error(
                    f"a checkpoint is given up: {error}",
                    extra=task.about(size=saved.size, step=saved.step),
                )
                remove_up_to(folder, saved)
                torn = 0
            except (HoldfastError, OSError) as error:
                if not task.live:
                    return  # it was told without; the attempt is over
                self._note_failure(task, error)
                await asyncio.sleep(pause * random.uniform(0.75, 1.25))
                pause = min(2 * pause, longest)
            else:
                self._said.discard(task.key)
                log.info(
                    f"checkpoint {number} is on record",
                    extra=task.about(size=saved.size, step=saved.step),
                )
                remove_up_to(folder, saved)
                pause, torn = _AGAIN_SECONDS[0], 0
            finally:
                saved.close()

    def _note_failure(self, task: AgentTask, error: Exception) -> None:
        if task.key not in self._said:
            self._said.add(task.key)
            log.warning(f"a checkpoint waits on disk: {error}", extra=task.about())

    def _end_upload(self, task: AgentTask, work: asyncio.Task[None]) -> None:
        self._uploads.pop(task.key, None)
        self._wires.pop(task.key, None)
        self._said.discard(task.key)
        if not work.cancelled() and work.exception() is not None:
            log.error(
                "checkpoints cannot be uploaded", exc_info=work.exception(), extra=task.about()
            )
        elif task.live and not work.cancelled() and find_saved(task.folder / OUT_FOLDER):
            self.poke(task)  # it came after the last look
            return
        self.let_go(task.key)

    def settle(self, task: AgentTask, then: Callable[[], None]) -> None:
        """Its processes are gone: call `then` once, when what it saved is uploaded, or late
        (SAVE-1)."""
        if task.over:
            return  # an end is repeated until it is acknowledged
        folder = task.folder / OUT_FOLDER
        with contextlib.suppress(OSError):
            folder.rmdir()  # most tasks save nothing
        if not find_saved(folder):
            then()
            return
        task.over = True
        self._held[task.key] = then
        bound = min(
            HOLD_SECONDS, task.order.ttl_seconds if task.order is not None else HOLD_SECONDS
        )
        asyncio.get_running_loop().call_later(bound, self._let_go_late, task, bound)
        self.poke(task)

    def _let_go_late(self, task: AgentTask, seconds: float) -> None:
        if task.key in self._held:
            log.error(
                f"its last checkpoint was not taken within {seconds:g} s of its end; the next "
                "attempt starts from the one before",
                extra=task.about(),
            )
            self.let_go(task.key)

    def let_go(self, key: TaskKey) -> None:
        """Tell a held end now."""
        then = self._held.pop(key, None)
        if then is not None:
            then()
            wire = self._wires.get(key)
            if wire is not None:
                wire.stop()

    def let_go_all(self) -> None:
        """Tell every held end now: this host goes, or was replaced."""
        for key in list(self._held):
            self.let_go(key)

    # ---- down

    def fetch(self, task: AgentTask, then: Callable[[str | None], None]) -> None:
        """Fetch what the task starts from into its folder; then call `then` with None, or with why
        it could not be had."""
        wire = Wire()
        work = asyncio.create_task(self._fetch(task, wire, then))
        self._fetches[task.key] = _Fetch(work, wire)

    def stop_fetch(self, key: TaskKey) -> bool:
        """The task is not to start. True when it was being fetched for; `then` is not called any
        more."""
        fetch = self._fetches.pop(key, None)
        if fetch is None:
            return False
        fetch.work.cancel()
        fetch.wire.stop()
        return True

    async def _fetch(self, task: AgentTask, wire: Wire, then: Callable[[str | None], None]) -> None:
        error: str | None
        try:
            error = await self._fetch_patiently(task, wire)
        except Exception as caught:
            log.exception("a checkpoint cannot be fetched", extra=task.about())
            error = repr(caught)
        self._fetches.pop(task.key, None)
        then(error)

    async def _fetch_patiently(self, task: AgentTask, wire: Wire) -> str | None:
        offer = task.order.checkpoint if task.order is not None else None
        if offer is None:
            return None
        path = in_path(task)
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + FETCH_SECONDS
        pause, longest = _AGAIN_SECONDS
        wrong = 0
        while True:
            try:
                path.parent.mkdir(mode=0o700, exist_ok=True)
                async with self._slots:
                    await run_aside(partial(self._transfers.download, task.key, offer, path, wire))
                log.info(
                    f"checkpoint {offer.number} is here",
                    extra=task.about(size=offer.size, step=offer.step),
                )
                return None
            except (OSError, HoldfastError) as error:
                wrong += isinstance(error, ValidationError)
                gone = isinstance(error, HoldfastError) and error.code in _LOST_CODES
                if gone or wrong >= _TORN_TRIES:
                    older = await self._find_older(task, offer, error, wire)
                    if older is not None and task.order is not None:
                        offer, wrong, give_up_at = older, 0, loop.time() + FETCH_SECONDS
                        task.order = msgspec.structs.replace(task.order, checkpoint=older)
                        continue
                final = (
                    isinstance(error, Conflict | NotFound | Forbidden)
                    or gone
                    or wrong >= _TORN_TRIES
                )
                if final or loop.time() > give_up_at:
                    return (
                        f"number {offer.number} of rank {task.key.rank}: {error}. Delete it "
                        "(`holdfast checkpoints rm`) to start "
                        "from the one before, or retry with --from-scratch"
                    )
                self._note_failure(task, error)
                await asyncio.sleep(pause * random.uniform(0.75, 1.25))
                pause = min(2 * pause, longest)

    async def _find_older(
        self, task: AgentTask, offer: CheckpointOffer, error: Exception, wire: Wire
    ) -> CheckpointOffer | None:
        """The one before, None where none is kept or the controller cannot say."""
        try:
            older = await run_aside(
                partial(self._transfers.skip, task.key, offer.number, str(error), wire)
            )
        except HoldfastError as refused:
            log.warning(
                f"there is no older checkpoint to go back to: {refused}", extra=task.about()
            )
            return None
        log.error(
            f"checkpoint {offer.number} cannot be used, it starts from number {older.number}: "
            f"{error}",
            extra=task.about(step=older.step),
        )
        return older

    async def close(self) -> None:
        """End all transfers; what was not uploaded stays on disk for the next agent."""
        works = [*self._uploads.values(), *(fetch.work for fetch in self._fetches.values())]
        for wire in [*self._wires.values(), *(fetch.wire for fetch in self._fetches.values())]:
            wire.stop()
        self._held.clear()
        for work in works:
            work.cancel()
        await asyncio.gather(*works, return_exceptions=True)


def out_path(task: AgentTask) -> Path:
    """The folder that the task saves into."""
    return task.folder / OUT_FOLDER


def in_path(task: AgentTask) -> Path:
    """The file that the task starts from."""
    return task.folder / IN_FOLDER / IN_FILE
