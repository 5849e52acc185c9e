"""explain(circumstances) → Why: everything that holds a job, a sentence each, and what to do about
it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime

from holdfast.controller.why.circumstances import Circumstances
from holdfast.controller.why.gangs import (
    explain_claims,
    explain_failed_starts,
    explain_last_attempt,
    explain_members,
    explain_parked,
    explain_place,
    explain_room_made,
    explain_start_error,
    explain_unconfirmed,
    say_steps,
    say_trigger,
)
from holdfast.controller.why.retries import (
    explain_hold,
    explain_progress,
    explain_quota,
    explain_retry,
    say_span,
)
from holdfast.core.causes import Cause
from holdfast.core.placement.preemption import find_winner
from holdfast.core.placement.ranks import name_ranks, say_names
from holdfast.core.states import JobState
from holdfast.wire.api import Why, WhyLine

_BESIDES = frozenset({"behind", "dead_hosts", "may_make_room"})
"""What is true beside the reason why admission passed a job over, and never that reason."""


def explain(found: Circumstances) -> Why:
    """Say why the job is where it is."""
    job = found.job
    lines = list(_SAYERS[job.state](found))
    summary = lines[0].message if lines else (job.reason or str(job.state))
    return Why(job_id=job.id, state=job.state, summary=summary, lines=lines)


def _explain_waiting(found: Circumstances) -> Iterator[WhyLine]:
    job = found.job
    until = f" until {job.wait_until:%Y-%m-%d %H:%M:%S} UTC" if job.wait_until else ""
    left = (
        f" ({say_span((job.wait_until - found.now).total_seconds())} from now)"
        if job.wait_until
        else ""
    )
    if job.wait_cause == "start_time":
        yield WhyLine(
            code="waiting_start_time",
            message=f"it waits for its start time{until}{left}",
            hint="submit it without a start time to run it at once",
        )
    elif job.wait_cause == "parked":
        yield from explain_parked(found)
    elif job.wait_cause == "back_off" and job.start_failures and job.cause is Cause.START_TIMEOUT:
        yield from explain_failed_starts(found, lambda due: _say_due(due, found.now))
        yield from explain_hold(found, "it will be held")
    elif job.wait_cause in ("back_off", "retries_held"):
        yield from explain_retry(found)
        yield from explain_start_error(found)
    elif job.wait_cause == "dependency":
        yield WhyLine(code="dependency", message=f"it waits for another job: {job.reason}")
    else:
        yield WhyLine(code=job.wait_cause or "held", message=f"it is held{until}: {job.reason}")
    yield from _explain_queue(found)
    yield from explain_quota(found)
    yield from explain_progress(found)


def _say_due(due: datetime, now: datetime) -> str:
    left = (due - now).total_seconds()
    return (
        f"at {due:%Y-%m-%d %H:%M:%S} UTC ({say_span(left)} from now)"
        if left > 0
        else "any moment now"
    )


def _explain_queue(found: Circumstances) -> Iterator[WhyLine]:
    job, queue = found.job, found.queue
    if queue is None:
        yield WhyLine(
            code="unknown_queue",
            message=f"its queue {job.queue} is gone",
            hint=f"make it again: holdfast queues set {job.queue}",
        )
        return
    if queue.paused_at is not None:
        because = f": {queue.paused_reason}" if queue.paused_reason else ""
        yield WhyLine(
            code="queue_paused",
            message=f"queue {job.queue} is paused{because}",
            hint=f"holdfast queues resume {job.queue}",
        )
    if isinstance(found.max_running, int) and queue.running >= found.max_running:
        yield WhyLine(
            code="max_running",
            message=f"queue {job.queue} runs {queue.running} jobs, and may run "
            f"{found.max_running} at once",
            hint=f"holdfast queues set {job.queue} max_running=N",
        )


def _explain_queued(found: Circumstances) -> Iterator[WhyLine]:
    held = [*explain_room_made(found), *_explain_holds(found)]
    if found.refusal and not {line.code for line in held} - _BESIDES:
        yield WhyLine(
            code="refused",
            message=f"the last admission passed it over: {found.refusal}",
            hint="where room is free it is held back for a job that waited longer; a --time-limit "
            "that ends in time may use it",
        )
    yield from held
    if not found.led:
        yield WhyLine(
            code="not_leading",
            message="this server does not run the loops; another does, or will within seconds",
        )
    yield from explain_last_attempt(found)
    yield from explain_progress(found)
    if not held:
        yield WhyLine(code="queued", message="it is next: admission takes it as soon as it looks")


def _explain_holds(found: Circumstances) -> Iterator[WhyLine]:
    """What keeps a queued job from starting now; nothing when it is simply next."""
    yield from _explain_queue(found)
    yield from explain_quota(found)
    yield from explain_place(found)
    if found.place:
        more = "10 000 or more" if found.place >= 10_000 else str(found.place)
        yield WhyLine(
            code="behind",
            message=f"{more} queued job{'s' * (found.place != 1)} of its queue "
            f"stand{'s' * (found.place == 1)} before it",
            hint="a higher priority moves it forward",
        )


def _explain_running(found: Circumstances) -> Iterator[WhyLine]:
    job = found.job
    where = say_names(t.host_name for t in found.tasks if t.host_name) or "?"
    beat = (
        "it has sent no beat"
        if job.beat_at is None
        else (
            f"its last beat was {say_span((found.now - job.beat_at).total_seconds())} ago"
            + (
                f" at step {job.step}" + (f" of {job.total}" if job.total else "")
                if job.step is not None
                else ""
            )
        )
    )
    yield WhyLine(
        code="running",
        message=f"attempt {job.attempts} runs on {where}; {beat}{say_steps(found.tasks)}",
    )
    yield from explain_members(found)
    yield from explain_progress(found)
    yield from _explain_silence(found)


def _explain_draining(found: Circumstances) -> Iterator[WhyLine]:
    job = found.job
    since = (
        f" for {say_span((found.now - job.drain_since).total_seconds())}" if job.drain_since else ""
    )
    winner = find_winner(job.drain_reason)
    yield WhyLine(
        code="draining" if winner is None else "preempted",
        message=f"its attempt {job.attempts} is being stopped{since}: "
        f"{say_trigger(found)}{job.drain_reason or job.drain_cause}",
        hint=""
        if winner is None
        else f"it is queued again at no charge; holdfast show {winner[0]}",
    )
    holding = [t for t in found.tasks if t.state.holds_lease]
    yield from explain_unconfirmed(found, holding)
    if not holding:
        yield WhyLine(
            code="deciding",
            message="every end is confirmed; the decision comes with the next run of the loop",
        )


def _explain_ended(found: Circumstances) -> Iterator[WhyLine]:
    job = found.job
    hint = (
        ""
        if job.state is JobState.SUCCEEDED
        else f"holdfast logs {job.id}; holdfast retry {job.id}"
    )
    yield WhyLine(
        code="ended",
        message=f"it {'was cancelled' if job.state is JobState.CANCELLED else job.state}: "
        f"{job.reason}",
        hint=hint,
    )
    if job.state is JobState.FAILED:
        yield from explain_start_error(found)


def _placed_again(found: Circumstances, host_id: str) -> str:
    """What is placed again when a host is lost: of a supervised job the ranks there alone, unless
    its script is among them."""
    ranks = [
        task.rank for task in found.tasks if task.host_id == host_id and task.state.holds_lease
    ]
    if not found.job.spec.supervised or 0 in ranks:
        return "the job is placed again"
    return f"{name_ranks(ranks)} {'is' if len(ranks) == 1 else 'are'} placed again"


def _explain_silence(found: Circumstances) -> Iterator[WhyLine]:
    running_on = {t.host_id for t in found.tasks if t.state.holds_lease}
    for host in found.hosts:
        if host.id in running_on and host.flagged_dead_at is not None:
            yield WhyLine(
                code="dead_host",
                message=f"host {host.name} sends no heartbeat; {_placed_again(found, host.id)} "
                "when its lease has lapsed",
                hint=f"if the machine is gone: holdfast hosts terminate {host.name}",
            )


_SAYERS: dict[JobState, Callable[[Circumstances], Iterator[WhyLine]]] = {
    JobState.WAITING: _explain_waiting,
    JobState.QUEUED: _explain_queued,
    JobState.RESERVED: explain_claims,
    JobState.RUNNING: _explain_running,
    JobState.DRAINING: _explain_draining,
    JobState.SUCCEEDED: _explain_ended,
    JobState.FAILED: _explain_ended,
    JobState.CANCELLED: _explain_ended,
}
