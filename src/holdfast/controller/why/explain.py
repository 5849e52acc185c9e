"""explain(circumstances) → Why: every reason that holds a job, a sentence each, and what to do
about it. Pure."""

from collections.abc import Callable, Iterator

from holdfast.bounds import NAN_BEATS
from holdfast.controller.why import forecasts, gangs, limits, places, pools, retries, shares, waits
from holdfast.controller.why.circumstances import Circumstances
from holdfast.controller.why.words import line, say_moment
from holdfast.core.arrays.arrays import IN_LINE
from holdfast.core.causes import Cause
from holdfast.core.placement.preemption import find_winner
from holdfast.core.placement.ranks import name_ranks, say_names
from holdfast.core.progress.pace import find_still, say_unbeaten
from holdfast.core.states import JobState
from holdfast.core.watchdogs.watch import ends_hangs
from holdfast.core.words import say_span
from holdfast.wire.api import Why, WhyLine

_BESIDES = frozenset({"behind", "dead_hosts", "host_set_aside", "host_silent", "may_make_room"})
"""Codes of lines that never explain why admission passed a job over: such a line may be true beside
the actual reason."""
_ELSEWHERE = frozenset({"dead_hosts", "host_set_aside", "host_silent"})
"""Codes of lines about hosts that a job does not need, because others have room for it."""


def explain(found: Circumstances) -> Why:
    """Explain why the job is in its present state."""
    job = found.job
    lines = [*_SAYERS[job.state](found), *_explain_environment(found)]
    summary = lines[0].message if lines else (job.reason or str(job.state))
    foreseen = found.foreseen
    return Why(
        job_id=job.id,
        state=job.state,
        summary=summary,
        lines=lines,
        forecast=None if foreseen is None else foreseen.view,
        would_start=[] if foreseen is None else forecasts.list_changes(foreseen),
    )


def _explain_waiting(found: Circumstances) -> Iterator[WhyLine]:
    job = found.job
    until = f" until {say_moment(job.wait_until)}" if job.wait_until else ""
    if job.wait_cause == "start_time":
        if job.wait_until:
            until += f" ({say_span((job.wait_until - found.now).total_seconds())} from now)"
        yield line(
            "waiting_start_time",
            f"it waits for its start time{until}",
            "submit it without a start time to run it at once",
        )
    elif job.wait_cause == "parked":
        yield from gangs.explain_parked(found)
    elif job.wait_cause == "back_off" and job.start_failures and job.cause is Cause.START_TIMEOUT:
        yield from gangs.explain_failed_starts(found)
        yield from retries.explain_hold(found, "its retry will be held")
    elif job.wait_cause in ("back_off", "retries_held"):
        yield from retries.explain_retry(found)
        yield from gangs.explain_start_error(found)
    elif job.wait_cause == "dependency":
        yield from waits.explain_waits(found)
    elif job.wait_cause == IN_LINE:
        yield from waits.explain_turn(found)
    else:
        yield line(job.wait_cause or "held", f"it is held{until}: {job.reason}")
    yield from forecasts.explain_forecast(found)
    yield from _explain_queue(found)
    yield from retries.explain_quota(found)
    yield from retries.explain_progress(found)


def _explain_queue(found: Circumstances) -> Iterator[WhyLine]:
    name, queue = found.job.queue, found.queue
    if queue is None:
        hint = f"make it again: holdfast queues set {name}"
        yield line("unknown_queue", f"its queue {name} is gone", hint)
        return
    if queue.paused_at is not None:
        because = f": {queue.paused_reason}" if queue.paused_reason else ""
        hint = f"holdfast queues resume {name}"
        yield line("queue_paused", f"queue {name} is paused{because}", hint)
    if isinstance(found.max_running, int) and queue.running >= found.max_running:
        yield line(
            "max_running",
            f"queue {name} runs {queue.running} job{'s' * (queue.running != 1)}, and may run "
            f"{found.max_running} at once",
            f"holdfast queues set {name} max_running=N",
        )


def _explain_queued(found: Circumstances) -> Iterator[WhyLine]:
    held = [*places.explain_room_made(found), *_explain_holds(found)]
    if found.refusal and not {held_by.code for held_by in held} - _BESIDES:
        yield line(
            "refused",
            f"the last admission passed it over: {found.refusal}",
            "free room may be held back for a job that waited longer; a job whose --expected time or "
            "--time-limit ends in time may use it",
        )
    if not {held_by.code for held_by in held} - _ELSEWHERE:
        yield line("queued", "it is next: the next round of admission takes it")
    yield from held
    if held or found.refusal:
        yield from forecasts.explain_forecast(found)
    if not found.led:
        message = "another server of this cluster places jobs, or this one will within seconds"
        yield line("not_leading", message)
    yield from gangs.explain_last_attempt(found)
    yield from shares.explain_share(found)
    yield from retries.explain_progress(found)
    if found.refusal or held:
        yield from limits.explain_queued(found.job, found.limits)


def _explain_holds(found: Circumstances) -> Iterator[WhyLine]:
    """Yield the reasons that keep a queued job from starting now; none when it is next."""
    yield from _explain_queue(found)
    yield from retries.explain_quota(found)
    missing = list(places.explain_place(found))
    if missing:
        # The pool's action comes first; the next line names the missing hosts.
        said = list(pools.explain_pools(found))
        decided = [each for each in said if each.code != "pool_decides"]
        yield from decided
        yield from missing
        yield from (each for each in said if each not in decided)
    if found.foreseen is not None:
        yield from forecasts.explain_place(found.job, found.foreseen.view)
    elif found.place:
        count = "10 000 or more" if found.place >= 10_000 else str(found.place)
        jobs = "job of its queue is" if found.place == 1 else "jobs of its queue are"
        yield line("behind", f"{count} {jobs} ahead of it", "a higher priority moves it forward")


def _explain_running(found: Circumstances) -> Iterator[WhyLine]:
    job = found.job
    where = say_names(t.host_name for t in found.tasks if t.host_name) or "?"
    waited = say_span((found.now - (job.started_at or found.now)).total_seconds())
    beat = say_unbeaten(waited, beats=job.best_step is not None)
    if job.beat_at is not None:
        beat = f"its last known beat was {say_span((found.now - job.beat_at).total_seconds())} ago"
        if job.step is not None:
            beat += f" at step {job.step}" + (f" of {job.total}" if job.total else "")
        if still := find_still(job.beat_at, job.moved_at):
            beat += f", and its step has stood for {say_span(still)}"
    steps = gangs.say_steps(found.tasks)
    yield line("running", f"attempt {job.attempts} runs on {where}; {beat}{steps}")
    yield from gangs.explain_members(found)
    yield from gangs.explain_suspects(found)
    yield from _explain_loss(found)
    yield from shares.explain_idle(found)
    yield from shares.explain_loan(found)
    yield from retries.explain_progress(found)
    yield from _explain_silence(found)
    unwatched = list(_explain_unwatched(found))
    yield from limits.explain_running(job, found.limits, found.now, watched=not unwatched)
    yield from unwatched


def _explain_loss(found: Circumstances) -> Iterator[WhyLine]:
    """Explain that the loss of some ranks is NaN or infinite."""
    bad = [task for task in found.tasks if task.nan_beats >= NAN_BEATS]
    if bad:
        ranks = f" of {len(bad)} of its {len(found.tasks)} ranks" if len(found.tasks) > 1 else ""
        most = max(task.nan_beats for task in bad)
        yield line(
            "loss_not_finite",
            f"the loss{ranks} was NaN or infinite for the last {most} beats; nothing stops it for that",
            f"holdfast cancel {found.job.id}",
        )


def _explain_unwatched(found: Circumstances) -> Iterator[WhyLine]:
    """Explain that no watchdog would end a hang of these tasks, because every limit is off for
    them."""
    job, watch = found.job, found.watch
    if watch is None:
        return
    running = [
        task for task in found.tasks if task.started_at is not None and task.state.holds_lease
    ]
    free = [t for t in running if not ends_hangs(watch, job.gpus, beaten=t.beat_at is not None)]
    if not free:
        return
    silent = all(task.beat_at is None for task in free)
    beats = "it has sent no beat" if silent else "the stall watch is off"
    ranks = f" of {name_ranks([task.rank for task in free])}" if job.tasks > 1 else ""
    yield line(
        "unwatched",
        f"nothing will stop it if its work{ranks} hangs: it has no time limit, and {beats}",
        "give it --time-limit, or beats and --first-beat-timeout; `holdfast config --job "
        f"{job.id}` shows what is in force",
    )


def _explain_draining(found: Circumstances) -> Iterator[WhyLine]:
    job, winner = found.job, find_winner(found.job.drain_reason)
    how = "is being stopped"
    if job.drain_since:
        how = f"has been stopping for {say_span((found.now - job.drain_since).total_seconds())}"
    message = f"its attempt {job.attempts} {how}: {job.drain_reason or job.drain_cause}"
    if winner is None:
        yield line("draining", message)
    else:
        hint = f"it is queued again at no charge; holdfast show {winner.job_id}"
        yield line("preempted", message, hint)
        if found.winner is not None and found.winner.state.terminal:
            yield line(
                "place_not_needed",
                f"job {winner.job_id} {_say_over(found.winner.state)} meanwhile, and the stop is not "
                "taken back, because the program was told to end already",
                "it starts again as soon as its end is confirmed and its place is free",
            )
    holding = [t for t in found.tasks if t.state.holds_lease]
    yield from gangs.explain_unconfirmed(found, holding)
    grace = 0.0 if found.watch is None else found.watch.grace_seconds
    grace, what = max((grace, "grace"), (job.drain_notice_seconds or 0.0, "notice"))
    if holding and job.drain_since and (found.now - job.drain_since).total_seconds() < grace:
        yield line(
            "grace",
            f"a process that does not end at TERM is killed after its {what} of {say_span(grace)}",
            f"to end it at once: holdfast cancel --hard {job.id}",
        )
    if not holding:
        yield line("deciding", "every end is confirmed; the controller decides within seconds")


def _say_over(state: JobState) -> str:
    return "was cancelled" if state is JobState.CANCELLED else str(state)


def _explain_ended(found: Circumstances) -> Iterator[WhyLine]:
    job = found.job
    how = "was cancelled" if job.state is JobState.CANCELLED else str(job.state)
    if job.reason.startswith(str(job.state)):  # "succeeded on attempt 2" names the state itself
        how += job.reason.removeprefix(str(job.state))
    elif job.reason:
        how += f": {job.reason}"
    last = found.last_attempt
    wrote = job.attempts > 0 and (last is None or last.started_at is not None)
    hint = f"holdfast logs {job.id}; " * wrote + f"holdfast retry {job.id}"
    yield line("ended", f"it {how}", hint * (job.state is not JobState.SUCCEEDED))
    if job.state is JobState.FAILED:
        yield from gangs.explain_start_error(found)


def _explain_environment(found: Circumstances) -> Iterator[WhyLine]:
    """Say that the job shares an environment that was made long ago, so that what its files do not
    pin is of that time."""
    if found.environment is not None and found.job.state is not JobState.SUCCEEDED:
        yield line(
            "old_environment",
            f"{found.environment}, so packages whose versions are not pinned are of that time",
            "another --setup line, or a change in a file that it depends on, makes a new one",
        )


def _placed_again(found: Circumstances, host_id: str) -> str:
    """Return the words for the part of the job that starts elsewhere after the host is lost: only
    the ranks there, where the job is supervised and its script runs on another host; else the whole
    job."""
    ranks = [t.rank for t in found.tasks if t.host_id == host_id and t.state.holds_lease]
    if not found.job.spec.supervised or 0 in ranks:
        return "the job is placed again"
    return f"{name_ranks(ranks)} {'is' if len(ranks) == 1 else 'are'} placed again"


def _explain_silence(found: Circumstances) -> Iterator[WhyLine]:
    running_on = {t.host_id for t in found.tasks if t.state.holds_lease}
    for host in found.hosts:
        if host.id in running_on and host.flagged_dead_at is not None:
            yield line(
                "dead_host",
                f"host {host.name} sends no heartbeat; {_placed_again(found, host.id)} when its "
                "lease has lapsed",
                f"if the machine is gone: holdfast hosts terminate {host.name}",
            )


_SAYERS: dict[JobState, Callable[[Circumstances], Iterator[WhyLine]]] = {
    JobState.WAITING: _explain_waiting,
    JobState.QUEUED: _explain_queued,
    JobState.RESERVED: gangs.explain_claims,
    JobState.RUNNING: _explain_running,
    JobState.DRAINING: _explain_draining,
    JobState.SUCCEEDED: _explain_ended,
    JobState.FAILED: _explain_ended,
    JobState.CANCELLED: _explain_ended,
}
