"""The readings of a job's ranks over time: processors, memory and GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import TypeVar

import msgspec
from markupsafe import Markup

from holdfast.core.readings.points import MAX_RANKS, Step
from holdfast.core.readings.records import GpuPoint, RankPoint
from holdfast.core.records import AttemptRecord, JobRecord, TaskRecord
from holdfast.core.words import say_bytes
from holdfast.errors import HoldfastError
from holdfast.web.page import PageRequest, together
from holdfast.web.pages.job.gang import find_shown
from holdfast.web.words import draw_line

Point = TypeVar("Point", GpuPoint, RankPoint)
SHOWN_HOSTS = 24
MINUTES_SECONDS = 24 * 3600
MAX_SECONDS = 90 * 24 * 3600
WIDE, NARROW = 240, 88


class ReadingLine(msgspec.Struct, frozen=True, kw_only=True):
    """A line of readings, with the last one and the highest."""

    line: Markup
    last: float
    peak: float


class GpuReadings(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU of a rank."""

    gpu: int
    last: GpuPoint | None = None
    use: Markup = Markup("")
    memory: Markup = Markup("")


class RankReadings(msgspec.Struct, frozen=True, kw_only=True):
    """The processors and memory that one rank used. end_peak_bytes: the most memory that the kernel
    counted by its end, file cache included."""

    rank: int
    host: str
    cores: ReadingLine | None = None
    memory: ReadingLine | None = None
    gpus: list[GpuReadings] = []
    end_peak_bytes: int = 0


class _RankPlace(msgspec.Struct, frozen=True):
    rank: int
    host: str
    devices: tuple[int, ...]
    peak_bytes: int = 0


class _Shown(msgspec.Struct, frozen=True):
    """The attempt that is shown, and its time."""

    places: list[_RankPlace]
    attempt: int | None
    begin: datetime
    end: datetime


async def read_readings(
    ask: PageRequest, job: JobRecord, span: tuple[datetime, datetime] | None
) -> dict[str, object]:
    """Return the readings of the attempt that the address names, or else of the one that runs, or of
    the last one."""
    found = await _find(ask, job)
    chosen = ask.query.get("rank", "")
    places = found.places
    shown = [each for each in places if not chosen or str(each.rank) == chosen][:MAX_RANKS]
    begin, end = span or (found.begin, found.end)
    age = max(60.0, (ask.now - begin).total_seconds() + 60)
    step: Step = "minute" if age <= MINUTES_SECONDS else "hour"
    if step == "hour":
        age += 3600  # the hour in which it began
    seconds = int(min(age, MAX_SECONDS))
    ranks = [each.rank for each in shown]
    view = await ask.reader.job_telemetry(
        job.id, step=step, seconds=seconds, ranks=ranks, attempt=found.attempt
    )
    used = _cut(view.points, begin, end, view.point_seconds)
    # An ended attempt has no tasks that would name its devices.
    devices = {point.rank: point.devices for point in used}
    shown = [
        msgspec.structs.replace(each, devices=each.devices or devices.get(each.rank, ()))
        for each in shown
    ]
    hosts = list(dict.fromkeys(each.host for each in shown if each.devices))[:SHOWN_HOSTS]
    read = await together(*[_read_host(ask, host, step, seconds) for host in hosts])
    length = 3600 if step == "hour" else 60
    points = {host: _cut(told, begin, end, length) for host, told in zip(hosts, read, strict=True)}
    width = NARROW if any(each.devices for each in shown) else WIDE
    limit = view.memory_limit_bytes
    return {
        "readings": [
            _draw(
                each,
                [point for point in used if point.rank == each.rank],
                points.get(each.host, ()),
                limit=limit,
                width=width,
            )
            for each in shown
        ],
        "readings_attempt": found.attempt,
        "readings_gpus": any(each.devices for each in shown),
        "readings_peaks": any(each.peak_bytes for each in shown),
        "readings_limit": limit,
        "readings_step": view.point_seconds,
        "readings_more": 0 if chosen else len(places) - len(shown),
    }


async def _find(ask: PageRequest, job: JobRecord) -> _Shown:
    """Return the attempt to show, with the places of its ranks."""
    number = ask.query.get("attempt", "")
    tasks: Sequence[TaskRecord] = await ask.reader.tasks(job.id)
    if tasks and number in ("", str(tasks[0].attempt)):
        places = [_RankPlace(t.rank, t.host_name or "", t.devices) for t in tasks if t.host_name]
        begin = min((t.started_at for t in tasks if t.started_at), default=ask.now)
        return _Shown(places, tasks[0].attempt, begin, ask.now)
    attempts: Sequence[AttemptRecord] = await ask.reader.attempts(job.id)
    named = [each for each in attempts if str(each.number) == number]
    ended = find_shown(named if number else attempts)
    if ended is None:
        return _Shown([], None, job.created_at, ask.now)
    places = [
        _RankPlace(m.rank, m.host or "", (), m.facts.max_memory_bytes if m.facts else 0)
        for m in ended.members
    ]
    begin = ended.started_at or ended.reserved_at
    return _Shown(places, ended.number, begin, ended.ended_at or ask.now)


def _cut(points: Sequence[Point], begin: datetime, end: datetime, seconds: int) -> list[Point]:
    """Return the points of `seconds` each that are of this time."""
    length = timedelta(seconds=seconds)
    return [point for point in points if begin - length < point.at <= end]


async def _read_host(ask: PageRequest, host: str, step: Step, seconds: int) -> Sequence[GpuPoint]:
    try:
        found = await ask.reader.host_telemetry(host, step=step, seconds=seconds)
    except HoldfastError:  # a host that is forgotten has no readings
        return ()
    return found.points


def _draw(
    place: _RankPlace,
    used: Sequence[RankPoint],
    points: Sequence[GpuPoint],
    *,
    limit: int,
    width: int,
) -> RankReadings:
    rank, cores, memory = place.rank, None, None
    if used:
        most = max(point.cores_max for point in used)
        label = f"processors of rank {rank}, at most {most:.2f}"
        line = draw_line([p.cores for p in used], label, width=width)
        cores = ReadingLine(line=line, last=used[-1].cores, peak=most)
        sizes = [point.memory_max_bytes for point in used]
        label = f"memory of rank {rank}, at most {say_bytes(max(sizes))}"
        line = draw_line(sizes, label, width=width, limit=limit or None)
        memory = ReadingLine(line=line, last=sizes[-1], peak=max(sizes))
    return RankReadings(
        rank=rank,
        host=place.host,
        cores=cores,
        memory=memory,
        gpus=[_draw_gpu(rank, gpu, [p for p in points if p.gpu == gpu]) for gpu in place.devices],
        end_peak_bytes=place.peak_bytes,
    )


def _draw_gpu(rank: int, gpu: int, own: Sequence[GpuPoint]) -> GpuReadings:
    total = own[-1].memory_total_bytes if own else 0
    use = f"use of GPU {gpu} of rank {rank} in percent"
    memory = f"memory of GPU {gpu} of rank {rank}"
    return GpuReadings(
        gpu=gpu,
        last=own[-1] if own else None,
        use=draw_line([p.utilisation_percent for p in own], use, 100.0, width=NARROW),
        memory=draw_line(
            [p.memory_used_max_bytes for p in own], memory, float(total) or None, width=NARROW
        ),
    )
