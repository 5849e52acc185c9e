"""The state of each thing as a person is told it: one word, its hue, one sentence, and whether it
needs a person. The command line, the pages, *Now* and `why` draw these, so that no two of them
contradict each other.

A thing without a function of its own here has its record's `state` and `reason`.
"""

import re
from datetime import UTC, datetime
from functools import singledispatch
from typing import Any

import msgspec

from holdfast.core.arrays.records import ScheduleRecord
from holdfast.core.host_faults import Hindrance
from holdfast.core.records import HostRecord, JobRecord, ProjectRecord, QueueRecord, TokenRecord
from holdfast.core.states import HUES, PARKED, HostState, Hue
from holdfast.core.webhooks.values import WebhookRecord, WebhookState
from holdfast.core.words import count_of, say_span
from holdfast.wire.api import HostView
from holdfast.wire.calls import CallSetView
from holdfast.wire.pools import PoolStatus
from holdfast.wire.webhooks import NoticeTarget

_SAYS_NOTHING = re.compile(r"submitted|registered|attempt \d+ runs|\d+ checks? passed")


class ShownState(msgspec.Struct, frozen=True):
    """A state for a reader. sentence: why the thing is in it, "" where that says no more than the
    word. needs_person: True where nothing goes on until a person acts."""

    word: str
    hue: Hue
    sentence: str = ""
    needs_person: bool = False


def find_hue(word: object) -> Hue:
    """Return the hue of a state's word."""
    return HUES.get(str(word), Hue.WAITING)


def find_reason(thing: Any) -> str:
    """Return why a thing is in its state; "" where its reason says no more than the state does."""
    said = str(getattr(thing, "reason", "") or "")
    return "" if said == str(thing.state) or _SAYS_NOTHING.fullmatch(said) else said


@singledispatch
def tell_state(thing: Any, now: datetime | None = None) -> ShownState:
    """Return the state of a record for a reader. now: the reader's time, for what is due."""
    return _tell(str(thing.state), find_reason(thing))


def _tell(
    word: str, sentence: str = "", *, needs: bool = False, hue: Hue | None = None
) -> ShownState:
    return ShownState(word, hue or find_hue(word), sentence, needs)


@tell_state.register
def _(job: JobRecord, now: datetime | None = None) -> ShownState:
    return _tell(str(job.state), find_reason(job), needs=job.wait_cause == PARKED)


@tell_state.register
def _(host: HostRecord, now: datetime | None = None) -> ShownState:
    """A host that works, though a part of it does not, is told by the part."""
    faults = "; ".join(_say_fault(fault) for fault in host.faults)
    state = host.state
    if isinstance(host, HostView) and host.dead:
        silent = "no sync came from it lately"
        return _tell("dead", f"{silent}; {host.reason}" if host.reason else silent, needs=True)
    if state is HostState.ACTIVE:
        aside = any(fault.part == "starts" for fault in host.faults)
        said = faults or find_reason(host)
        if aside:
            return _tell("aside", said, needs=True, hue=Hue.DRAINING)
        return _tell("active", said, needs=bool(faults))
    needs = state in (HostState.QUARANTINED, HostState.ERROR) or bool(faults)
    said = _say_host(host, now or datetime.now(UTC))
    return _tell(str(state), "; ".join(filter(None, (said, faults))), needs=needs)


def _say_host(host: HostRecord, now: datetime) -> str:
    if host.provider_says:
        return f"its provider says: {host.provider_says}"
    if host.drain_deadline is None:
        return find_reason(host)
    left = (host.drain_deadline - now).total_seconds()
    text = f"its tasks are stopped {f'in {say_span(left)}' if left > 0 else 'now'}"
    return f"{text}: {host.reason}" if host.reason else text


def _say_fault(fault: Hindrance) -> str:
    what = {"starts": "set aside", "containers": "no containers"}.get(fault.part)
    what = what or f"no calls of app {', '.join(fault.apps)}"
    devices = ", ".join(map(str, fault.devices))
    held = f" (GPU {devices} held)" if devices else ""
    return f"{what}{held}: {fault.reason}"


@tell_state.register
def _(pool: PoolStatus, now: datetime | None = None) -> ShownState:
    """A pool is held while it wants more hosts than it may rent."""
    if pool.deleted_at is not None:
        goes = "its hosts go as they fall idle, then it is forgotten"
        if pool.blocked:
            goes = f"{goes}; {pool.blocked} (or: pools delete --forget)"
        return _tell("deleted", goes, needs=bool(pool.blocked), hue=Hue.DRAINING)
    if pool.paused_at is not None:
        return _tell("paused", pool.paused_reason)
    said = "; ".join(filter(None, (pool.blocked, pool.quiet_reason, *pool.provider_says)))
    if pool.blocked:
        return _tell("held", said, needs=True, hue=Hue.DRAINING)
    return _tell("ready", said, needs=bool(said), hue=Hue.RUNNING)


@tell_state.register
def _(queue: QueueRecord, now: datetime | None = None) -> ShownState:
    """A paused queue needs a person while jobs wait in it."""
    if queue.paused_at is None:
        return _tell("open")
    waiting = queue.waiting + queue.queued
    count = f"{count_of(waiting, 'job waits', 'jobs wait')} in it" if waiting else ""
    said = "; ".join(filter(None, (queue.paused_reason, count)))
    return _tell("paused", said, needs=bool(waiting))


@tell_state.register
def _(project: ProjectRecord, now: datetime | None = None) -> ShownState:
    if project.held:
        return _tell("held", project.held, needs=True, hue=Hue.DRAINING)
    return _tell("open")


@tell_state.register
def _(schedule: ScheduleRecord, now: datetime | None = None) -> ShownState:
    if schedule.paused_at is not None:
        return _tell("paused", schedule.paused_reason)
    return _tell("in force", hue=Hue.RUNNING)


@tell_state.register(NoticeTarget)
@tell_state.register(WebhookRecord)
def _(hook: WebhookRecord | NoticeTarget, now: datetime | None = None) -> ShownState:
    """A webhook or a notice target. Deliveries that were given up wait for a person to send them
    again."""
    dead = f"{count_of(hook.dead, 'delivery was', 'deliveries were')} given up after the last try"
    said = "; ".join(filter(None, (find_reason(hook), dead if hook.dead else "")))
    paused = hook.state is WebhookState.PAUSED
    return _tell(str(hook.state), said, needs=paused or bool(hook.dead))


@tell_state.register
def _(token: TokenRecord, now: datetime | None = None) -> ShownState:
    if token.revoked_at is not None:
        return _tell("revoked", hue=Hue.GONE)
    if token.role == "join" and token.used_at is not None:
        return _tell("used", hue=Hue.GONE)
    now = now or datetime.now(UTC)
    over = token.expires_at is not None and token.expires_at <= now
    return _tell("expired", hue=Hue.GONE) if over else _tell("in force", hue=Hue.RUNNING)


@tell_state.register
def _(calls: CallSetView, now: datetime | None = None) -> ShownState:
    """A set of calls, in the words of jobs."""
    if calls.state == "open":
        waits = calls.submitted > calls.succeeded + calls.failed + calls.cancelled
        return _tell("running" if calls.running else "queued" if waits else "open")
    if calls.failed or calls.cut:
        return _tell("failed", calls.cut)
    return _tell("cancelled" if calls.cancelled else "succeeded")
