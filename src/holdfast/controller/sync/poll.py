"""Decide how one sync of a host goes on: the question to the store, how long the call waits, when
it is answered, and which loops its outcome wakes. Pure; `route.py` carries it out.

POLL-1  A sync with news for the agent is answered at once. Otherwise it waits for the host's wake,
        for a newer call of the same agent, for its time (never longer than the sync interval, so
        that heartbeats keep flowing), or for the client to hang up, whichever is first.
POLL-2  A wake asks the store again with the same identity and without ends, because the first
        question recorded them. A call that a newer one has overtaken asks nothing and returns
        nothing, because its agent no longer listens.
POLL-3  A client that hung up is never asked for again, so nothing is offered to an agent that
        cannot receive it.
"""

import msgspec

from holdfast.core.watchdogs.watch import ASK_AGAIN_SECONDS
from holdfast.moves.values import HostSync, HostSynced
from holdfast.wire import agent as wire

ROOM_SECONDS = 0.2
"""How long admission waits before it looks at the room that failed tasks have left, because the
completion of their drain mostly wakes it before."""


class Poll(msgspec.Struct, frozen=True):
    """A call under way. report: the host's state and ends, for the first question. again: the same
    host without ends, for each later one. until: when the call is answered in any case, in seconds of
    the controller's clock."""

    report: HostSync
    again: HostSync
    until: float


class Moment(msgspec.Struct, frozen=True):
    """The moment at which a call decides. now: seconds of the controller's clock. newest: no newer
    call of this agent has come. closing: the server shuts down."""

    now: float
    newest: bool
    closing: bool


class Wakes(msgspec.Struct, frozen=True):
    """Topics that an outcome wakes: at once; on this replica alone; and after `ROOM_SECONDS`."""

    at_once: tuple[str, ...] = ()
    here: tuple[str, ...] = ()
    later: tuple[str, ...] = ()


def begin_poll(report: HostSync, *, newest: bool, now: float, seconds: float) -> Poll:
    """Return the state of a sync call that has just come. newest: as in `Moment`. seconds: how long
    it may wait at most; a host that leaves, and a call that came out of turn, waits for nothing."""
    again = HostSync(
        host_id=report.host_id,
        incarnation=report.incarnation,
        live=report.live,
        claimed=report.claimed,
    )
    return Poll(report, again, now + (seconds if newest and not report.leaving else 0.0))


def choose_wait(poll: Poll, answer: wire.SyncAnswer, look: Moment) -> float | None:
    """Return the seconds for which the call waits for a wake, or None where the call is answered
    now. A newer call may have come while this one was in the store, when nothing waited that the
    newer one could have woken; so the look at newer calls comes after the question to the store."""
    left = poll.until - look.now
    done = says_something(answer) or left <= 0 or look.closing or not look.newest
    return None if done else left


def asks_again(look: Moment, *, woken: bool) -> bool:
    """Return whether the call asks the store once more after its wait (POLL-2)."""
    return woken and look.newest and not look.closing


def says_something(answer: wire.SyncAnswer) -> bool:
    """Return whether an answer holds anything that its agent would act on."""
    orders = answer.claim or answer.launch or answer.preempt or answer.watch
    asked = answer.reads or answer.sessions
    excuses = any(each.seconds > ASK_AGAIN_SECONDS for each in answer.excused)
    found = answer.lost or answer.acked or answer.refused
    return bool(orders or asked or found or excuses)


def choose_wakes(found: HostSynced, *, runs: bool) -> Wakes:
    """Return the topics with work after the store has answered. runs: the report had a running task,
    of which followers of events on this replica hear."""
    at_once = [f"host:{host_id}" for host_id in found.opened]
    if found.draining:
        at_once += ["drain", "events"]
    if not found.succeeded and not found.acked:
        return Wakes(tuple(at_once), here=("events",) if runs else ())
    if {key.job_id for key in found.acked} - {*found.succeeded, *found.draining}:
        at_once.append("members")  # of supervised jobs
    if found.posted:
        at_once.append("workflows")
    # Readers of a log whose last bytes came before its end wait for "logs".
    at_once += ["events", "logs"]
    if found.awaited:
        at_once.append("ended")
    if found.succeeded and not found.settled:
        at_once.append("admit")
    later = () if "admit" in at_once or found.settled else ("admit",)
    return Wakes(tuple(dict.fromkeys(at_once)), later=later)
