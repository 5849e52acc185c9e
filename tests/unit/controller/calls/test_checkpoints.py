"""Checkpoints of calls over the wire: an agent's carrier against the controller, and what is deleted
when."""

import asyncio
import hashlib
from pathlib import Path

import pytest

from holdfast.agent.calls.blobs import BlobCarrier
from holdfast.client import AsyncClient
from holdfast.controller.loops.checkpoints import CheckpointsLoop
from holdfast.core.calls.values import FunctionSpec
from holdfast.core.retry import RetryFields
from holdfast.errors import Conflict, TooLarge, ValidationError
from holdfast.http.addresses import read_addresses
from holdfast.http.blocking import BlockingHttp
from holdfast.wire.calls import Batch, CallSave
from tests.unit.controller.calls.test_calls_routes import (
    FakeExecutor,
    agent,
    args,
    client,
    raised,
    results,
    start,
)
from tests.unit.controller.conftest import FakeAgent, Served

__all__ = ["agent", "client"]
SPEC = FunctionSpec(function="mytasks:double", retry=RetryFields(max_retries=1, retry_delay=0))


class Carrier:
    """A host's carrier, and the folder that it shares with an executor."""

    def __init__(self, executor: FakeExecutor, folder: Path) -> None:
        self.key, self.folder = executor.key, folder
        url, key = executor.agent.served.url, executor.agent.key
        self._carrier = BlobCarrier(
            BlockingHttp(read_addresses(url)), folder=folder, token=lambda: key
        )

    async def save(self, batch: Batch, position: int, data: bytes, sha: str = "") -> None:
        save = CallSave(batch.id, position, sha or hashlib.sha256(data).hexdigest())
        (self.folder / save.file_name).write_bytes(data)
        assert await asyncio.to_thread(self._carrier.move_checkpoint, self.key, save)

    async def load(self, batch: Batch, position: int) -> bytes | None:
        save = CallSave(batch.id, position)
        if not await asyncio.to_thread(self._carrier.move_checkpoint, self.key, save):
            return None
        return (self.folder / save.file_name).read_bytes()


async def test_the_next_attempt_loads_what_was_saved_last(
    client: AsyncClient, agent: FakeAgent, served: Served, tmp_path: Path
) -> None:
    await client.submit_calls(SPEC, args(1, 2))
    executor = await start(agent)
    carrier, batch = Carrier(executor, tmp_path), await executor.take()
    assert await carrier.load(batch, 0) is None
    for data in (b"a quarter", b"half", bytes(3 << 20)):
        await carrier.save(batch, 0, data)
    assert await carrier.load(batch, 0) == bytes(3 << 20)
    assert await carrier.load(batch, 1) is None
    await carrier.save(batch, 0, b"most")
    again = await executor.take(ends=[raised(batch)], held=[batch.id], want=1)
    assert (again.calls[0].index, again.calls[0].attempt) == (0, 2)
    assert await carrier.load(again, 0) == b"most"
    with pytest.raises(Conflict, match="does not hold call 0 of batch"):
        await carrier.save(batch, 0, b"late")
    assert await carrier.load(again, 0) == b"most"


async def test_bytes_that_are_not_as_announced_or_too_many_are_refused(
    client: AsyncClient, agent: FakeAgent, served: Served, tmp_path: Path
) -> None:
    await client.submit_calls(SPEC, args(1))
    executor = await start(agent)
    carrier, batch = Carrier(executor, tmp_path), await executor.take()
    with pytest.raises(ValidationError, match="SHA-256"):
        await carrier.save(batch, 0, b"torn", sha="0" * 64)
    await served.call("PATCH", "/v1/config", json={"set": {"checkpoint_max_mb": 1}})
    with pytest.raises(TooLarge, match="checkpoint_max_mb"):
        await carrier.save(batch, 0, bytes(2 << 20))
    assert await carrier.load(batch, 0) is None


async def test_a_checkpoint_goes_with_the_success_of_its_call(
    client: AsyncClient, agent: FakeAgent, served: Served, tmp_path: Path
) -> None:
    made = await client.submit_calls(SPEC, args(1))
    executor = await start(agent)
    carrier, batch = Carrier(executor, tmp_path), await executor.take()
    await carrier.save(batch, 0, b"first")
    await carrier.save(batch, 0, b"second")
    loop = CheckpointsLoop(served.controller, orphan_seconds=-1.0)
    await loop.run_once()
    [name] = [info.name async for info in served.controller.blobs.list()]
    assert name.startswith(f"calls/{made.id}/0.")
    assert await carrier.load(batch, 0) == b"second"
    await executor.say(ends=[results(batch)])
    await CheckpointsLoop(
        served.controller
    ).run_once()  # or the server's own, which hears of the end
    assert [info.name async for info in served.controller.blobs.list()] == []


async def test_a_checkpoint_whose_bytes_are_lost_is_none(
    client: AsyncClient, agent: FakeAgent, served: Served, tmp_path: Path
) -> None:
    await client.submit_calls(SPEC, args(1))
    executor = await start(agent)
    carrier, batch = Carrier(executor, tmp_path), await executor.take()
    await carrier.save(batch, 0, b"half")
    await served.controller.blobs.delete(
        [info.name async for info in served.controller.blobs.list()]
    )
    assert await carrier.load(batch, 0) is None
