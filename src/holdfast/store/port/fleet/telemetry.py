"""Readings of GPUs: the latest of each host, and a bounded history."""

from collections.abc import Sequence
from typing import Literal, Protocol

from holdfast.core.records import GpuPoint, HostTelemetryRecord
from holdfast.moves.fleet.readings import HostReading
from holdfast.store.port.clock import Now

MINUTES_DAYS = 1.0
HOURS_DAYS = 90.0
Step = Literal["minute", "hour"]


class TelemetryStore(Protocol):
    """The readings of hosts' GPUs."""

    async def write_readings(self, readings: Sequence[HostReading], *, now: Now = None) -> None:
        """Write each host's newest reading, and add it to the host's minutes and hours. A repeated
        reading (of the same moment) is added once. Unknown hosts are left out."""

    async def read_latest(self, host_id: str) -> HostTelemetryRecord | None:
        """Return a host's newest reading; None without any."""

    async def read_history(
        self, host_id: str, step: Step, seconds: float, *, now: Now = None
    ) -> list[GpuPoint]:
        """Return the minutes or hours of a host's GPUs of the last `seconds`, oldest first."""

    async def prune_telemetry(self, *, now: Now = None) -> int:
        """Delete minutes older than a day and hours older than 90 days; return how many rows."""
