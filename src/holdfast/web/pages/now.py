"""Now: what needs a person first, then what the cluster does."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec

from holdfast.client.methods.jobs import JobMethods
from holdfast.core.records import JobRecord, ProjectRecord, QueueRecord
from holdfast.core.states import HostState, Hue, JobState
from holdfast.core.webhooks.values import WebhookRecord, WebhookState
from holdfast.errors import HoldfastError
from holdfast.web.page import Page, PageRequest, read_items, together
from holdfast.web.pages.report import read_day
from holdfast.web.words import write_number
from holdfast.wire.api import HostView, RetriesView
from holdfast.wire.pools import PoolStatus
from holdfast.wire.states import tell_state

SHOWN_JOBS = 8
SHOWN_TILES = 200
"""The most hosts in the strip of GPUs, besides those in trouble."""
COUNT_SECONDS = 10
MAX_WAITING = 200
"""The most waiting jobs among which held ones are looked for."""
TRY_AGAIN = "The parked job is tried again, with fresh budgets."
_LIVE = [state.value for state in JobState if not state.terminal]


class NeededAct(msgspec.Struct, frozen=True, kw_only=True):
    """A thing that needs a person: its name with its state's colour, a sentence, where to look, and
    the act that mends it, with what it takes. work: what the act changes, where that has an owner. was:
    what it changes, where the act's undo brings that back. ask: its consequence, where that is another."""

    name: str
    hue: str
    sentence: str
    link: str
    act: str = ""
    params: Mapping[str, str] = {}
    body: Mapping[str, object] = {}
    work: JobRecord | None = None
    was: HostView | QueueRecord | WebhookRecord | None = None
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
    troubled, strip, counts, queues, pools, others, (day, parts), jobs, lately = await together(
        reader.hosts(trouble=True),
        reader.hosts(gpus=True, limit=SHOWN_TILES),
        reader.host_counts(),
        reader.queues(),
        reader.pools(),
        _read_needs(ask),
        read_day(ask),
        read_items(reader, live),
        read_items(reader, failed),
    )
    needs = _list_needs(troubled, pools, queues, others)
    shown = {host.name: host for host in (*strip, *troubled) if host.gpus}
    tiles = [_make_tile(host) for _, host in sorted(shown.items())]
    here = [count for count in counts if count.state is not HostState.TERMINATED]
    held = [count for count in here if not count.unfit and count.state is not HostState.DRAINING]
    devices = sum(count.gpus for count in here)
    values = {
        "needs": needs,
        "tiles": tiles,
        "more_tiles": devices > sum(len(tile.hues) for tile in tiles),
        "busy": sum(count.busy_gpus for count in held),
        "unfit": sum(count.gpus for count in here if count.unfit),
        "devices": devices,
        "slots": sum(count.cpu_slots for count in here),
        "busy_slots": sum(count.busy_cpu_slots for count in here),
        "queues": queues,
        "running": sum(queue.running for queue in queues),
        "waiting": sum(queue.waiting + queue.queued for queue in queues),
        "day": day,
        "parts": parts,
        "jobs": jobs,
        "failed": lately,
        "has_hosts": bool(here),
    }
    return Page(
        template="now.html", title="Now", values=values, needed=len(needs),
        follows=("jobs", "hosts", "queues", "pools", "projects", "webhooks"), every=10,
    )  # fmt: skip


class NeedCounts:
    """How many things need a person, by role. Every page shows the number, so it is read at most once in
    `COUNT_SECONDS`."""

    def __init__(self) -> None:
        self._kept: dict[str, tuple[datetime, int]] = {}

    async def find(self, ask: PageRequest, page: Page) -> int:
        """Return the number: the page's own, where the page has read it."""
        role = ask.token.role
        if page.needed is not None:
            self._kept[role] = ask.now, page.needed
        at, count = self._kept.get(role, (None, 0))
        if at is None or (ask.now - at).total_seconds() >= COUNT_SECONDS:
            with contextlib.suppress(HoldfastError):  # the page is shown with the last number
                count = await _count_needs(ask)
            self._kept[role] = ask.now, count
        return count


async def _count_needs(ask: PageRequest) -> int:
    reader = ask.reader
    troubled, pools, queues, others = await together(
        reader.hosts(trouble=True), reader.pools(), reader.queues(), _read_needs(ask)
    )
    return len(_list_needs(troubled, pools, queues, others))


def _list_needs(
    hosts: Iterable[HostView],
    pools: Iterable[PoolStatus],
    queues: Iterable[QueueRecord],
    others: Iterable[NeededAct],
) -> list[NeededAct]:
    return [*_host_needs(hosts), *_pool_needs(pools), *_queue_needs(queues), *others]


async def _read_needs(ask: PageRequest) -> list[NeededAct]:
    """Return what needs a person of projects, retries, webhooks and parked jobs."""
    reader = ask.reader
    waiting = JobMethods.jobs(reader, states=["waiting"], page_size=MAX_WAITING)
    projects, retries, hooks, held = await together(
        reader.projects(waiting=False),
        reader.retries(),
        reader.webhooks() if ask.may("admin") else _nothing(),
        read_items(reader, waiting),
    )
    needs = (_project_needs(projects), _retry_needs(retries), _hook_needs(hooks), _job_needs(held))
    return [need for each in needs for need in each]


async def _nothing() -> list[WebhookRecord]:
    return []


def _need(
    thing: Any,
    name: str,
    link: str,
    act: str = "",
    params: Mapping[str, str] | None = None,
    **how: Any,
) -> Iterable[NeededAct]:
    """Yield what a thing needs of a person, if its state says that it needs one. act: what mends it;
    "" where no button does. how: further fields of the act."""
    shown = tell_state(thing)
    if shown.needs_person:
        works = shown.hue is Hue.RUNNING
        said = shown.sentence if works else f"{shown.word.capitalize()}: {shown.sentence}"
        hue = Hue.DRAINING if works else shown.hue
        mend = {"act": act, "params": params or {}, **(how or {"was": thing})} if act else {}
        yield NeededAct(name=name, hue=hue, sentence=said, link=link, **mend)


def _host_needs(hosts: Iterable[HostView]) -> Iterable[NeededAct]:
    for host in hosts:
        releases = host.state is HostState.QUARANTINED and not host.dead
        act = "host.release" if releases else ""
        yield from _need(host, host.name, f"/hosts/{host.name}", act, {"host": host.id})


def _pool_needs(pools: Iterable[PoolStatus]) -> Iterable[NeededAct]:
    for pool in pools:
        yield from _need(pool, f"pool {pool.name}", f"/pools/{pool.name}")


def _queue_needs(queues: Iterable[QueueRecord]) -> Iterable[NeededAct]:
    for queue in queues:
        named = {"name": queue.name}
        yield from _need(queue, f"queue {queue.name}", "/queues", "queue.resume", named)


def _job_needs(jobs: Iterable[JobRecord]) -> Iterable[NeededAct]:
    for job in jobs:
        how: dict[str, Any] = {"work": job, "ask": TRY_AGAIN}
        yield from _need(job, job.name, f"/jobs/{job.id}", "job.retry", {"id": job.id}, **how)


def _retry_needs(retries: RetriesView) -> Iterable[NeededAct]:
    for hold in retries.holds:
        why = f": {hold.reason}" if hold.reason else ""
        whose = "of the cluster" if hold.project is None else f"of project {hold.project}"
        told: dict[str, Any] = {
            "name": "retries",
            "hue": "draining",
            "link": "/jobs?q=state:waiting",
            "sentence": f"The retries {whose} are held{why}. {_say_waiting(retries.held)} for their release.",
        }
        body = {"unset": ["retries_enabled", "retries_hold_reason"]}
        if hold.source == "cluster":
            yield NeededAct(**told, act="retries.release", body=body)
        elif hold.project is not None:
            yield NeededAct(**told, act="project.release", params={"name": hold.project}, body=body)
        else:
            yield NeededAct(**told)


def _say_waiting(count: int) -> str:
    return "1 job waits" if count == 1 else f"{write_number(count)} jobs wait"


def _project_needs(projects: Iterable[ProjectRecord]) -> Iterable[NeededAct]:
    for project in projects:
        yield from _need(project, f"project {project.name}", "/queues")


def _hook_needs(hooks: Iterable[WebhookRecord]) -> Iterable[NeededAct]:
    for hook in hooks:
        name, link, named = (
            hook.name or "a webhook",
            f"/settings/webhooks/{hook.id}",
            {"id": hook.id},
        )
        if hook.state is WebhookState.PAUSED:
            yield from _need(hook, name, link, "hook.resume", named)
        else:
            yield from _need(hook, name, link, "hook.redeliver-dead", named, ask="")


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
