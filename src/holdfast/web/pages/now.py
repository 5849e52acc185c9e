"""Now: what needs a person first, then what the cluster does."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from holdfast.client.methods.jobs import JobMethods
from holdfast.core.records import JobRecord, QueueRecord
from holdfast.core.states import HostState, JobState
from holdfast.web.page import Page, PageRequest, read_items, together
from holdfast.web.pages.report import read_day
from holdfast.wire.api import HostView
from holdfast.wire.pools import PoolStatus

SHOWN_JOBS = 8
_LIVE = [state.value for state in JobState if not state.terminal]


class NeededAct(msgspec.Struct, frozen=True, kw_only=True):
    """A thing that needs a person: its name with its state's colour, a sentence, where to look, and the act
    that mends it, as a method and a path of the API."""

    name: str
    hue: str
    sentence: str
    link: str
    act: str = ""
    button: str = ""
    ask: str = ""


class HostTile(msgspec.Struct, frozen=True, kw_only=True):
    """One host in the strip of GPUs: the hue of each device."""

    host: HostView
    hues: Sequence[str]


async def show(ask: PageRequest) -> Page:
    """Make the page."""
    reader = ask.reader
    live = JobMethods.jobs(reader, states=_LIVE, page_size=SHOWN_JOBS)
    failed = JobMethods.jobs(reader, states=["failed"], page_size=SHOWN_JOBS)
    hosts, queues, pools, (day, parts), jobs, lately = await together(
        reader.hosts(),
        reader.queues(),
        reader.pools(),
        read_day(ask),
        read_items(reader, live),
        read_items(reader, failed),
    )
    needs = [*_host_needs(hosts), *_pool_needs(pools), *_queue_needs(queues), *_job_needs(jobs)]
    tiles = [_make_tile(host) for host in hosts if host.gpus]
    devices = [hue for tile in tiles for hue in tile.hues]
    values = {
        "needs": needs,
        "tiles": tiles,
        "busy": devices.count("running"),
        "unfit": devices.count("failed"),
        "devices": len(devices),
        "slots": sum(host.cpu_slots for host in hosts),
        "busy_slots": sum(host.busy_cpu_slots for host in hosts),
        "queues": queues,
        "running": sum(queue.running for queue in queues),
        "waiting": sum(queue.waiting + queue.queued for queue in queues),
        "day": day,
        "parts": parts,
        "jobs": jobs,
        "failed": lately,
        "has_hosts": bool(hosts),
    }
    return Page(
        template="now.html", title="Now", values=values,
        follows=("jobs", "hosts", "queues", "pools"), every=10,
    )  # fmt: skip


def _host_needs(hosts: Iterable[HostView]) -> Iterable[NeededAct]:
    for host in hosts:
        link = f"/hosts/{host.name}"
        if host.dead:
            sentence = f"No sync came from this host lately. {host.reason}".strip()
            yield NeededAct(name=host.name, hue="failed", sentence=sentence, link=link)
        elif host.state is HostState.QUARANTINED:
            yield NeededAct(
                name=host.name, hue="failed", link=link,
                sentence=f"Quarantined, so that it gets no work: {host.reason}",
                act=f"POST /v1/hosts/{host.id}/release", button="Release",
                ask="The host gets work again. Its checks still watch it.",
            )  # fmt: skip
        elif host.state is HostState.ERROR:
            yield NeededAct(name=host.name, hue="failed", sentence=host.reason, link=link)
        for fault in host.faults:
            yield NeededAct(name=host.name, hue="draining", sentence=fault.reason, link=link)


def _pool_needs(pools: Iterable[PoolStatus]) -> Iterable[NeededAct]:
    for pool in pools:
        for sentence in pool.provider_says:
            yield NeededAct(
                name=f"pool {pool.name}", hue="draining", sentence=sentence, link="/pools"
            )


def _queue_needs(queues: Iterable[QueueRecord]) -> Iterable[NeededAct]:
    for queue in queues:
        if queue.paused_at is not None and queue.waiting + queue.queued:
            why = f": {queue.paused_reason}" if queue.paused_reason else ""
            yield NeededAct(
                name=f"queue {queue.name}", hue="waiting", link="/queues",
                sentence=f"Paused{why}. {queue.waiting + queue.queued} jobs wait in it.",
                act=f"POST /v1/queues/{queue.name}/resume", button="Resume",
                ask="Its jobs start again as room is free.",
            )  # fmt: skip


def _job_needs(jobs: Iterable[JobRecord]) -> Iterable[NeededAct]:
    for job in jobs:
        if job.wait_cause == "held":
            yield NeededAct(
                name=job.name, hue="waiting", sentence=job.reason, link=f"/jobs/{job.id}",
                act=f"POST /v1/jobs/{job.id}/retry", button="Retry",
                ask="The job is queued again with fresh budgets.",
            )  # fmt: skip


def _make_tile(host: HostView) -> HostTile:
    unfit = host.dead or host.state in (HostState.QUARANTINED, HostState.ERROR)
    draining = host.state is HostState.DRAINING
    hues = []
    for gpu in host.gpus:
        busy = gpu.index in host.busy_gpus
        hues.append(
            "failed" if unfit else ("draining" if draining else "running") if busy else "free"
        )
    return HostTile(host=host, hues=hues)
