"""Transfers of checkpoints without an agent: what a controller that is away costs."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.agent.tasks.table import TaskTable
from holdfast.agent.tasks.task import AgentTask
from holdfast.agent.uplink.checkpoints import OUT_FOLDER, CheckpointTransfers
from holdfast.agent.uplink.transfers import SavedCheckpoint, Transfers, Wire
from holdfast.core.ids import TaskKey
from holdfast.core.states import AgentTaskEvent
from holdfast.errors import TooLarge, Unavailable, ValidationError
from holdfast.http.addresses import read_addresses
from holdfast.http.blocking import BlockingHttp
from tests.waits import within

SIZE = 8 << 20


def bytes_read() -> int:
    """What this process has read from files, ever."""
    words = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(words["rchar"])


class Away(Transfers):
    """Calls to a port without a listener, counted."""

    def __init__(self, *, torn: bool = False) -> None:
        super().__init__(
            BlockingHttp(read_addresses("http://127.0.0.1:9")), incarnation="i" * 8, token=str
        )
        self.torn = torn
        self.tries: list[str] = []

    def upload(self, key: TaskKey, saved: SavedCheckpoint, sha256: str, wire: Wire) -> int:
        self.tries.append(sha256)
        if self.torn:
            raise ValidationError("the bytes changed on their way", code="checksum_mismatch")
        return super().upload(key, saved, sha256, wire)


async def make_tries(transfers: Away, folder: Path, tries: int) -> int:
    """How much was read for that many tries to send a checkpoint."""
    table = TaskTable(folder)
    table.open()
    task = AgentTask(TaskKey("job", 0, 1), folder / "tasks" / "job.0.1", None, 0.0)
    task.move(AgentTaskEvent.LAUNCH)
    (task.folder / OUT_FOLDER).mkdir(parents=True)
    (task.folder / OUT_FOLDER / "checkpoint.5").write_bytes(bytes(SIZE))
    sender = CheckpointTransfers(table, transfers)
    before = bytes_read()
    sender.poke(task)
    async with within(60):
        while len(transfers.tries) < tries:
            await asyncio.sleep(0.01)
    await sender.close()
    return bytes_read() - before


async def test_a_checkpoint_is_read_once_while_the_controller_is_away(tmp_path: Path) -> None:
    """A large one would keep a core and the disk busy beside the work, for as long as that
    lasts."""
    transfers = Away()
    read = await make_tries(transfers, tmp_path, 4)
    assert len(set(transfers.tries)) == 1
    assert SIZE <= read < 2 * SIZE


async def test_one_that_was_refused_for_its_bytes_is_read_again(tmp_path: Path) -> None:
    read = await make_tries(Away(torn=True), tmp_path, 3)
    assert read >= 3 * SIZE


class Refusing(Away):
    """Refuses what it is sent, with these errors in their order, and then takes it."""

    def __init__(self, *errors: Exception) -> None:
        super().__init__()
        self.errors = list(errors)

    def upload(self, key: TaskKey, saved: SavedCheckpoint, sha256: str, wire: Wire) -> int:
        self.tries.append(sha256)
        if self.errors:
            raise self.errors.pop(0)
        return 1


@pytest.fixture
def logged() -> Iterator[tuple[int, int]]:
    """A process whose standard error is a pipe: its pid, and the reading end."""
    reading, writing = os.pipe()
    with subprocess.Popen(["sleep", "600"], stderr=writing) as process:
        os.close(writing)
        yield process.pid, reading
        process.kill()
    os.close(reading)


async def tell_refusals(
    folder: Path, logged: tuple[int, int], *errors: Exception
) -> tuple[str, list[str]]:
    """Return what the log of a task says of a checkpoint that is refused, and what its end will."""
    table = TaskTable(folder)
    table.open()
    task = AgentTask(TaskKey("job", 0, 1), folder / "tasks" / "job.0.1", None, 0.0)
    task.move(AgentTaskEvent.LAUNCH)
    (task.folder / OUT_FOLDER).mkdir(parents=True)
    (task.folder / OUT_FOLDER / "checkpoint.5").write_bytes(b"1234")
    transfers = Refusing(*errors)
    sender = CheckpointTransfers(table, transfers)
    task.pid = logged[0]
    sender.poke(task)
    async with within(60):
        while transfers.errors or sender._uploads:
            await asyncio.sleep(0.01)
    await sender.close()
    return os.read(logged[1], 65_536).decode(), task.saved.notices


async def test_a_checkpoint_that_is_refused_is_told_in_the_log_and_at_the_end(
    tmp_path: Path, logged: tuple[int, int]
) -> None:
    told, notices = await tell_refusals(tmp_path, logged, TooLarge("it is too large"))
    lost = "its checkpoint of step 5 (4 bytes) was not taken, and is lost: it is too large"
    assert (told, notices) == (f"holdfast: {lost}\n", [lost])


async def test_a_checkpoint_that_waits_is_told_in_the_log_once_and_when_it_is_taken(
    tmp_path: Path, logged: tuple[int, int]
) -> None:
    full = Unavailable("No space left on device")
    told, notices = await tell_refusals(tmp_path, logged, full, full)
    assert told.splitlines() == [
        "holdfast: its checkpoint of step 5 (4 bytes) waits on its host's disk: No space left on device",
        "holdfast: the checkpoint that waited on this host's disk is on record",
    ]
    assert notices == []
