"""Draw the screen of `top` as lines, and decide what its keys do. Pure: a view, a size and a place
give lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING

import msgspec

from holdfast.cli.live.progress import find_estimate, say_left
from holdfast.cli.output import count_columns, paint, printable, shorten
from holdfast.core.words import count_of, split_span

if TYPE_CHECKING:
    from holdfast.core.gpus import GpuTelemetry
    from holdfast.core.records import JobRecord
    from holdfast.wire.api import HostView

KEYS = "j/k move  f follow  w why  c cancel  s shell  q quit"
_ORDER = ("running", "draining", "reserved", "queued", "waiting")
_ID_COLUMNS, _STATE_COLUMNS = 20, 9


class View(msgspec.Struct, frozen=True, kw_only=True):
    """The results of one look at the cluster. gpus: host's id → its devices' newest readings.
    error: why the last look failed."""

    at: datetime
    place: str
    hosts: tuple[HostView, ...] = ()
    jobs: tuple[JobRecord, ...] = ()
    gpus: Mapping[str, Sequence[GpuTelemetry]] = {}
    error: str = ""


class Ask(StrEnum):
    """The request that a key makes of the program, about the chosen job."""

    NOTHING = ""
    QUIT = "quit"
    FOLLOW = "follow"
    WHY = "why"
    SHELL = "shell"
    CANCEL = "cancel"


class Focus(msgspec.Struct, frozen=True, kw_only=True):
    """The place of a person on the screen. chosen: the id of a job. confirms: the job whose cancel
    is asked about. text: lines shown over the table until a key is pressed. said: one line at the
    bottom."""

    chosen: str = ""
    confirms: str = ""
    text: tuple[str, ...] = ()
    said: str = ""


def sort_jobs(jobs: Sequence[JobRecord]) -> list[JobRecord]:
    """Return the jobs by state, running jobs first, and the newest first among equals."""
    newest = sorted(jobs, key=lambda job: job.id, reverse=True)
    return sorted(newest, key=lambda job: _rank(job.state.value))


def _rank(state: str) -> int:
    return _ORDER.index(state) if state in _ORDER else len(_ORDER)


def settle(place: Focus, jobs: Sequence[JobRecord]) -> Focus:
    """Return the place with a chosen job that is in the list: the present choice where it is there,
    else the first job."""
    ids = [job.id for job in jobs]
    if place.chosen in ids or not ids:
        return place
    return msgspec.structs.replace(place, chosen=ids[0], confirms="")


def press(key: str, place: Focus, jobs: Sequence[JobRecord], page: int) -> tuple[Focus, Ask, str]:
    """Return the place after a key was pressed, the request of that key, and the job that the
    request is about. page: the number of jobs on a page."""
    place = settle(place, jobs)
    if not key:
        return place, Ask.NOTHING, ""
    if place.confirms:
        job_id, place = place.confirms, msgspec.structs.replace(place, confirms="", said="")
        return place, Ask.CANCEL if key in ("y", "Y") else Ask.NOTHING, job_id
    if place.text:
        quits = key == "q"
        return msgspec.structs.replace(place, text=()), Ask.QUIT if quits else Ask.NOTHING, ""
    place = msgspec.structs.replace(place, said="")
    if key in ("q", "escape"):
        return place, Ask.QUIT, ""
    steps = {
        "up": -1,
        "k": -1,
        "down": 1,
        "j": 1,
        "pageup": -page,
        "pagedown": page,
        "g": -len(jobs),
        "G": len(jobs),
    }
    if not jobs:
        return place, Ask.NOTHING, ""
    if key in steps:
        ids = [job.id for job in jobs]
        at = min(max(0, ids.index(place.chosen) + steps[key]), len(ids) - 1)
        return msgspec.structs.replace(place, chosen=ids[at]), Ask.NOTHING, ""
    if key == "c":
        return msgspec.structs.replace(place, confirms=place.chosen), Ask.NOTHING, ""
    asks = {"f": Ask.FOLLOW, "l": Ask.FOLLOW, "w": Ask.WHY, "enter": Ask.WHY, "s": Ask.SHELL}
    return place, asks.get(key, Ask.NOTHING), place.chosen


def draw_top(view: View, place: Focus, columns: int, lines: int) -> list[str]:
    """Draw the screen: at most `lines` lines of at most `columns` columns. Hosts take at most a
    third."""
    head = [_cut(_say_head(view), columns)]
    foot = [_cut(_say_foot(view, place), columns)]
    room = max(0, lines - len(head) - len(foot))
    if place.text:
        body = [_cut(line, columns) for line in place.text][:room]
    else:
        hosts = draw_hosts(view, columns)
        most = max(2, room // 3)
        if len(hosts) > most:
            hosts = [
                *hosts[: most - 1],
                _cut(f"… and {len(hosts) - most + 1} more lines of hosts", columns),
            ]
        left = max(0, room - len(hosts) - 1)
        body = [*hosts, "", *draw_jobs(view, place.chosen, columns, left)][:room]
    body += [""] * (room - len(body))
    return [*head, *body, *foot][-lines:] if lines < 2 else [*head, *body, *foot]


def draw_hosts(view: View, columns: int) -> list[str]:
    """Return a line for each host, and one below it for its devices' readings, where there are."""
    found = [_cut(f"{'HOST':20}  {'STATE':11}  {'CPU':>9}  {'GPU':>7}  {'JOBS':>4}", columns)]
    for host in sorted(view.hosts, key=lambda one: one.name):
        state = "dead" if host.dead else host.state.value
        cpu, gpu = _slots(host, "cpu"), _slots(host, "gpu")
        line = f"{_fit(host.name, 20)}  {_fit(state, 11)}  {cpu:>9}  {gpu:>7}  {host.running:>4}"
        found.append(_cut(line.replace(_fit(state, 11), paint(_fit(state, 11)), 1), columns))
        devices = [_say_device(one) for one in view.gpus.get(host.id, ())]
        found += _wrap(devices, columns)
    return found


def draw_jobs(view: View, chosen: str, columns: int, lines: int) -> list[str]:
    """Return a heading and as many jobs as have room, so that the chosen one is among them."""
    jobs = sort_jobs(view.jobs)
    place = next((at for at, job in enumerate(jobs) if job.id == chosen), 0)
    room = max(1, lines - 1)
    first = max(0, min(place - room // 2, len(jobs) - room))
    name = min(max(8, columns - 69), 24)
    head = (
        f"  {'JOB':20}  {'STATE':9}  {'NAME':{name}}  {'STEP':>11}  {'LEFT':>6}  {'RAN':>6}  REASON"
    )
    found = [_cut(head, columns)]
    for job in jobs[first : first + room]:
        estimate = find_estimate(job, view.at)
        running = job.state.value == "running"
        left = say_left(estimate) if estimate is not None and running else ""
        step = "" if job.step is None else f"{job.step}/{job.total}" if job.total else str(job.step)
        ran = (
            ""
            if job.started_at is None
            else split_span(max(0.0, (view.at - job.started_at).total_seconds()))
        )
        state = _fit(job.state.value, _STATE_COLUMNS)
        mark = ">" if job.id == chosen else " "
        line = f"{mark} {job.id:{_ID_COLUMNS}}  {state}  {_fit(job.name, name)}  {step:>11}  {left:>6}  {ran:>6}"
        reason = "" if running else job.reason
        line = _cut(f"{line}  {reason}".rstrip(), columns)
        found.append(line.replace(state, paint(state), 1))
    return found


def _say_head(view: View) -> str:
    busy = sum(len(host.busy_gpus) for host in view.hosts)
    gpus = sum(len(host.gpus) for host in view.hosts)
    states = [job.state.value for job in view.jobs]
    counts = ", ".join(f"{states.count(one)} {one}" for one in _ORDER if one in states) or "no jobs"
    parts = [f"{view.at.astimezone():%H:%M:%S}", count_of(len(view.hosts), "host")]
    parts += [f"{busy}/{gpus} GPUs"] if gpus else []
    return "  ".join([*parts, counts, view.place])


def _say_foot(view: View, place: Focus) -> str:
    if place.confirms:
        job = next((job for job in view.jobs if job.id == place.confirms), None)
        return f"cancel {place.confirms}{f' ({job.name})' if job else ''}? y/n"
    if place.text:
        return "any key goes back"
    return place.said or (f"! {view.error}" if view.error else KEYS)


def _say_device(reading: GpuTelemetry) -> str:
    parts = [f"GPU {reading.index}"]
    if reading.utilisation_percent is not None:
        parts.append(f"{reading.utilisation_percent:.0f}%")
    if reading.memory_used_bytes is not None:
        parts.append(
            f"{reading.memory_used_bytes / 2**30:.0f}/{reading.memory_total_bytes / 2**30:.0f}G"
        )
    if reading.temperature_celsius is not None:
        parts.append(f"{reading.temperature_celsius:.0f}°")
    return " ".join(parts)


def _wrap(parts: Sequence[str], columns: int) -> list[str]:
    found: list[str] = []
    for part in parts:
        longer = f"{found[-1]}   {part}" if found else ""
        if found and count_columns(longer) <= columns:
            found[-1] = longer
        else:
            found.append(_cut(f"    {part}", columns))
    return found


def _slots(host: HostView, kind: str) -> str:
    slots = host.slots.get(kind, {})
    return f"{slots.get('busy', 0)}/{slots.get('total', 0)}"


def _cut(text: str, columns: int) -> str:
    return shorten(printable(" ".join(text.expandtabs(1).splitlines())), columns)


def _fit(text: str, width: int) -> str:
    text = shorten(printable(" ".join(text.split())), width)
    return text + " " * (width - count_columns(text))
