"""Notices: messages to people about their jobs, by mail and chat. Pure.

A notice target is a webhook (`core.webhooks.values`) whose body is a message for people, and whose
events are chosen by each job or project. So HOOK-1 and HOOK-2 hold of notices too.

NOTICE-1  A target is told of a job's moment once: the delivery of a moment that no event records has
          an id made of the job and the moment, and a hook never gets two deliveries of one id.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum

import msgspec

from holdfast.core.causes import Budget, Watchdog
from holdfast.core.records import EventRecord, Record
from holdfast.core.settings.resolve import parse_duration
from holdfast.core.webhooks.values import JobSummary, Subscription
from holdfast.errors import ValidationError

MAX_WISHES = 16
TAIL_LINES = 10
_LINE_CHARS = 300
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_ENDS: dict[str, str] = {
    "job.succeeded": "succeeded",
    "job.failed": "failed",
    "job.cancelled": "was cancelled",
}
_AGAIN = "job.requeued"
_TRIPPED = "task.tripped"
_STILL = "task.still"
IDLE_GPUS = "job.idle_gpus"
BUDGET_REACHED = "project.budget"
NOTED_EVENTS = (*_ENDS, _AGAIN, _TRIPPED, _STILL, IDLE_GPUS, BUDGET_REACHED)
"""The kinds of events that may become a notice."""
_STALLS = frozenset({Watchdog.STALL, Watchdog.GPU_HEALTH})
_FAILURES = frozenset({Budget.RETRIES, Budget.INFRA, Budget.WATCHDOG})


class NoticeKind(StrEnum):
    """The occasion of a notice. END: the job has ended. FAILURE: it, or an attempt of it, failed. STALL: a
    watchdog found or suspects that it stands still. FIRST_OUTPUT: it printed something. WAITS: it has waited for
    longer than asked. IDLE: its GPUs do nothing. BUDGET: its project has spent much of its budget."""

    END = "end"
    FAILURE = "failure"
    STALL = "stall"
    FIRST_OUTPUT = "first-output"
    WAITS = "waits"
    IDLE = "idle"
    BUDGET = "budget"


_MOMENTS = frozenset({NoticeKind.FIRST_OUTPUT, NoticeKind.WAITS})
DEFAULT_KINDS = frozenset(NoticeKind) - _MOMENTS


class Wish(Record, frozen=True, kw_only=True):
    """The occasions on which one target is told of a job. waits_seconds: set with WAITS."""

    target: str
    kinds: frozenset[NoticeKind] = DEFAULT_KINDS
    waits_seconds: float | None = None


def read_wish(text: str) -> Wish:
    """Read `TARGET[:KIND,…]`, as `ops` or `ops:end,waits=10m`. Raises ValidationError."""
    target, colon, said = text.partition(":")
    if not _NAME.fullmatch(target):
        raise _refuse(f"{target[:64]!r} is no name of a target")
    if not colon:
        return Wish(target=target)
    kinds, seconds = set[NoticeKind](), None
    for word in said.split(","):
        name, equals, value = word.partition("=")
        try:
            kind = NoticeKind(name)
            seconds = parse_duration(value) if kind is NoticeKind.WAITS else seconds
        except ValueError:
            known = ", ".join(k if k is not NoticeKind.WAITS else "waits=10m" for k in NoticeKind)
            raise _refuse(f"{word[:64]!r} is none of: {known}") from None
        if equals and kind is not NoticeKind.WAITS:
            raise _refuse(f"{name} takes no value")
        kinds.add(kind)
    return Wish(target=target, kinds=frozenset(kinds), waits_seconds=seconds)


def _refuse(what: str) -> ValidationError:
    example = "write TARGET or TARGET:KIND,…, as ops:failure,waits=10m"
    return ValidationError(f"notify: {what}; {example}", field="notify")


def read_wishes(of_job: Sequence[str], of_project: str = "") -> dict[str, Wish]:
    """Return target → the wish for it. of_project: the project's wishes, a text with spaces between
    them. of_job: the job's wishes, which take the place of the project's for the same target.
    Raises ValidationError."""
    found = [read_wish(text) for text in (*of_project.split(), *of_job)]
    if len(found) > MAX_WISHES:
        raise _refuse(f"{len(found)} targets are more than {MAX_WISHES}")
    return {wish.target: wish for wish in found}


class NotedJob(JobSummary, frozen=True, kw_only=True):
    """A job, and what its notices need. wishes, project_wishes: what is told of it to which target.

    log_tail: the last lines of the attempt that ended last, which its host has redacted.
    waited_seconds: how long it has been without a host, None while it has one. has_output: a byte of
    its output came.
    """

    wishes: tuple[str, ...] = ()
    project_wishes: str = ""
    log_tail: str = ""
    waited_seconds: float | None = None
    has_output: bool = False


class Notice(Record, frozen=True, kw_only=True):
    """A message as it is sent: the body of a delivery. failed: it tells of something bad."""

    title: str
    text: str
    failed: bool = False


def find_wish(hook: Subscription, job: NotedJob) -> Wish | None:
    """Return the wish of a job for this target, None where the target is to be told nothing."""
    if hook.project not in (None, job.project):
        return None
    try:
        return read_wishes(job.wishes, job.project_wishes).get(hook.name)
    except ValidationError:
        return None  # a later version's words, because a submission refuses what is unknown to it


def list_kinds(event: EventRecord) -> frozenset[NoticeKind]:
    """Return the kinds of news that an event is, in the words of wishes."""
    if event.kind in _ENDS:
        failed = {NoticeKind.FAILURE} if event.kind == "job.failed" else set()
        return frozenset({NoticeKind.END, *failed})
    if event.kind == _AGAIN and event.data.get("charged_to") in _FAILURES:
        return frozenset({NoticeKind.FAILURE})
    if event.kind == _TRIPPED and event.data.get("watchdog") in _STALLS:
        return frozenset({NoticeKind.STALL})
    if event.kind in _MOMENTS:
        return frozenset({NoticeKind(event.kind)})
    told = {
        _STILL: NoticeKind.STALL,
        IDLE_GPUS: NoticeKind.IDLE,
        BUDGET_REACHED: NoticeKind.BUDGET,
    }.get(event.kind)
    return frozenset() if told is None else frozenset({told})


def list_moments(hook: Subscription, job: NotedJob, at: datetime) -> list[EventRecord]:
    """Return the moments of a job that no event records and that this target is to be told of, as
    events whose ids are the same at each look (NOTICE-1)."""
    wish = find_wish(hook, job)
    if wish is None:
        return []
    said: dict[NoticeKind, str] = {}
    if NoticeKind.FIRST_OUTPUT in wish.kinds and job.has_output:
        said[NoticeKind.FIRST_OUTPUT] = "its first output came"
    waited, limit = job.waited_seconds, wish.waits_seconds
    if limit is not None and waited is not None and waited >= limit:
        said[NoticeKind.WAITS] = f"it has waited for more than {limit:g} s: {job.reason}"
    return [
        EventRecord(
            id=name_moment(kind, job),
            at=at,
            kind=kind,
            job_id=job.id,
            project=job.project,
            message=message,
        )
        for kind, message in said.items()
    ]


def name_moment(kind: NoticeKind, job: NotedJob) -> str:
    """Return the id of a moment: of the first output one for each job, of a wait one for each
    attempt that it is for."""
    return f"{kind}:{job.id}" + (f":{job.attempt}" if kind is NoticeKind.WAITS else "")


def write_notice(
    hook: Subscription, event: EventRecord, job: JobSummary | None, url: str
) -> str | None:
    """Return the body of a notice about an event; None where the target is not to be told of the
    event. url: the address where people reach the controller; empty where none is set."""
    if event.kind == BUDGET_REACHED:
        return _write_of_project(hook, event)
    if not isinstance(job, NotedJob):
        return None
    kinds, wish = list_kinds(event), find_wish(hook, job)
    if wish is None or not kinds & wish.kinds:
        return None
    tripped = event.kind == _AGAIN and event.data.get("charged_to") == Budget.WATCHDOG
    if tripped and NoticeKind.STALL in wish.kinds:
        return None  # the trip was told a moment ago
    failed = bool(kinds & {NoticeKind.FAILURE, NoticeKind.STALL, NoticeKind.IDLE})
    parts = [event.message or job.reason, f"project {job.project}, queue {job.queue}"]
    if failed and event.kind not in (_TRIPPED, IDLE_GPUS) and job.log_tail:
        lines = job.log_tail.rstrip().splitlines()[-TAIL_LINES:]
        parts.append(
            "\n".join(["The last lines of its output:", *(one[:_LINE_CHARS] for one in lines)])
        )
    parts.append(f"holdfast show {job.id}")
    if url:
        parts.append(f"{url.rstrip('/')}/v1/jobs/{job.id}")
    notice = Notice(title=f"{job.name}: {_say_kind(event)}", text="\n\n".join(parts), failed=failed)
    return msgspec.json.encode(notice).decode()


def _write_of_project(hook: Subscription, event: EventRecord) -> str | None:
    """Return the body of a notice about a project, whose wishes its event carries (`notify`)."""
    if hook.project not in (None, event.project):
        return None
    try:
        wish = read_wishes((), str(event.data.get("notify") or "")).get(hook.name)
    except ValidationError:
        return None
    if wish is None or not list_kinds(event) & wish.kinds:
        return None
    text = f"{event.message}\n\nholdfast report --project {event.project} --by job"
    title = f"project {event.project}: its budget"
    return msgspec.json.encode(Notice(title=title, text=text, failed=True)).decode()


def _say_kind(event: EventRecord) -> str:
    said = {
        IDLE_GPUS: "its GPUs are idle",
        _AGAIN: "an attempt failed, and it is tried again",
        _TRIPPED: "it stood still and was stopped",
        _STILL: "it seems to stand still",
        NoticeKind.FIRST_OUTPUT: "first output",
        NoticeKind.WAITS: "still waiting",
    }
    return _ENDS.get(event.kind) or said[event.kind]
