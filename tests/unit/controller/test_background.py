"""What runs beside the callers of a server, and is ended by nothing that it was fed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.controller.runtime import background
from holdfast.controller.runtime.background import keep_going
from holdfast.controller.runtime.outages import Outages
from holdfast.controller.runtime.telemetry import ReadingsWriter
from holdfast.core.gpus import GpuTelemetry
from holdfast.errors import Unavailable
from holdfast.moves.fleet.readings import HostReading
from tests.unit.controller.conftest import FakeAgent, Served
from tests.waits import within


class Picky:
    """A store of readings that cannot hold those of one host."""

    def __init__(self, refused: str) -> None:
        self.refused = refused
        self.kept: list[str] = []

    async def write_readings(self, readings: Sequence[HostReading]) -> None:
        if any(reading.host_id == self.refused for reading in readings):
            raise ArithmeticError("a date before all dates")
        self.kept += [reading.host_id for reading in readings]


def make_readings(store: Picky) -> ReadingsWriter:
    found: Any = SimpleNamespace(telemetry=store)
    return ReadingsWriter(found, lambda: 1.0, Outages(lambda: 1.0))


async def test_a_reading_that_cannot_be_written_holds_up_no_other(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = Picky("h2")
    readings = make_readings(store)
    for host in ("h1", "h2", "h3"):
        readings.keep_readings(host, [GpuTelemetry(index=0)])
    await readings.write()
    assert store.kept == ["h1", "h3"]
    assert "the reading of host h2 is left out" in caplog.text


async def test_a_part_that_fails_begins_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever it was: an error, an end, a cancel inside of it. A cancel of its task ends it."""
    monkeypatch.setattr(background, "AGAIN_SECONDS", 0.0)
    ways: list[BaseException | None] = [
        OverflowError("1e308"), None, asyncio.CancelledError(), Unavailable("away"), RecursionError()
    ]  # fmt: skip
    begun = asyncio.Event()

    async def begin() -> None:
        if not ways:
            begun.set()
            await asyncio.Event().wait()
        way = ways.pop(0)
        if way is not None:
            raise way

    task = asyncio.create_task(keep_going("the part", begin))
    async with within(5):
        await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    said = [r for r in caplog.records if r.levelno == logging.ERROR]
    assert len(said) == 5
    assert all("it begins again" in record.getMessage() for record in said)


async def test_odd_readings_of_gpus_are_left_out_and_the_server_lives(
    served: Served, agent: FakeAgent
) -> None:
    """Two of one index, what a driver says for unknown, an age before all dates; and the good one."""
    readings = served.controller.telemetry
    for odd in (
        [{"index": 0}, {"index": 0}],
        [{"index": 0, "memory_used_bytes": 1 << 63, "memory_total_bytes": (1 << 64) - 1}],
        [{"index": 0, "age_seconds": 1e308}],
        [{"index": 0, "age_seconds": -1}, {"index": "x"}, 7, None],
    ):
        body = {"incarnation": agent.incarnation, "seq": 1, "gpus": [*odd, {"index": 1}]}
        answer = await served.http.post(
            "/v1/agent/sync", json=body, headers={"Authorization": f"Bearer {agent.key}"}
        )
        assert answer.status_code == 200
        assert "gpus" in " ".join(answer.json()["unread"])
        await readings.write()
    latest = await served.store.telemetry.read_latest(agent.host_id)
    assert latest is not None
    assert [gpu.index for gpu in latest.gpus] == [0, 1]
    assert not any(task.done() for task in served.running.list_tasks())
