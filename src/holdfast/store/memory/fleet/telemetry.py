"""Readings of GPUs in memory."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from holdfast.core.gpus import GpuTelemetry
from holdfast.core.records import GpuPoint, HostTelemetryRecord
from holdfast.moves.fleet.readings import HostReading
from holdfast.store.memory.state import MemoryState
from holdfast.store.port.clock import Now
from holdfast.store.port.fleet.telemetry import HOURS_DAYS, MINUTES_DAYS, Step


class MemoryTelemetry:
    """`TelemetryStore` in memory: every reading is kept, and summed up when it is asked for."""

    def __init__(self, state: MemoryState) -> None:
        self.state = state
        self._points: list[tuple[str, datetime, GpuTelemetry]] = []

    async def write_readings(self, readings: Sequence[HostReading], *, now: Now = None) -> None:
        at = now or self.state.clock()
        for reading in readings:
            age = min((gpu.age_seconds for gpu in reading.gpus), default=0.0)
            when = at - timedelta(seconds=reading.held_seconds + age)
            last = self.state.telemetry.get(reading.host_id)
            if reading.host_id not in self.state.hosts:
                continue
            if last is not None and when <= last.at + timedelta(seconds=1):
                continue
            self.state.telemetry[reading.host_id] = HostTelemetryRecord(
                host_id=reading.host_id, at=when, gpus=reading.gpus
            )
            self._points += [(reading.host_id, when, gpu) for gpu in reading.gpus]

    async def read_latest(self, host_id: str) -> HostTelemetryRecord | None:
        return self.state.telemetry.get(host_id)

    async def read_history(
        self, host_id: str, step: Step, seconds: float, *, now: Now = None
    ) -> list[GpuPoint]:
        since = (now or self.state.clock()) - timedelta(seconds=seconds)
        found: dict[tuple[datetime, int], list[GpuTelemetry]] = {}
        for of, when, gpu in self._points:
            minute = when.minute if step == "minute" else 0
            start = when.replace(minute=minute, second=0, microsecond=0)
            if of == host_id and start > since:
                found.setdefault((start, gpu.index), []).append(gpu)
        return [_sum_up(start, index, gpus) for (start, index), gpus in sorted(found.items())]

    async def prune_telemetry(self, *, now: Now = None) -> int:
        at = now or self.state.clock()
        minutes, hours = at - timedelta(days=MINUTES_DAYS), at - timedelta(days=HOURS_DAYS)
        before = len(self._points)
        self._points = [point for point in self._points if point[1] >= min(minutes, hours)]
        return before - len(self._points)


def _sum_up(at: datetime, index: int, gpus: Sequence[GpuTelemetry]) -> GpuPoint:
    def highest(name: str) -> Any:
        return max((v for gpu in gpus if (v := getattr(gpu, name)) is not None), default=None)

    percents = [g.utilisation_percent for g in gpus if g.utilisation_percent is not None]
    return GpuPoint(
        gpu=index,
        at=at,
        samples=len(gpus),
        utilisation_percent=sum(percents) / len(percents) if percents else None,
        utilisation_max=highest("utilisation_percent"),
        memory_used_max_bytes=highest("memory_used_bytes"),
        memory_total_bytes=gpus[-1].memory_total_bytes,
        temperature_max_celsius=highest("temperature_celsius"),
    )
