"""The limits that stop a job by the clock or for a hang, and how long it should take, in words.
Pure; `submit`, `show` and `why` say the same."""

from collections.abc import Iterator
from datetime import datetime, timedelta

from holdfast.controller.why.words import line
from holdfast.core.placement.types import find_span
from holdfast.core.records import JobRecord
from holdfast.core.settings.resolve import Effective
from holdfast.core.settings.watch import WatchSettings
from holdfast.core.states import JobState
from holdfast.core.watchdogs.gpu_health import watches_health
from holdfast.core.words import say_span
from holdfast.wire.api import JobLimits, WhyLine

SOONER = "--expected TIME names how long it should take, which lets it start sooner"


def make_limits(
    job: JobRecord, limit: Effective, history_seconds: float | None, watch: WatchSettings
) -> JobLimits:
    """Return the limits that stop the job, when they do, and how long it should take.

    limit: its time limit in force. history_seconds: how long the last jobs of its name took. watch:
    the watchdogs' settings for its tasks.
    """
    seconds = None if limit.value is None else float(limit.value)
    own = job.spec.expected_seconds
    expected = own if own is not None else history_seconds
    began = job.started_at if job.state is JobState.RUNNING else None
    return JobLimits(
        time_limit_seconds=seconds,
        time_limit_source=limit.source if limit.source != "default" else "",
        stops_at=_add(began, seconds),
        expected_seconds=expected,
        expected_source="" if expected is None else "job" if own is not None else "history",
        expected_at=_add(began, expected),
        backfills=find_span(seconds, expected) is not None,
        sentence=_say_stops(job, seconds, limit.source, watch),
    )


def _add(began: datetime | None, seconds: float | None) -> datetime | None:
    return None if began is None or seconds is None else began + timedelta(seconds=seconds)


def _say_stops(job: JobRecord, seconds: float | None, source: str, watch: WatchSettings) -> str:
    if job.spec.executor:
        return "each of its calls is stopped by the limits of its own function"
    first = watch.first_beat_timeout_seconds
    beats = watch.stall_watch and (watch.stall_timeout_seconds or watch.silence_limit_seconds)
    # Where a GPU cannot be read, the shorter limit never decides.
    silence = watch.silence_limit_seconds if watch.stall_timeout_seconds else None
    unread = f" (after {say_span(silence)} where its host cannot see its work)" if silence else ""
    health = watches_health(watch, job.gpus)
    hangs = [
        f"{say_span(first)} after its start without a beat" if first is not None else "",
        f"{say_span(watch.health_window_seconds)} after its GPUs fell idle" if health else "",
        f"{say_span(float(beats))} after its last beat if it does nothing{unread}" if beats else "",
    ]
    ends = [each for each in hangs if each]
    if not ends and seconds is None:
        return "nothing stops it: it has no time limit, and no watchdog looks for a hang"
    hang = f"it is stopped as hung {', or '.join(ends)}" if ends else ""
    if beats and first is None and not health:
        hang += "; before its first beat nothing stops a hang"
    if seconds is None:
        clock = "it has no time limit"
    else:
        clock = f"it is stopped after {say_span(seconds)}, the time limit that {_say_source(job, source)}"
    return "; ".join(filter(None, (clock, hang)))


def _say_source(job: JobRecord, source: str) -> str:
    names = {
        "job": "its submission names",
        "queue": f"queue {job.queue} sets",
        "project": f"project {job.project} sets",
        "cluster": "the cluster sets",
        "environment": "the controller's environment sets",
    }
    return names.get(source, f"{source} sets")


def explain_running(
    job: JobRecord, limits: JobLimits | None, now: datetime, *, watched: bool
) -> Iterator[WhyLine]:
    """Explain when a running job is stopped by the clock, and when it should end. watched: False to
    yield nothing for a job without a limit, because another line then warns that nothing watches
    the job."""
    if limits is None or job.spec.executor:
        return
    if limits.time_limit_seconds is None:
        if watched:
            hint = "holdfast submit --time-limit TIME names one"
            yield line("no_time_limit", limits.sentence, hint)
    elif limits.stops_at is not None:
        left = say_span((limits.stops_at - now).total_seconds())
        limit = say_span(limits.time_limit_seconds)
        whose = _say_source(job, limits.time_limit_source)
        text = f"it is stopped in {left}, at the time limit of {limit} that {whose}"
        yield line("time_limit", text)
    if limits.expected_seconds is None or limits.expected_at is None:
        return
    own = limits.expected_source == "job"
    by = "as its submission says" if own else "as the last jobs of its name did"
    span = say_span(limits.expected_seconds)
    left_seconds = (limits.expected_at - now).total_seconds()
    if left_seconds >= 0:
        text = f"it should end in about {say_span(left_seconds)}, if it takes {span}, {by}"
        yield line("expected", text)
    else:
        text = f"it has run {say_span(-left_seconds)} longer than {span}, which it should take {by}"
        yield line("overrun", f"{text}; it goes on, because an expectation stops nothing")


def explain_queued(job: JobRecord, limits: JobLimits | None) -> Iterator[WhyLine]:
    """Explain that a job does not back-fill, because its end cannot be estimated."""
    if limits is not None and not limits.backfills and not job.spec.executor:
        yield line(
            "no_end_known",
            "it is given no room that is held back for larger jobs, because nothing tells how long it "
            "takes: neither a time limit nor an expectation, nor earlier jobs of its name",
            SOONER,
        )
