"""Read the devices of this host every `INTERVAL_SECONDS`, for the controller's views."""

import asyncio
from collections.abc import Collection, Sequence

from holdfast.agent.probes import Probe
from holdfast.agent.probes.devices import Device, show_telemetry
from holdfast.agent.watch.strain import HostStrain
from holdfast.core.gpus import GpuTelemetry
from holdfast.process.syscalls import read_boottime

INTERVAL_SECONDS = 15.0


class Telemetry:
    """Keeps the last reading. If the driver is late, the reading before stays, and its age
    grows."""

    def __init__(self, probe: Probe) -> None:
        self._probe = probe
        self._devices: Sequence[Device] = ()
        self._read_at = 0.0
        self._strain = HostStrain()

    @property
    def strain(self) -> str:
        """Return in words what may slow down this host's processes, "" for nothing."""
        return self._strain.sentence

    def show(self) -> list[GpuTelemetry]:
        """Return every device with the age of its reading."""
        return show_telemetry(self._devices, read_boottime() - self._read_at)

    def is_idle(self, gpus: Collection[int], percent: float) -> bool:
        """Return whether none of these devices did more than `percent` when they were last read. A
        device that could not be read is not idle (SIGNAL-1)."""
        used = [d.utilisation_percent for d in self._devices if d.index in gpus]
        fresh = read_boottime() - self._read_at < 3 * INTERVAL_SECONDS
        known = len(used) == len(gpus) > 0 and fresh
        return known and all(each is not None and each <= percent for each in used)

    async def run(self) -> None:
        """Read the devices and the strain of the host for ever; the devices only once if this host
        has none."""
        has_devices = True
        while True:
            devices = await self._probe.read_devices() if has_devices else None
            if devices is not None:
                self._devices, self._read_at = devices, read_boottime()
                has_devices = bool(devices)
            self._strain.look()
            await asyncio.sleep(INTERVAL_SECONDS)
