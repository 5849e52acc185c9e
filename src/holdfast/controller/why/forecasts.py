"""The lines of `why` about a queued job's place in line, its expected start, and what would let it start
now. Pure."""

from collections.abc import Iterator

from holdfast.controller.why.circumstances import Circumstances, Foreseen
from holdfast.controller.why.words import line, say_moment
from holdfast.core.forecast.outlook import Forecast
from holdfast.core.records import JobRecord
from holdfast.core.words import say_span
from holdfast.wire.api import WhyLine
from holdfast.wire.forecasts.values import JobForecast, WouldStart

_BASIS = {
    "plan": "planned from what runs now and how long it and its likes take",
    "pace": "at the pace of the last {starts} starts",
}


def explain_place(job: JobRecord, view: JobForecast) -> Iterator[WhyLine]:
    """Say how many jobs are considered before the job; yields nothing for the first."""
    if not view.ahead:
        return
    count = f"more than {view.ahead:,}" if view.more else f"{view.ahead:,}"
    jobs = "1 job is" if view.ahead == 1 else f"{count.replace(',', ' ')} jobs are"
    hint = "a higher priority moves it forward" if job.priority < 100 else ""
    yield line("behind", f"{jobs} ahead of it, of all queues that use the same hosts", hint)


def explain_forecast(found: Circumstances) -> Iterator[WhyLine]:
    """Say when the job should start, and with which changes it would start now."""
    foreseen = found.foreseen
    if foreseen is None:
        return
    forecast, view = foreseen.forecast, foreseen.view
    if forecast is not None:
        basis = _BASIS[forecast.by].format(starts=foreseen.starts)
        text = f"in {say_span(forecast.expected_seconds)} at the earliest"
        if view.expected_start is not None:
            about, when = say_span(forecast.expected_seconds), say_moment(view.expected_start)
            text = f"in about {about}, at {when}; {_say_interval(forecast)}"
        yield line("forecast", f"it should start {text} ({basis})")
    for change in foreseen.changes:
        yield line("would_start", f"it would start now {change.message}", change.hint)
    for change in foreseen.raises:
        yield line("would_rent", f"a host would be rented now {change.message}", change.hint)


def _say_interval(forecast: Forecast) -> str:
    earliest = say_span(forecast.earliest_seconds)
    if forecast.latest_seconds is None:
        return f"in {earliest} at the earliest, and how late it may be is not known"
    latest = say_span(forecast.latest_seconds)
    return f"4 of 5 such jobs start between {earliest} and {latest} from now"


def list_changes(foreseen: Foreseen) -> list[WouldStart]:
    """Return the changes as programs read them."""
    return [
        WouldStart(what=change.what, message=change.message, hint=change.hint)
        for change in foreseen.changes
    ]
