"""The devices of this host as they are now, for the controller's views: one reading a while."""

import asyncio
from collections.abc import Sequence

from holdfast.agent.probes import Probe
from holdfast.agent.probes.devices import Device, show_telemetry
from holdfast.core.gpus import GpuTelemetry
from holdfast.process.syscalls import read_boottime

INTERVAL_SECONDS = 15.0


class Telemetry:
    """Keeps the last reading. A driver that is late leaves the one before, which grows old."""

    def __init__(self, probe: Probe) -> None:
        self._probe = probe
        self._devices: Sequence[Device] = ()
        self._read_at = 0.0

    def show(self) -> list[GpuTelemetry]:
        """Return every device with the age of its reading."""
        return show_telemetry(self._devices, read_boottime() - self._read_at)

    async def run(self) -> None:
        """Read for ever; once where this host has no devices."""
        while True:
            devices = await self._probe.read_devices()
            if devices is not None:
                self._devices, self._read_at = devices, read_boottime()
                if not devices:
                    return
            await asyncio.sleep(INTERVAL_SECONDS)
