"""A supervised run: its policy script, the hosts that it has, and how they were replaced, by time."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from datetime import datetime

import msgspec
from markupsafe import Markup

from holdfast.client.methods.jobs import JobMethods
from holdfast.core.placement.ranks import say_ranks
from holdfast.core.records import AttemptRecord, EventRecord, MemberRecord, TaskRecord
from holdfast.core.states import HostState, TaskState
from holdfast.core.watchdogs.sections import IDLE_SECTION
from holdfast.web.acts import write_bulk, write_takes
from holdfast.web.page import PageRequest, read_items, together
from holdfast.web.pages.hosts import list_acts
from holdfast.web.pages.job.gang import NAMED_RANKS, find_shown
from holdfast.web.pages.job.output import read_last_lines
from holdfast.web.words import write_span
from holdfast.wire.api import HostView, JobView
from holdfast.wire.operations.acts import ACTS

SHOWN_MEMBERS = 200
SHOWN_EVENTS = 200
SHOWN_LINES = 14
MEMBER_PROGRAM = "holdfast.supervisor.member"
KINDS = (
    "task.replaced",
    "task.parked",
    "task.released",
    "task.stopping",
    "task.expired",
    "task.reserved",
    "task.started",
    "job.started",
    "job.draining",
    "job.retry_dispatched",
    "job.requeued",
    "job.succeeded",
    "job.failed",
    "job.cancelled",
)
"""The events of a run's life."""
_STATUS = re.compile(
    r"hosts (\d+ attached, \d+ lost, \d+ waiting, \d+ spare; processes \d+)(?=;)", re.ASCII
)
_HUES = {
    "task.replaced": "failed",
    "task.parked": "failed",
    "task.expired": "failed",
    "task.stopping": "draining",
    "task.released": "starting",
    "job.started": "running",
    "job.draining": "draining",
    "job.succeeded": "done",
    "job.failed": "failed",
    "job.cancelled": "gone",
}
_CHARGED = {"retries": "the script", "infra": "hosts", "watchdog": "watchdogs", "never": "nothing"}
_WHAT_FOLLOWS = (
    " On the host of rank 0 the script itself runs: if that host stops, the attempt is over. The run"
    " goes on without any other host, and its rank moves to the next one."
)
_BULK = {
    ACTS[name].button: write_bulk(name, "host", "host", ask=ACTS[name].ask + _WHAT_FOLLOWS)
    for name in ("host.drain", "host.quarantine")
}


class MemberShown(msgspec.Struct, frozen=True, kw_only=True):
    """A rank of the run: its host, and how that host is. heard_at: the host's last sync. pick: the
    host's id, on the first row of each host; takes: the acts that it takes (`acts.write_takes`)."""

    rank: int
    state: str
    host: str = ""
    host_word: str = ""
    replaced: int = 0
    since: datetime | None = None
    heard_at: datetime | None = None
    step: int | None = None
    said: str = ""
    pick: str = ""
    takes: str = ""


class LifeMoment(msgspec.Struct, frozen=True, kw_only=True):
    """A moment in the life of a run. id: its event's. after: what followed for the same rank, and when."""

    id: str
    at: datetime
    hue: str
    word: str
    said: str
    rank: int | None = None
    charged_to: str = ""
    after: str = ""


def read_script(argv: Sequence[str]) -> str:
    """Return the policy script and its words, as `holdfast supervise` was given them."""
    words = list(argv)
    if MEMBER_PROGRAM in words:
        words = words[words.index(MEMBER_PROGRAM) + 4 :]  # after GPUS, METRICS and the Python
    return shlex.join(words)


def list_members(
    tasks: Sequence[TaskRecord], hosts: Mapping[str, HostView], now: datetime
) -> list[MemberShown]:
    """Return the ranks of a run that goes on: first those without a host, and those that were
    replaced most often."""
    made, picked = [], set[str]()
    for task in sorted(tasks, key=_order):
        host = hosts.get(task.host_id or "")
        pick = host is not None and host.id not in picked
        picked.add(task.host_id or "")
        made.append(
            MemberShown(
                rank=task.rank,
                state="parked" if task.is_parked else str(task.state),
                host=task.host_name or "",
                host_word=_say_host(host),
                replaced=task.replaced,
                since=task.started_at,
                heard_at=host.heartbeat_at if host else None,
                step=task.step,
                said=task.stop_reason or _say_section(task.section),
                pick=host.id if host is not None and pick else "",
                takes=write_takes(list_acts(host), host, now) if host is not None and pick else "",
            )
        )
    return made


def _say_section(section: str | None) -> str:
    if section == IDLE_SECTION:
        return "no process of the run is there: a spare host, or between two starts"
    return f"in the section {section}" if section else ""


def _order(task: TaskRecord) -> tuple[bool, int, int]:
    return task.state is TaskState.RUNNING, -task.replaced, task.rank


def _say_host(host: HostView | None) -> str:
    if host is None or (host.state is HostState.ACTIVE and not host.dead):
        return ""
    return "dead" if host.dead else str(host.state)


def list_ended(
    members: Sequence[MemberRecord], events: Sequence[EventRecord], attempt: int
) -> list[MemberShown]:
    """Return the ranks of an attempt that has ended; how often each was replaced is known from the
    events that are read."""
    replaced = [e.rank for e in events if e.kind == "task.replaced" and e.attempt == attempt]
    return [
        MemberShown(
            rank=each.rank,
            state=str(each.state),
            host=each.host or "",
            replaced=replaced.count(each.rank),
            said=each.message or ("fell because another rank did" if each.cascade else ""),
        )
        for each in sorted(members, key=lambda each: (not each.trigger, each.rank))
    ]


def say_members(members: Sequence[MemberShown]) -> str:
    """Return the sentence of how many ranks have a host that runs, and where the others are."""
    if not members:
        return "none has a place yet"
    states: dict[str, list[int]] = {}
    for each in members:
        states.setdefault(each.state, []).append(each.rank)
    running = len(states.pop("running", []))
    said = [f"{running:,} of {len(members):,} run"]
    for state, ranks in states.items():
        word = "rank" if len(ranks) == 1 else "ranks"
        said.append(
            f"{word} {say_ranks(sorted(ranks), most=NAMED_RANKS)} {_WORDS.get(state, state)}"
        )
    return "; ".join(said)


_WORDS = {
    "blocked": "without a host",
    "reserved": "on the way",
    "parked": "parked until a person frees it",
    "preempted": "stopped, to move to another host",
    "failed": "fallen, to move to another host",
}


def tell_life(events: Sequence[EventRecord]) -> list[LifeMoment]:
    """Return the moments of a run, newest first. A replacement is one moment: that its rank fell, why,
    which budget it was charged to, and how long after that the rank ran again, and where."""
    made: list[LifeMoment] = []
    again: dict[int | None, EventRecord] = {}  # by rank, the start that followed
    for event in reversed(events):
        if event.kind == "task.started":
            again[event.rank] = event
        elif event.kind == "task.reserved":
            again.setdefault(event.rank, event)
        else:
            after = again.pop(event.rank, None) if event.kind == "task.replaced" else None
            made.append(_tell(event, after))
    return made


def _tell(event: EventRecord, after: EventRecord | None) -> LifeMoment:
    charged = str(event.data.get("charged_to") or "")
    followed = ""
    if after is not None:
        said = after.message.removeprefix(f"rank {event.rank} ")
        followed = f"{said}, {write_span((after.at - event.at).total_seconds())} later"
    return LifeMoment(
        id=event.id,
        at=event.at,
        hue=_HUES.get(event.kind, "starting"),
        word=event.kind.partition(".")[2].replace("_", " "),
        said=event.message.removeprefix(f"rank {event.rank}: "),
        rank=event.rank,
        charged_to=_CHARGED.get(charged, charged),
        after=followed,
    )


async def read_run(
    ask: PageRequest,
    job: JobView,
    attempts: Sequence[AttemptRecord],
    span: tuple[datetime, datetime] | None,
) -> dict[str, object]:
    """Return what the tab shows. span: the time of the moments that are shown; None: all."""
    reader = ask.reader
    call = JobMethods.events(reader, job_id=job.id, kinds=KINDS, tail=2 * SHOWN_EVENTS)
    tasks, events, hosts, said = await together(
        reader.tasks(job.id), read_items(reader, call), reader.hosts(), read_last_lines(ask, rank=0)
    )
    ended = None if tasks else find_shown(attempts)
    members = list_members(tasks, {host.id: host for host in hosts}, ask.now)
    if ended is not None:
        members = list_ended(ended.members, events, ended.number)
    life = tell_life(events)
    if span is not None:
        life = [each for each in life if span[0] <= each.at <= span[1]]
    return {
        "script": read_script(job.spec.argv),
        "members": members[:SHOWN_MEMBERS],
        "members_more": len(members) - SHOWN_MEMBERS,
        "members_said": say_members(members)
        if ended is None
        else f"attempt {ended.number} is over",
        "live": bool(tasks),
        "replaced": sum(each.replaced for each in members),
        "script_host": next((each.host for each in members if each.rank == 0), ""),
        "life": life[:SHOWN_EVENTS],
        "said": Markup("").join(said[-SHOWN_LINES:]),
        "counted": find_count(said),
        "run_bulk": _BULK,
    }


def find_count(lines: Sequence[str]) -> str:
    """Return the newest line of status that the supervisor's library logged for the script, as far as
    it is about hosts and processes; empty where there is none."""
    found = (_STATUS.search(line) for line in reversed(lines))
    return next((match[1] for match in found if match is not None), "")
