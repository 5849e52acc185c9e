"""The readings of a job's ranks: their GPUs as lines over time, and peaks of memory."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import msgspec
from markupsafe import Markup

from holdfast.core.readings.records import GpuPoint
from holdfast.core.records import AttemptRecord, JobRecord, TaskRecord
from holdfast.errors import HoldfastError
from holdfast.web.page import PageRequest
from holdfast.web.words import draw_line

SHOWN_HOSTS = 24
SHOWN_RANKS = 64
MAX_SECONDS = 24 * 3600


class RankReadings(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU of a rank, or a rank without any."""

    rank: int
    host: str
    gpu: int | None
    last: GpuPoint | None = None
    use: Markup = Markup("")
    memory: Markup = Markup("")
    peak_bytes: int = 0
    idle: bool = False


class _RankPlace(msgspec.Struct, frozen=True):
    rank: int
    host: str
    devices: tuple[int, ...]
    peak_bytes: int = 0


async def read_readings(
    ask: PageRequest,
    job: JobRecord,
    tasks: Sequence[TaskRecord],
    ended: AttemptRecord | None,
    span: tuple[datetime, datetime] | None,
) -> dict[str, object]:
    """Return the readings of the ranks that run, or the peaks of those of the last attempt."""
    places = [_RankPlace(t.rank, t.host_name or "", t.devices) for t in tasks if t.host_name]
    if not tasks and ended is not None:
        places = [
            _RankPlace(m.rank, m.host or "", (), m.facts.max_memory_bytes if m.facts else 0)
            for m in ended.members
        ]
    chosen = ask.query.get("rank", "")
    shown = [each for each in places if not chosen or str(each.rank) == chosen][:SHOWN_RANKS]
    begin, end = span or (job.started_at or job.created_at, ask.now)
    wanted = dict.fromkeys(each.host for each in shown if each.devices)
    points: dict[str, Sequence[GpuPoint]] = {}
    for host in list(wanted)[:SHOWN_HOSTS]:
        points[host] = await _read_host(ask, host, begin, end)
    rows = [row for each in shown for row in _draw(each, points.get(each.host, ()))]
    return {"readings": rows, "readings_more": len(places) - len(shown)}


async def _read_host(
    ask: PageRequest, host: str, begin: datetime, end: datetime
) -> Sequence[GpuPoint]:
    seconds = int(min(MAX_SECONDS, max(60.0, (ask.now - begin).total_seconds() + 60)))
    try:
        found = await ask.reader.host_telemetry(host, seconds=seconds)
    except HoldfastError:  # a host that is forgotten has no readings
        return ()
    return [point for point in found.points if begin <= point.at <= end]


def _draw(place: _RankPlace, points: Sequence[GpuPoint]) -> list[RankReadings]:
    if not place.devices:
        return [
            RankReadings(rank=place.rank, host=place.host, gpu=None, peak_bytes=place.peak_bytes)
        ]
    rows = []
    for gpu in place.devices:
        own = [point for point in points if point.gpu == gpu]
        total = own[-1].memory_total_bytes if own else 0
        rows.append(
            RankReadings(
                rank=place.rank,
                host=place.host,
                gpu=gpu,
                last=own[-1] if own else None,
                use=draw_line(
                    [p.utilisation_percent for p in own],
                    f"use of GPU {gpu} of rank {place.rank} in percent",
                    100.0,
                    width=240,
                ),
                memory=draw_line(
                    [p.memory_used_max_bytes for p in own],
                    f"memory of GPU {gpu} of rank {place.rank}",
                    float(total) or None,
                    width=240,
                ),
                peak_bytes=place.peak_bytes,
            )
        )
    return rows
