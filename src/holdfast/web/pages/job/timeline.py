"""The attempts of a job as a timeline: a bar for each phase. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

import msgspec

from holdfast.core.ledger.values import LedgerName
from holdfast.core.records import AttemptRecord, JobRecord
from holdfast.web.words import write_number, write_span
from holdfast.wire.states import find_hue

WIDTH = 1000
"""The width of a timeline in units of its picture."""
LEAST_SECONDS = 0.05


class PhaseBar(msgspec.Struct, frozen=True, kw_only=True):
    """A phase of an attempt in the timeline: where it begins, how wide it is, its words, and its time,
    by which a click filters the rest of the page."""

    x: float
    width: float
    hue: str
    words: str
    begin: datetime
    end: datetime


class AttemptRow(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt in the timeline, with the phases before and in it. said: what is told beside the
    verdict, in the words of the command line."""

    attempt: AttemptRecord
    bars: Sequence[PhaseBar]
    hue: str
    verdict: str
    said: Sequence[str] = ()


class _Phase(msgspec.Struct, frozen=True):
    begin: datetime
    end: datetime
    hue: str
    words: str


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

    def bar(phase: _Phase) -> PhaseBar:
        x = max(0.0, (phase.begin - first).total_seconds() * scale)
        seconds = (phase.end - phase.begin).total_seconds()
        width = max(1.5, seconds * scale)
        return PhaseBar(
            x=round(x, 1),
            width=round(min(width, WIDTH - x + 1.5), 1),
            hue=phase.hue,
            words=f"{phase.words} {write_span(max(0.0, seconds))}",
            begin=phase.begin,
            end=phase.end,
        )

    rows, before = [], None
    for attempt in attempts:
        waits = _list_waits(before, first, attempt)
        phases = [each for each in [*waits, *_list_phases(job, attempt, last)] if _lasts(each)]
        verdict = str(attempt.outcome or attempt.state)
        rows.append(
            AttemptRow(
                attempt=attempt,
                bars=[bar(phase) for phase in phases],
                hue=find_hue(verdict),
                verdict=verdict,
                said=_list_facts(attempt),
            )
        )
        before = attempt
    return rows


def _lasts(phase: _Phase) -> bool:
    return phase.hue != "waiting" or (phase.end - phase.begin).total_seconds() > LEAST_SECONDS


def _list_waits(
    before: AttemptRecord | None, first: datetime, attempt: AttemptRecord
) -> list[_Phase]:
    """Return the waits before an attempt: the back-off of the attempt before, and the queue."""
    begin = first if before is None else before.ended_at or first
    due = None if before is None else before.next_at
    if due is None or due <= begin:
        return [_Phase(begin, attempt.reserved_at, "waiting", "queued")]
    due = min(due, attempt.reserved_at)
    return [
        _Phase(begin, due, "waiting backed", "backed off"),
        _Phase(due, attempt.reserved_at, "waiting", "queued"),
    ]


def _list_phases(job: JobRecord, attempt: AttemptRecord, last: datetime) -> list[_Phase]:
    """Return the phases of an attempt. How long it loaded and drained is known from what its first
    rank told at its end; while it goes on, from its first beat and from the job.

    An attempt that goes on without a beat loads, unless its program sends none. That is known at its
    end: then all of this time is that in which it ran.
    """
    ended = attempt.ended_at or last
    started = attempt.started_at
    phases = [_Phase(attempt.reserved_at, started or ended, "starting", "setting up")]
    if started is None:
        return phases
    spent, loading = _read_tally(attempt), "loading"
    works = min(ended, started + timedelta(milliseconds=spent.get(LedgerName.LOADING, 0)))
    if attempt.ended_at is None and attempt.first_beat_at is not None:
        works = max(started, min(ended, attempt.first_beat_at))
    elif attempt.ended_at is None and attempt.state != "draining":
        works, loading = ended, "no beat yet" if job.best_step is None else "loading, no beat yet"
    drains = ended - timedelta(milliseconds=spent.get(LedgerName.DRAINING, 0))
    if attempt.ended_at is None:
        drains = job.drain_since if job.drain_since and attempt.state == "draining" else ended
    drains = max(works, min(ended, drains))
    stalls = max(works, drains - timedelta(milliseconds=spent.get(LedgerName.STALLED, 0)))
    if works > started:
        phases.append(_Phase(started, works, "starting n-loading", loading))
    if stalls > works or works == started:
        phases.append(_Phase(works, stalls, "running", "ran" if attempt.ended_at else "running"))
    if drains > stalls:
        phases.append(_Phase(stalls, drains, "failed n-stalled", "silent before a watchdog's trip"))
    if ended > drains:
        phases.append(_Phase(drains, ended, "draining", "draining"))
    return phases


def _read_tally(attempt: AttemptRecord) -> dict[str, int]:
    for member in attempt.members:
        if member.facts is not None and member.facts.tally is not None:
            return dict(member.facts.tally.ms)
    return {}


def _list_facts(attempt: AttemptRecord) -> list[str]:
    """Return what the command line's table of attempts says beside an outcome."""
    said = []
    if attempt.cause is not None:
        said.append(attempt.cause.value.replace("_", " "))
    if attempt.charged_to:
        said.append(f"charged to {attempt.charged_to}")
    if attempt.exit_code is not None:
        said.append(f"exit code {attempt.exit_code}")
    if attempt.host and not (attempt.outcome and attempt.host in attempt.reason):
        said.append(f"on {attempt.host}")
        said += [] if attempt.step is None else [f"step {write_number(attempt.step)}"]
    return said
