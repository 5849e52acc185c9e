"""One job: its attempts as a timeline, why it is where it is, its ranks, output, events and spec."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import msgspec

from holdfast.client.methods.jobs import JobMethods
from holdfast.core.arrays.records import ArrayRecord
from holdfast.core.progress.pace import estimate, find_still
from holdfast.core.records import AttemptRecord
from holdfast.core.states import JobState
from holdfast.core.stragglers.records import SuspectRecord
from holdfast.errors import NotFound
from holdfast.web.page import Page, PageRequest, read_items, together, write_yaml
from holdfast.web.pages.events import join_alike
from holdfast.web.pages.job.files import read_files
from holdfast.web.pages.job.gang import find_slow, group_ranks, read_ranks, say_evidence, say_fall
from holdfast.web.pages.job.readings import read_readings
from holdfast.web.pages.job.run import read_run
from holdfast.web.pages.job.timeline import draw_timeline
from holdfast.web.pages.jobs import show_array
from holdfast.web.words import write_number
from holdfast.wire.api import ForensicsView, JobView, Why

TABS = ("output", "ranks", "readings", "stacks", "files", "events", "spec")
FEW_RANKS = 64
WHY_SECONDS = 0.3
_PARTS_FIRST = ("verdict", "python stacks", "processes")
"""The parts of what a watchdog gathered that a person reads first."""
SHOWN_EVENTS = 200
SHOWN_ATTEMPTS = 20
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


async def show(ask: PageRequest) -> Page:
    """Make the page. Raises NotFound."""
    reader, job_id = ask.reader, ask.params["job"]
    try:
        view = await reader.job(job_id)
    except NotFound:
        array = await _find_array(ask, job_id)
        if array is None:
            raise
        return await show_array(ask, array)
    tabs = ("run", *TABS) if view.spec.supervised else TABS
    tab = ask.query.get("tab") or tabs[0]
    if tab not in tabs:
        raise NotFound(f"a job's page has no part {tab[:32]!r}; it has {', '.join(tabs)}")
    few = view.tasks <= FEW_RANKS  # a large gang has thousands of members in every attempt
    attempts, why, suspects, right = await together(
        reader.attempts(view.id) if few else reader.attempts(view.id, last=SHOWN_ATTEMPTS),
        _read_why(ask, view.id),
        reader.suspects(view.id),
        reader.session_right(view.id),
    )
    slow = find_slow(suspects, view.attempts)
    beaten_ago = ask.now - (view.beat_at or ask.now)
    values = {
        "job": view,
        "command": view.spec.shell or shlex.join(view.spec.argv),
        "rows": draw_timeline(view, attempts[-SHOWN_ATTEMPTS:], ask.now),
        "hidden": max(0, view.attempts - SHOWN_ATTEMPTS),
        "why": why,
        "parked": is_parked(view, why),
        "cancel_ask": ask_cancel(view),
        **(split_why(why, slow) if why else {}),
        "may_enter": right.allowed and view.state is JobState.RUNNING,
        "slow": slow,
        "estimate": estimate(view.step, view.total, view.rate, beaten_ago.total_seconds()),
        "still": find_still(view.beat_at, view.moved_at),
        "retries": say_retries(view),
        "tab": tab,
        "tabs": tabs,
        "rank": ask.query.get("rank", ""),
        "attempt": ask.query.get("attempt", ""),
        "find": ask.query.get("find", ""),
        "span": read_span(ask),
        **await _read_tab(ask, view, tab, suspects, attempts),
    }
    return Page(
        template="job.html",
        title=view.name,
        values=values,
        follows=(f"job:{view.id}",),
        every=0 if view.state.terminal else 5 if few else 15,
    )


async def _find_array(ask: PageRequest, array_id: str) -> ArrayRecord | None:
    """Return the array of this id, which `submit --array` prints in place of a job's."""
    try:
        return await ask.reader.array(array_id)
    except NotFound:
        return None


async def _read_why(ask: PageRequest, job_id: str) -> Why | None:
    """Return why a job is where it is; None where that takes longer than a person should wait for a
    page, as where its start is planned among a hundred thousand jobs."""
    reading = asyncio.ensure_future(ask.reader.why(job_id))
    if not ask.hurry:
        return await reading
    done, _ = await asyncio.wait((reading,), timeout=WHY_SECONDS)
    if done:
        return reading.result()
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    return None


def is_parked(job: JobView, why: Why | None) -> bool:
    """Return whether the job, or one of its members, waits for a person to try it again."""
    lines = why.lines if why else []
    return job.wait_cause == "parked" or any(line.code == "member_parked" for line in lines)


def ask_cancel(job: JobView) -> str:
    """Return the sentence with which a person is asked whether the job is to be cancelled."""
    stopped = f"{job.tasks} ranks are" if job.tasks > 1 else "1 task is"
    step = "" if job.step is None else f" It has reached step {write_number(job.step)}."
    return (
        f"A cancel cannot be undone: its {stopped} stopped, and the job does not start again by itself."
        f"{step}"
    )


def split_why(why: Why, slow: Sequence[SuspectRecord]) -> dict[str, object]:
    """Return the hints that belong to the summary of `why`, and the other reasons, without those that
    stand below as slow ranks."""
    said = {why.summary, *(each.message for each in slow)}
    return {
        "hints": [line.hint for line in why.lines if line.message == why.summary and line.hint],
        "others": [line for line in why.lines if line.message not in said],
    }


def say_retries(job: JobView) -> str:
    """Return how many retries a job has used, what comes next where it waits for that, and which other
    ends it had, as `1 of 3 used; 1 end charged to hosts`."""
    state = job.retry_state
    if state is None or job.attempts == 0:
        return state.sentence if state else f"up to {job.max_retries}"
    allowed, after = state.of - 1, state.sentence.partition(", ")[2]
    said = [f"{allowed - state.retries_left} of {allowed} used" if allowed else "none allowed"]
    said += [after] if job.state in (JobState.WAITING, JobState.QUEUED) else []
    for count, whom in ((job.infra_charged, "hosts"), (job.watchdog_charged, "watchdogs")):
        said += [f"{count} {'end' if count == 1 else 'ends'} charged to {whom}"] if count else []
    return "; ".join(said)


def read_span(ask: PageRequest) -> tuple[datetime, datetime] | None:
    """Return the time that the rest of the page is about, where a bar of the timeline was clicked."""
    times = [ask.query.get(name, "") for name in ("begin", "until")]
    if not all(text.isascii() and text.isdigit() and len(text) <= 17 for text in times):
        return None
    begin, until = (_EPOCH + timedelta(microseconds=int(text)) for text in times)
    return begin, until


async def _read_tab(
    ask: PageRequest,
    job: JobView,
    tab: str,
    suspects: Sequence[SuspectRecord],
    attempts: Sequence[AttemptRecord],
) -> dict[str, object]:
    reader = ask.reader
    if tab == "run":
        return await read_run(ask, job, attempts, read_span(ask))
    if tab == "ranks":
        ranks, members, number = await read_ranks(ask)
        return {
            "ranks": ranks,
            "live": not members,
            "rank_rows": group_ranks(ranks),
            "ranks_attempt": number,
            "fall": say_fall(members),
            "suspects": suspects,
            "say_evidence": say_evidence,
        }
    if tab == "readings":
        return await read_readings(ask, job, read_span(ask))
    if tab == "events":
        call = JobMethods.events(reader, job_id=job.id, tail=SHOWN_EVENTS)
        events = list(reversed(await read_items(reader, call)))
        span = read_span(ask)
        if span is not None:
            events = [event for event in events if span[0] <= event.at <= span[1]]
        return {"events": join_alike(events)}
    if tab == "stacks":
        return {"stacks": group_stacks(await reader.forensics(job.id))}
    if tab == "files":
        return await read_files(ask, keeps=bool(job.spec.outputs))
    if tab == "spec":
        return {"spec": write_yaml(job.spec)}
    return {}


class StackGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Ranks of one attempt that stood at the same place."""

    attempt: int
    reason: str
    part: str
    ranks: list[int]
    text: str


def group_stacks(views: Sequence[ForensicsView]) -> list[StackGroup]:
    """Group the evidence that was gathered before kills, with the parts that a person reads first
    at the front: ranks with the same text share a group."""
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
    order = {part: at for at, part in enumerate(_PARTS_FIRST)}
    return sorted(groups.values(), key=lambda each: order.get(each.part, len(order)))
