"""Readings of GPUs and of tasks in PostgreSQL."""

from collections.abc import Sequence
from datetime import datetime, timedelta

import msgspec

from holdfast.core.readings.points import Step
from holdfast.core.readings.records import GpuPoint, HostTelemetryRecord, RankPoint
from holdfast.moves.fleet.readings import HostReading
from holdfast.store.clock import Now
from holdfast.store.postgres.connection.parts import OnSession, reads, transacts
from holdfast.store.postgres.connection.session import Tx, to_json


def date_reading(reading: HostReading, at: datetime) -> datetime:
    """Return when a reading was made, by the store's clock."""
    age = min((gpu.age_seconds for gpu in reading.gpus), default=0.0)
    return at - timedelta(seconds=reading.held_seconds + age)


MINUTES_DAYS = 1.0
HOURS_DAYS = 90.0


class PostgresTelemetry(OnSession):
    """The readings of hosts' GPUs, and of the tasks on them."""

    @transacts
    async def write_readings(
        self, tx: Tx, readings: Sequence[HostReading], *, now: Now = None
    ) -> None:
        """Write each host's newest reading, and add it to the summaries of the host's minutes
        and hours. A repeated reading of GPUs (of the same moment) is added once. Readings of unknown
        hosts are left out, and so are those of tasks that are not on their host under that epoch."""
        at = await tx.now(now)
        await _write_ranks(tx, readings, at)
        dated = {r.host_id: (date_reading(r, at), r.gpus) for r in readings if r.gpus}
        if not dated:
            return
        new = await tx.rows(
            "write_latest",
            hosts=list(dated),
            ats=[when for when, _ in dated.values()],
            gpus=[to_json(gpus) for _, gpus in dated.values()],
        )
        points = [(row["host_id"], *dated[row["host_id"]]) for row in new]
        flat = [(host_id, when, gpu) for host_id, when, gpus in points for gpu in gpus]
        if flat:
            await tx.run(
                "write_points",
                hosts=[host_id for host_id, _, _ in flat],
                ats=[when for _, when, _ in flat],
                devices=[gpu.index for _, _, gpu in flat],
                utilisations=[gpu.utilisation_percent for _, _, gpu in flat],
                used=[gpu.memory_used_bytes for _, _, gpu in flat],
                total=[gpu.memory_total_bytes for _, _, gpu in flat],
                temperatures=[gpu.temperature_celsius for _, _, gpu in flat],
            )

    @reads
    async def read_latest(self, tx: Tx, host_id: str) -> HostTelemetryRecord | None:
        """Return a host's newest reading; None for a host without readings."""
        row = await tx.one("read_latest", host_id=host_id)
        return None if row is None else msgspec.convert(row, HostTelemetryRecord)

    @reads
    async def read_history(
        self, tx: Tx, host_id: str, step: Step, seconds: float, *, now: Now = None
    ) -> list[GpuPoint]:
        """Return the minutes or hours of a host's GPUs of the last `seconds`, oldest first."""
        since = await tx.now(now) - timedelta(seconds=seconds)
        return await tx.list_of(GpuPoint, "read_points", host_id=host_id, step=step, since=since)

    @reads
    async def read_ranks(
        self,
        tx: Tx,
        job_id: str,
        step: Step,
        seconds: float,
        *,
        ranks: Sequence[int],
        attempt: int | None = None,
        point_seconds: int,
        now: Now = None,
    ) -> list[RankPoint]:
        """Return the last `seconds` of these ranks, oldest first, summed up to points of
        `point_seconds`. attempt: only this one."""
        return await tx.list_of(
            RankPoint,
            "read_rank_points",
            job_id=job_id,
            step=step,
            ranks=list(ranks),
            attempt=attempt,
            point_seconds=point_seconds,
            since=await tx.now(now) - timedelta(seconds=seconds),
        )

    @transacts
    async def prune_telemetry(self, tx: Tx, *, now: Now = None) -> int:
        """Delete the minutes of readings older than a day and the hours older than 90 days; return
        how many rows."""
        at = await tx.now(now)
        hours = at - timedelta(days=HOURS_DAYS)
        minutes = at - timedelta(days=MINUTES_DAYS)
        deleted = await tx.run("prune_points", minutes=minutes, hours=hours)
        deleted += await tx.run("prune_rank_points", minutes=minutes, hours=hours)
        await tx.run("prune_latest", hours=hours)
        return deleted


async def _write_ranks(tx: Tx, readings: Sequence[HostReading], at: datetime) -> None:
    flat = [
        (reading.host_id, at - timedelta(seconds=reading.held_seconds), usage)
        for reading in readings
        for usage in reading.ranks
    ]
    if flat:
        await tx.run(
            "write_rank_points",
            hosts=[host_id for host_id, _, _ in flat],
            ats=[when for _, when, _ in flat],
            jobs=[usage.key.job_id for _, _, usage in flat],
            ranks=[usage.key.rank for _, _, usage in flat],
            epochs=[usage.key.epoch for _, _, usage in flat],
            cores=[usage.cores for _, _, usage in flat],
            peaks=[max(usage.cores, usage.cores_max) for _, _, usage in flat],
            memory=[usage.memory_bytes for _, _, usage in flat],
        )
