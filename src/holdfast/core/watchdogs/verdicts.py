"""The verdicts: a `Trip` (core.facts) ends the task, a `LeavingSoon` and a `StandsStill` are told to
its user; the other two are for the log alone."""

import msgspec

from holdfast.core.causes import EXIT_OF, Watchdog
from holdfast.core.facts import Trip

Evidence = dict[str, str | int | float | bool | None]


class Suspect(msgspec.Struct, frozen=True, kw_only=True):
    """A stall is suspected and will be checked against physical signals. Never a reason to kill."""

    watchdog: Watchdog
    reason: str


class Rearmed(msgspec.Struct, frozen=True, kw_only=True):
    """A suspicion was wrong: the watchdog is as before.

    A suspicion never latches.
    """

    watchdog: Watchdog
    reason: str
    evidence: Evidence = {}


class StandsStill(msgspec.Struct, frozen=True, kw_only=True):
    """The work seems to stand still. It is told to the job's owner, and no reason to kill."""

    watchdog: Watchdog
    reason: str
    evidence: Evidence = {}


class LeavingSoon(msgspec.Struct, frozen=True, kw_only=True):
    """The task will end soon, unless its user stirs; the sentence is shown to that user."""

    watchdog: Watchdog
    reason: str


Verdict = Trip | Suspect | Rearmed | StandsStill | LeavingSoon


def make_trip(watchdog: Watchdog, reason: str, evidence: Evidence) -> Trip:
    """Return the verdict that ends a task, with the exit code that is kept on the attempt."""
    return Trip(
        watchdog=watchdog, exit_code=int(EXIT_OF[watchdog]), reason=reason[:4096], evidence=evidence
    )


def describe_seconds(seconds: float) -> str:
    """Write a length of time for a sentence: `0.5 s`, `120 s`, `8100 s`."""
    return f"{seconds:.1f} s" if seconds < 10 and seconds != int(seconds) else f"{seconds:.0f} s"
