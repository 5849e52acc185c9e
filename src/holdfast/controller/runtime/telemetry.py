"""Readings of GPUs and tasks on their way to the store: the newest of each host, together every
`WRITE_SECONDS`.

The readings are not part of a sync's transaction, because a view of a device is not worth the delay
of a heartbeat: readings that a killed replica had not written yet are read again within seconds.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence

from holdfast.controller.runtime.outages import Outages
from holdfast.core.gpus import GpuTelemetry
from holdfast.core.readings.usage import RankUsage
from holdfast.errors import Unavailable
from holdfast.moves.fleet.readings import HostReading
from holdfast.store.postgres.store import PostgresStore

log = logging.getLogger("holdfast.controller")
WRITE_SECONDS = 10.0


class ReadingsWriter:
    """Collects the readings of syncs, and writes them."""

    def __init__(self, store: PostgresStore, clock: Callable[[], float], outages: Outages) -> None:
        self._store = store
        self._clock = clock
        self._outages = outages
        self._newest: dict[str, tuple[float, Sequence[GpuTelemetry]]] = {}
        self._ranks: dict[str, tuple[float, Sequence[RankUsage]]] = {}

    def keep_readings(
        self, host_id: str, gpus: Sequence[GpuTelemetry], ranks: Sequence[RankUsage] = ()
    ) -> None:
        """Keep a host's readings until they are written. A host reports the readings of its tasks
        only once."""
        if gpus:
            self._newest[host_id] = (self._clock(), gpus)
        if ranks:
            self._ranks[host_id] = (self._clock(), ranks)

    async def write(self) -> None:
        """Write the readings that came since the last write."""
        newest, self._newest = self._newest, {}
        ranks, self._ranks = self._ranks, {}
        now = self._clock()
        readings = [
            HostReading(host_id=host_id, gpus=tuple(gpus), held_seconds=now - at)
            for host_id, (at, gpus) in newest.items()
        ]
        readings += [
            HostReading(host_id=host_id, gpus=(), ranks=tuple(told), held_seconds=now - at)
            for host_id, (at, told) in ranks.items()
        ]
        if not readings:
            return
        try:
            await self._store.telemetry.write_readings(readings)
        except Unavailable:
            raise
        except Exception as error:
            if len(readings) > 1:
                log.warning("readings of %d hosts are written one by one: %r", len(readings), error)
            await self._write_apart(readings)

    async def _write_apart(self, readings: Sequence[HostReading]) -> None:
        """Write each host's readings by themselves, so that a reading that cannot be written delays
        no other host's."""
        for reading in readings:
            try:
                await self._store.telemetry.write_readings([reading])
            except Unavailable:
                raise
            except Exception:
                about = {"host": reading.host_id}
                log.exception(
                    "the reading of host %s is left out, because it cannot be written",
                    reading.host_id,
                    extra=about,
                )

    async def run(self) -> None:
        """Write hosts' readings to the store for ever. An outage leaves a gap in the history."""
        while True:
            await asyncio.sleep(WRITE_SECONDS)
            try:
                await self.write()
            except Unavailable as error:
                self._outages.note_failure(error)
