"""Upload checkpoints in the background, and download them before a start.

SAVE-1  A task's end is reported after its checkpoints are uploaded, so that the next attempt starts
        from them; but never later than `HOLD_SECONDS`, or the length of its lease, after the end,
        because a controller that hangs must not delay a job for ever.
SAVE-2  A file stays in the task's folder until the controller has stored it or has refused it for
        good, so that the agent that follows a killed one finds it there.
SAVE-3  A task that has a checkpoint never starts without one. A checkpoint that cannot be fetched
        makes a failed start, with the reason.
SAVE-4  If the bytes of a checkpoint are gone, or differ from the record in number or content, the
        task starts from the next older checkpoint, and the controller records that. If the bytes
        only cannot be reached now, the agent tries again and does not go back.
"""

import asyncio
import logging
import random
from functools import partial
from pathlib import Path

import msgspec

from holdfast.agent.folders import OUT_FOLDER
from holdfast.agent.offload import run_aside
from holdfast.agent.tasks.table import TaskTable
from holdfast.agent.tasks.task import AgentTask
from holdfast.agent.uplink.transfers import (
    SavedCheckpoint,
    Transfers,
    Wire,
    find_saved,
    hash_file,
    open_newest,
    remove_up_to,
)
from holdfast.core.ids import TaskKey
from holdfast.core.states import AgentTaskEvent
from holdfast.errors import Conflict, Forbidden, HoldfastError, NotFound, TooLarge, ValidationError
from holdfast.wire.agent import CheckpointOffer

log = logging.getLogger("holdfast.agent.uplink.checkpoints")

INPUT_FILE = "stdin"
IN_FOLDER, IN_FILE = "checkpoint-in", "checkpoint"
HOLD_SECONDS = 30.0
FETCH_SECONDS = 60.0
POLL_SECONDS = 5.0
_AT_ONCE = 4
_AGAIN_SECONDS = (0.2, 5.0)
_TORN_TRIES = 3
_LOST_CODES = ("blob_missing", "blob_spoilt")  # errors that another try would meet again


class CheckpointTransfers:
    """Makes all transfers of this agent. Threads wait for the disk and the network."""

    def __init__(self, table: TaskTable, transfers: Transfers) -> None:
        self._table = table
        self._transfers = transfers
        self._slots = asyncio.Semaphore(_AT_ONCE)
        self._uploads: dict[TaskKey, asyncio.Task[None]] = {}
        self._wires: dict[TaskKey, Wire] = {}
        self._held: dict[TaskKey, asyncio.Event] = {}
        self._said: dict[TaskKey, str] = {}  # the last failure of each upload that waits

    @property
    def holding(self) -> bool:
        """Return True if the report of an end waits for an upload."""
        return bool(self._held)

    # ---- up

    def poke(self, task: AgentTask) -> None:
        """Begin to upload the checkpoints of a task, if there are any."""
        if task.key not in self._uploads and find_saved(out_path(task)):
            work = asyncio.create_task(self._upload_all(task))
            self._uploads[task.key] = work
            work.add_done_callback(partial(self._end_upload, task))

    async def run(self) -> None:
        """Look for ever for checkpoints that no message of their task announced."""
        while True:
            await asyncio.sleep(POLL_SECONDS)
            for task in self._table:
                if task.began and task.live:
                    self.poke(task)

    async def _upload_all(self, task: AgentTask) -> None:
        folder = out_path(task)
        pause, longest = _AGAIN_SECONDS
        known: tuple[Path, int, int] | None = None
        torn, sha256 = 0, ""
        while (saved := open_newest(folder)) is not None:
            extra = task.about(size=saved.size, step=saved.step)
            try:
                async with self._slots:
                    wire = self._wires[task.key] = Wire()
                    if saved.identity != known:  # hashed once, not at every try: it costs a core
                        sha256 = await run_aside(partial(hash_file, saved.fd, saved.size))
                        known = saved.identity
                    upload = partial(self._transfers.upload, task.key, saved, sha256, wire)
                    number = await run_aside(upload)
            except (Conflict, NotFound, Forbidden, TooLarge) as error:
                log.error(f"a checkpoint is not taken: {error}", extra=extra)
                if isinstance(error, TooLarge):  # after the other errors the attempt is over
                    task.add_notice(f"{_name(saved)} was not taken, and is lost: {error}")
                remove_up_to(folder, saved)
            except ValidationError as error:
                torn, known = torn + 1, None
                if torn >= _TORN_TRIES:
                    log.error(f"a checkpoint is given up: {error}", extra=extra)
                    task.add_notice(f"{_name(saved)} was not taken, and is lost: {error}")
                    remove_up_to(folder, saved)
                    torn = 0
            except (HoldfastError, OSError) as error:
                if not task.live:
                    return  # its end was reported without this checkpoint
                self._note_failure(task, f"{_name(saved)} waits on its host's disk: {error}")
                await asyncio.sleep(pause * random.uniform(0.75, 1.25))
                pause = min(2 * pause, longest)
            else:
                if self._said.pop(task.key, None) is not None:
                    task.write_line("the checkpoint that waited on this host's disk is on record")
                log.info(f"checkpoint {number} is on record", extra=extra)
                remove_up_to(folder, saved)
                pause, torn = _AGAIN_SECONDS[0], 0
            finally:
                saved.close()

    def _note_failure(self, task: AgentTask, sentence: str) -> None:
        if task.key not in self._said:
            log.warning(sentence, extra=task.about())
            task.write_line(sentence)
        self._said[task.key] = sentence

    def _end_upload(self, task: AgentTask, work: asyncio.Task[None]) -> None:
        self._uploads.pop(task.key, None)
        self._wires.pop(task.key, None)
        error = None if work.cancelled() else work.exception()
        if error is not None:
            log.error("checkpoints cannot be uploaded", exc_info=error, extra=task.about())
        elif task.live and not work.cancelled() and find_saved(out_path(task)):
            self.poke(task)  # a checkpoint came after the last look
            return
        self._said.pop(task.key, None)
        self.let_go(task.key)

    async def upload_last(self, task: AgentTask) -> None:
        """Wait until the checkpoints of a task that ended are uploaded, or until the longest
        wait is over (SAVE-1). The task is in state `saving` meanwhile."""
        if not find_saved(out_path(task)):
            return
        task.move(AgentTaskEvent.SAVE)
        bound = min(HOLD_SECONDS, task.order.ttl_seconds if task.order else HOLD_SECONDS)
        over = self._held[task.key] = asyncio.Event()
        self.poke(task)
        try:
            async with asyncio.timeout(bound):
                await over.wait()
        except TimeoutError:
            lost = f"its last checkpoint was not taken within {bound:g} s of its end"
            log.error(f"{lost}; the next attempt starts from the one before", extra=task.about())
            why = self._said.get(task.key, "its controller was not reached, or was slow")
            task.add_notice(f"{lost}, and is lost: {why}")
        finally:
            del self._held[task.key]
            wire = self._wires.get(task.key)
            if wire is not None:
                wire.stop()

    def let_go(self, key: TaskKey) -> None:
        """Have the end of a task, which waits for its upload, reported now."""
        over = self._held.get(key)
        if over is not None:
            over.set()

    def let_go_all(self) -> None:
        """Have every end that waits for an upload reported now, because this host leaves or was
        replaced."""
        for key in self._held:
            self.let_go(key)

    # ---- down

    async def fetch_input(self, task: AgentTask) -> str | None:
        """Fetch the file that a task reads as its standard input. Return None once it is here,
        or if the task has none; otherwise a sentence on why it cannot be fetched."""
        sha256 = task.order.stdin if task.order is not None else ""
        if not sha256:
            return None
        wire, loop = Wire(), asyncio.get_running_loop()
        fetch = partial(self._transfers.fetch_value, sha256, Path(input_path(task)), wire)
        give_up_at, pause = loop.time() + FETCH_SECONDS, _AGAIN_SECONDS[0]
        try:
            while True:
                try:
                    async with self._slots:
                        await run_aside(fetch)
                    return None
                except (OSError, HoldfastError) as error:
                    final = isinstance(error, NotFound | Forbidden | ValidationError | TooLarge)
                    if final or loop.time() > give_up_at:
                        return f"its standard input cannot be had: {error}"
                await asyncio.sleep(pause * random.uniform(0.75, 1.25))
                pause = min(2 * pause, _AGAIN_SECONDS[1])
        finally:
            wire.stop()

    async def fetch(self, task: AgentTask) -> str | None:
        """Fetch the checkpoint that a task starts from. Return None once it is here; otherwise a
        sentence on why it cannot be fetched. Cancelling the call breaks the transfer off."""
        wire = Wire()
        try:
            return await self._fetch_patiently(task, wire)
        except Exception as error:
            log.exception("a checkpoint cannot be fetched", extra=task.about())
            return repr(error)
        finally:
            wire.stop()

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
                extra = task.about(size=offer.size, step=offer.step)
                log.info(f"checkpoint {offer.number} is here", extra=extra)
                return None
            except (OSError, HoldfastError) as error:
                # Wrong bytes may come of one bad transfer; after three the checkpoint is bad.
                wrong += isinstance(error, ValidationError)
                gone = isinstance(error, HoldfastError) and error.code in _LOST_CODES
                if gone or wrong >= _TORN_TRIES:
                    older = await self._find_older(task, offer, error, wire)
                    if older is not None and task.order is not None:
                        offer, wrong, give_up_at = older, 0, loop.time() + FETCH_SECONDS
                        task.order = msgspec.structs.replace(task.order, checkpoint=older)
                        continue
                final = gone or wrong >= _TORN_TRIES
                final = final or isinstance(error, Conflict | NotFound | Forbidden)
                if final or loop.time() > give_up_at:
                    return (
                        f"number {offer.number} of rank {task.key.rank}: {error}. Delete it "
                        "(`holdfast checkpoints delete`) to start from the one before, or retry with "
                        "--from-scratch"
                    )
                self._note_failure(task, f"a checkpoint cannot be fetched: {error}")
                await asyncio.sleep(pause * random.uniform(0.75, 1.25))
                pause = min(2 * pause, longest)

    async def _find_older(
        self, task: AgentTask, offer: CheckpointOffer, error: Exception, wire: Wire
    ) -> CheckpointOffer | None:
        """Return the checkpoint before the given checkpoint; None if none is kept or the controller
        does not answer."""
        skip = partial(self._transfers.skip, task.key, offer.number, str(error), wire)
        try:
            older = await run_aside(skip)
        except HoldfastError as refused:
            extra = task.about()
            log.warning(f"there is no older checkpoint to go back to: {refused}", extra=extra)
            return None
        log.error(
            f"checkpoint {offer.number} cannot be used, it starts from number {older.number}: "
            f"{error}",
            extra=task.about(step=older.step),
        )
        return older

    async def close(self) -> None:
        """Cancel all uploads. Files that are not uploaded stay on disk for the next agent."""
        works = list(self._uploads.values())
        for wire in self._wires.values():
            wire.stop()
        for work in works:
            work.cancel()
        await asyncio.gather(*works, return_exceptions=True)


def _name(saved: SavedCheckpoint) -> str:
    step = "" if saved.step is None else f" of step {saved.step}"
    return f"its checkpoint{step} ({saved.size:,} bytes)".replace(",", " ")


def out_path(task: AgentTask) -> Path:
    """Return the folder into which the task saves checkpoints."""
    return task.folder / OUT_FOLDER


def input_path(task: AgentTask) -> str:
    """Return the path of the file that the task reads as its standard input."""
    return f"{task.folder}/{INPUT_FILE}"


def in_path(task: AgentTask) -> Path:
    """Return the path of the checkpoint from which the task starts."""
    return task.folder / IN_FOLDER / IN_FILE
