"""GPU health: idle and static over a whole window is wedged, whether or not the job ever beats.

HEALTH-1  Nothing trips before the load grace is over; it ends at the first beat, or by itself.
HEALTH-2  A window is whole or it is nothing: a busy sample, a beat, an unreadable sample and a gap
          in the sampling each begin a new one. So a trip stands on readings that cover the full
          length.
HEALTH-3  I/O and memory use of a GPU task's processes move the begin of the window, because loading
          is work. They move it by the time that the same amount would take at the rate which counts
          as work, and at most by ten times the time in which it was seen. So neither a burst every
          few minutes nor a trickle hides a GPU that never works.
"""

from __future__ import annotations

import math

import msgspec

from holdfast.core.causes import Watchdog
from holdfast.core.facts import Trip
from holdfast.core.settings.watch import WatchSettings
from holdfast.core.watchdogs.signals import (
    Judgement,
    Reading,
    Signal,
    SignalWindow,
    excuse,
    extend_window,
    judge,
    open_window,
)
from holdfast.core.watchdogs.verdicts import describe_seconds, make_trip

_MOST_WORTH = 10.0


def watches_health(settings: WatchSettings, gpus: int) -> bool:
    """Return whether this watchdog looks at a task with so many GPUs."""
    return settings.health_watch == "on" or (settings.health_watch == "auto" and gpus > 0)


def _weigh_tree(window: SignalWindow, settings: WatchSettings) -> float:
    """Return the window's highest rate as a multiple of the rate that counts as work, at most
    ten."""
    rates = (
        (window.io_mb_s, settings.io_moving_mb_per_second),
        (window.memory_mb_s, settings.memory_moving_mb_per_second),
    )
    found = [rate / least if least else _MOST_WORTH for rate, least in rates if rate is not None]
    return min(max(found, default=0.0), _MOST_WORTH)


class GpuHealth(msgspec.Struct, frozen=True, kw_only=True):
    """The state of this watchdog. started_at: the begin of the load grace. reset_at: the last beat,
    or the start. beaten: a beat came. window: the readings since, None before the first."""

    started_at: float | None = None
    reset_at: float = 0.0
    beaten: bool = False
    window: SignalWindow | None = None

    def start(self, now: float) -> GpuHealth:
        """Note that the task started, which begins its load grace."""
        return GpuHealth(started_at=now, reset_at=now)

    def beat(self, now: float) -> GpuHealth:
        """End the load grace and begin a new window, because a beat came."""
        return msgspec.structs.replace(self, reset_at=now, beaten=True, window=None)

    def reset(self, now: float) -> GpuHealth:
        """Begin a new window, at the border of a section or after a time without calls (STALL-4).
        The load grace stays."""
        return msgspec.structs.replace(self, reset_at=now, window=None)

    def trips_at(self, settings: WatchSettings) -> float:
        """Return the earliest instant at which this watchdog may trip, if nothing else happens."""
        if self.started_at is None:
            return math.inf
        since = self.window.since if self.window is not None else self.reset_at
        grace_ends = self.started_at + settings.health_load_grace_seconds
        grace_ends = -math.inf if self.beaten else grace_ends
        return max(since + settings.health_window_seconds, grace_ends)  # HEALTH-1

    def sample(
        self, reading: Reading, settings: WatchSettings, gpus: int, owns_whole_box: bool
    ) -> tuple[GpuHealth, Trip | None]:
        """Apply a reading of the task's signals; trip when the GPUs were idle and still throughout
        the window that the reading completes."""
        interval = settings.health_sample_interval_seconds
        started = self.started_at is not None and reading.at >= self.reset_at
        if not started or not watches_health(settings, gpus):
            return self, None
        window = self.window
        if window is None or reading.at - window.at > max(3 * interval, 1.0):
            return self._begin(reading, interval, gpus, owns_whole_box), None
        if reading.at - window.at < 0.1 * interval:
            return self, None  # a stall's sample in between: too close to measure a rate over
        seconds = reading.at - window.at
        window = extend_window(window, reading, gpus, owns_whole_box)
        judged = judge(window, settings, gpus)
        if judged.by_tree:  # HEALTH-3
            window = excuse(window, seconds, _weigh_tree(window, settings))
            return msgspec.structs.replace(self, window=window, reset_at=window.since), None
        if judged.signal is not Signal.IDLE:  # HEALTH-2
            fresh = open_window(reading, gpus, owns_whole_box)
            return msgspec.structs.replace(self, window=fresh, reset_at=reading.at), None
        kept = msgspec.structs.replace(self, window=window)
        return kept, self._trip(window, judged) if reading.at >= kept.trips_at(settings) else None

    def _begin(
        self, reading: Reading, interval: float, gpus: int, owns_whole_box: bool
    ) -> GpuHealth:
        """Open a window: from the last reset, if the first reading came promptly after it, else
        from that reading."""
        prompt = self.window is None and reading.at - self.reset_at <= max(2 * interval, 1.0)
        since = self.reset_at if prompt else reading.at
        window = open_window(reading, gpus, owns_whole_box, since)
        return msgspec.structs.replace(self, window=window, reset_at=since)

    def _trip(self, window: SignalWindow, judged: Judgement) -> Trip:
        length = describe_seconds(window.at - window.since)
        reason = f"idle and static for {length} without a beat: {judged.words}"
        if window.excused_seconds:
            spent = describe_seconds(window.excused_seconds)
            reason += f"; besides, its processes moved data for {spent}, which hides no idle GPU"
        return make_trip(Watchdog.GPU_HEALTH, reason, judged.evidence)

    def sample_at(self, settings: WatchSettings, gpus: int) -> float:
        """Return when the next reading is wanted, infinity for never. A beat moves that instant
        further away."""
        if self.started_at is None or not watches_health(settings, gpus):
            return math.inf
        last = self.window.at if self.window is not None else self.reset_at
        return last + settings.health_sample_interval_seconds
