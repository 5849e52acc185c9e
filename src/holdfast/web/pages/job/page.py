"""One job: its attempts as a timeline, why it is where it is, its ranks, output, events and spec."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import msgspec
import yaml

from holdfast.client.methods.jobs import JobMethods
from holdfast.core.progress.pace import Estimate
from holdfast.core.records import AttemptRecord, JobRecord
from holdfast.core.states import TaskState
from holdfast.errors import NotFound
from holdfast.web.page import Page, PageRequest, read_items, together
from holdfast.wire.api import ForensicsView, JobView

TABS = ("output", "ranks", "stacks", "files", "events", "spec")
SHOWN_EVENTS = 200
SHOWN_ATTEMPTS = 20
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
WIDTH = 1000
"""The width of a timeline in units of its picture."""


class PhaseBar(msgspec.Struct, frozen=True, kw_only=True):
    """A phase of an attempt in the timeline: where it begins, how wide it is, and its words."""

    x: float
    width: float
    hue: str
    words: str


class AttemptRow(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt in the timeline, with the phases before and in it."""

    attempt: AttemptRecord
    bars: Sequence[PhaseBar]
    hue: str
    verdict: str


async def show(ask: PageRequest) -> Page:
    """Make the page. Raises NotFound."""
    reader, job_id = ask.reader, ask.params["job"]
    view, attempts, tasks, why, right = await together(
        reader.job(job_id),
        reader.attempts(job_id),
        reader.tasks(job_id),
        reader.why(job_id),
        reader.session_right(job_id),
    )
    tab = ask.query.get("tab", "output")
    if tab not in TABS:
        raise NotFound(f"a job's page has no part {tab[:32]!r}; it has {', '.join(TABS)}")
    ended = attempts[-1] if attempts and not tasks else None
    values = {
        "job": view,
        "command": view.spec.shell or shlex.join(view.spec.argv),
        "attempts": attempts,
        "rows": draw_timeline(view, attempts[-SHOWN_ATTEMPTS:], ask.now),
        "hidden": max(0, len(attempts) - SHOWN_ATTEMPTS),
        "tasks": tasks,
        "members": ended.members if ended is not None else (),
        "why": why,
        "may_enter": right.allowed and any(each.state == TaskState.RUNNING for each in tasks),
        "estimate": estimate(view, attempts, ask.now),
        "tab": tab,
        "tabs": TABS,
        "rank": ask.query.get("rank", ""),
        "attempt": ask.query.get("attempt", ""),
        "find": ask.query.get("find", ""),
        "span": read_span(ask),
        **await _read_tab(ask, view, tab),
    }
    return Page(
        template="job.html",
        title=view.name,
        values=values,
        follows=(f"job:{view.id}",),
        every=0 if view.state.terminal else 5,
    )


def read_span(ask: PageRequest) -> tuple[datetime, datetime] | None:
    """Return the time that the rest of the page is about, where a bar of the timeline was clicked."""
    times = [ask.query.get(name, "") for name in ("begin", "until")]
    if not all(text.isascii() and text.isdigit() and len(text) <= 17 for text in times):
        return None
    begin, until = (_EPOCH + timedelta(microseconds=int(text)) for text in times)
    return begin, until


async def _read_tab(ask: PageRequest, job: JobView, tab: str) -> dict[str, object]:
    reader = ask.reader
    if tab == "events":
        call = JobMethods.events(reader, job_id=job.id, tail=SHOWN_EVENTS)
        return {"events": list(reversed(await read_items(reader, call)))}
    if tab == "stacks":
        return {"stacks": group_stacks(await reader.forensics(job.id))}
    if tab == "files":
        checkpoints, streams = await together(
            reader.checkpoints(job.id), reader.log_streams(job.id)
        )
        return {"checkpoints": checkpoints, "streams": streams}
    if tab == "spec":
        built = msgspec.to_builtins(job.spec)
        return {"spec": yaml.safe_dump(built, sort_keys=False, allow_unicode=True)}
    return {}


class StackGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Ranks of one attempt that stood at the same place."""

    attempt: int
    reason: str
    part: str
    ranks: list[int]
    text: str


def group_stacks(views: Sequence[ForensicsView]) -> list[StackGroup]:
    """Group what was gathered before kills: ranks with the same text share a group."""
    groups: dict[tuple[int, str, str], StackGroup] = {}
    for view in views:
        for part, text in view.sections.items():
            key = (view.attempt, part, text)
            group = groups.setdefault(
                key,
                StackGroup(
                    attempt=view.attempt, reason=view.reason, part=part, ranks=[], text=text
                ),
            )
            group.ranks.append(view.rank)
    return list(groups.values())


def estimate(job: JobRecord, attempts: Sequence[AttemptRecord], now: datetime) -> Estimate | None:
    """Return how far the job is: its step, and the rate of the attempt that runs."""
    if job.step is None:
        return None
    running = attempts[-1] if attempts else None
    before = max((a.step or 0 for a in attempts[:-1]), default=0)
    rate = None
    if running is not None and running.started_at is not None and job.beat_at is not None:
        seconds = (job.beat_at - running.started_at).total_seconds()
        done = job.step - min(before, job.step)
        rate = done / seconds if seconds > 0 and done > 0 else None
    left = None
    if job.total is not None and rate and not job.state.terminal:
        left = max(0, job.total - job.step) / rate
    return Estimate(job.step, job.total, rate, left)


def draw_timeline(
    job: JobRecord, attempts: Sequence[AttemptRecord], now: datetime
) -> list[AttemptRow]:
    """Return a row for each attempt, all on one scale from the submission, or from the first attempt
    that is shown, to now or the job's end."""
    if not attempts:
        return []
    first = job.created_at if attempts[0].number == 1 else attempts[0].reserved_at
    last = job.ended_at or now
    scale = WIDTH / max((last - first).total_seconds(), 0.001)

    def bar(begin: datetime, end: datetime, hue: str, words: str) -> PhaseBar:
        x = max(0.0, (begin - first).total_seconds() * scale)
        width = max(1.5, (end - begin).total_seconds() * scale)
        return PhaseBar(
            x=round(x, 1), width=round(min(width, WIDTH - x + 1.5), 1), hue=hue, words=words
        )

    rows, waits_from = [], first
    for attempt in attempts:
        ended = attempt.ended_at or last
        started = attempt.started_at or ended
        bars = []
        if (attempt.reserved_at - waits_from).total_seconds() > 0.05:
            bars.append(bar(waits_from, attempt.reserved_at, "waiting", "waited"))
        bars.append(bar(attempt.reserved_at, started, "starting", "started up"))
        if attempt.started_at is not None:
            hue = "draining" if attempt.state == "draining" else "running"
            bars.append(bar(started, ended, hue, "ran"))
        verdict = str(attempt.outcome or attempt.state)
        hue = {"succeeded": "done", "failed": "failed", "expired": "failed"}.get(
            verdict, "draining"
        )
        if attempt.outcome is None:
            hue = "running"
        rows.append(AttemptRow(attempt=attempt, bars=bars, hue=hue, verdict=verdict))
        waits_from = ended
    return rows
