"""Time limit: the wall clock a task may take; a suspension of the machine counts."""

import math

import msgspec

from holdfast.core.causes import Watchdog
from holdfast.core.facts import Trip
from holdfast.core.settings.watch import WatchSettings
from holdfast.core.watchdogs.verdicts import Evidence, describe_seconds, make_trip


class TimeLimit(msgspec.Struct, frozen=True):
    """The state of this watchdog. started_at: when the task's process started, None before."""

    started_at: float | None = None

    def check(self, now: float, settings: WatchSettings) -> Trip | None:
        """Trip when the wall clock reached the limit."""
        limit = settings.time_limit_seconds
        if limit is None or self.started_at is None or now - self.started_at < limit:
            return None
        ran = now - self.started_at
        reason = f"it ran for {describe_seconds(ran)}; its time limit is {describe_seconds(limit)}"
        evidence: Evidence = {"ran_seconds": round(ran, 3), "limit_seconds": limit}
        return make_trip(Watchdog.TIME_LIMIT, reason, evidence)

    def wake_at(self, settings: WatchSettings) -> float:
        """Return the instant of the trip, infinity without a limit."""
        if settings.time_limit_seconds is None or self.started_at is None:
            return math.inf
        return self.started_at + settings.time_limit_seconds
