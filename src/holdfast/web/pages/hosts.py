"""Make the pages of hosts: the list of all hosts, and the page of one host with its devices, its
checks and its tasks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from urllib.parse import urlencode

import msgspec
from markupsafe import Markup
from starlette.responses import Response

from holdfast.client.methods.jobs import JobMethods
from holdfast.core.gpus import Gpu
from holdfast.core.readings.records import GpuPoint
from holdfast.core.records import HostRecord
from holdfast.core.states import HostState
from holdfast.errors import ValidationError
from holdfast.web.acts import list_takes, write_bulk, write_takes
from holdfast.web.page import Page, PageRequest, read_items, together
from holdfast.web.words import draw_line
from holdfast.wire.api import HostView
from holdfast.wire.operations.acts import ACTS
from holdfast.wire.states import tell_state

SHOWN_SECONDS = 6 * 3600
SHOWN_JOBS = 50
SHOWN_HOSTS = 50
WORDS = ("state", "pool", "label")
ORDER = {state: n for n, state in enumerate(("dead", "error", "quarantined", "draining"))}


BULK = ("host.drain", "host.undrain", "host.quarantine", "host.release")
"""The acts on many hosts."""


def list_bulk(text: str) -> dict[str, str]:
    """Return the acts on the chosen hosts, or on all that a filter matches, by their words."""
    find = "/find/hosts?" + urlencode({"q": text})
    return {ACTS[name].button: write_bulk(name, "host", "host", find=find) for name in BULK}


async def send_hosts(ask: PageRequest) -> Response:
    """Send all hosts that a filter matches, each with the acts that it takes, for an act on them all."""
    hosts = filter_hosts(await ask.reader.hosts(), ask.query.get("q", ""))
    items = [
        {"id": host.id, "name": host.name, "takes": list_takes(list_acts(host), host, ask.now)}
        for host in hosts
    ]
    body = msgspec.json.encode({"items": items, "next": None})
    return Response(body, 200, None, "application/json")


def list_acts(host: HostRecord) -> list[str]:
    """Return the acts that may be done to a host in its state."""
    if host.state is HostState.ACTIVE:
        return ["host.drain", "host.quarantine"]
    if host.state is HostState.DRAINING:
        return ["host.undrain", "host.quarantine"]
    return ["host.release"] if host.state is HostState.QUARANTINED else []


class DeviceView(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU: whether it is held, and its readings as pictures."""

    gpu: Gpu
    held: bool
    last: GpuPoint | None
    use: Markup
    memory: Markup


def filter_hosts(hosts: Sequence[HostView], text: str) -> list[HostView]:
    """Return the hosts that all words of a filter fit, those that need a person first.

    A word is `state:quarantined`, `pool:NAME`, `label:KEY=VALUE` or a part of the name. Raises
    ValidationError.
    """
    found = list(hosts)
    for word in text.split():
        kind, colon, value = word.partition(":")
        if colon and (kind not in WORDS or not value):
            raise ValidationError(
                f"{word!r} filters nothing; the words are {', '.join(f'{w}:…' for w in WORDS)}, "
                "and a part of a name",
                field="q",
            )
        found = [host for host in found if _fits(host, kind if colon else "", value or word)]
    return sorted(found, key=lambda host: (ORDER.get(tell_state(host).word, len(ORDER)), host.name))


def _fits(host: HostView, kind: str, value: str) -> bool:
    if kind == "state":
        return tell_state(host).word == value
    if kind == "pool":
        return host.pool == value
    if kind == "label":
        key, _, wanted = value.partition("=")
        return host.labels.get(key) == wanted
    return value.lower() in host.name.lower()


async def show_all(ask: PageRequest) -> Page:
    """Make the page of all hosts."""
    text, trouble, found = ask.query.get("q", ""), "", list[HostView]()
    page = ask.query.get("page", "1")
    number = int(page) if page.isascii() and page.isdigit() and 0 < len(page) < 6 else 1
    begin = max(0, number - 1) * SHOWN_HOSTS
    every = ask.query.get("all") == "1"
    if text or begin or every:
        hosts, more = await ask.reader.hosts(include_terminated=every), 0
    else:
        hosts, more = await _read_first(ask)
    try:
        found = filter_hosts(hosts, text)
    except ValidationError as error:
        trouble = error.message
    counts = Counter(tell_state(host).word for host in hosts)
    if more:
        counts["active"] += more
    values = {
        "hosts": found[begin : begin + SHOWN_HOSTS],
        "begin": begin,
        "found": len(found) + more,
        "counts": counts,
        "filter": text,
        "bulk": list_bulk(text),
        "acts": list_acts,
        "takes": write_takes,
        "trouble": trouble,
        "before": str(number - 1) if begin else None,
        "after": str(number + 1) if begin + SHOWN_HOSTS < len(found) + more else None,
    }
    return Page(template="hosts.html", title="Hosts", values=values, follows=("hosts",), every=10)


async def _read_first(ask: PageRequest) -> tuple[list[HostView], int]:
    """Return the hosts of the first page, those in trouble with all others that fit there, and the number
    of active hosts besides."""
    troubled, first, counts = await together(
        ask.reader.hosts(trouble=True),
        ask.reader.hosts(limit=SHOWN_HOSTS),
        ask.reader.host_counts(),
    )
    shown = {host.id: host for host in (*troubled, *first)}
    here = sum(count.hosts for count in counts if count.state is not HostState.TERMINATED)
    return list(shown.values()), max(0, here - len(shown))


async def show_one(ask: PageRequest) -> Page:
    """Make the page of one host. Raises NotFound."""
    reader, name = ask.reader, ask.params["host"]
    jobs = JobMethods.jobs(reader, host=name, page_size=SHOWN_JOBS)
    host, readings, checks, ran = await together(
        reader.host(name),
        reader.host_telemetry(name, seconds=SHOWN_SECONDS),
        reader.host_checks(name),
        read_items(reader, jobs),
    )
    values = {
        "host": host,
        "devices": draw_devices(host, readings.points),
        "checks": checks[:20],
        "acts": list_acts(host),
        "running": [job for job in ran if not job.state.terminal],
        "ran": [job for job in ran if job.state.terminal],
    }
    return Page(
        template="host.html", title=host.name, values=values, follows=(f"host:{host.id}",), every=15
    )


def draw_devices(host: HostRecord, points: Sequence[GpuPoint]) -> list[DeviceView]:
    """Return each device of a host with its readings of the last hours."""
    made = []
    for gpu in host.gpus:
        own = [point for point in points if point.gpu == gpu.index]
        use = [point.utilisation_percent for point in own]
        memory: list[float | None] = [point.memory_used_max_bytes for point in own]
        total = own[-1].memory_total_bytes if own else 0
        made.append(
            DeviceView(
                gpu=gpu,
                held=gpu.index in host.busy_gpus,
                last=own[-1] if own else None,
                use=draw_line(use, f"use of GPU {gpu.index} in percent", 100.0),
                memory=draw_line(memory, f"memory of GPU {gpu.index}", float(total) or None),
            )
        )
    return made
