"""Idle: a job at which a person sits ends where that person has left it.

AWAY-1  Only a job of a person (`attended`, `terminal`) ends so, and only where there was no key, no
        traffic of a forwarded port and no work for the whole timeout. Work is that of its GPUs, or
        of its processes where it has none; work that cannot be read counts as work (SIGNAL-1).
AWAY-2  The person is told before, and for the whole time between the telling and the end one key, or
        one byte of traffic, keeps the job.
"""

from __future__ import annotations

import math
from enum import StrEnum

import msgspec

from holdfast.core.causes import Watchdog
from holdfast.core.facts import Trip
from holdfast.core.settings.watch import WatchSettings
from holdfast.core.watchdogs.signals import (
    Reading,
    Signal,
    SignalWindow,
    extend_window,
    judge,
    open_window,
)
from holdfast.core.watchdogs.verdicts import Evidence, LeavingSoon, describe_seconds, make_trip

WARN_SECONDS = 600.0
"""How long before the end the person is told; half of a timeout that is shorter than twice this."""
_SAMPLE_SECONDS = 30.0
_SAMPLES = 8.0  # at least so many readings in a timeout


class Next(StrEnum):
    """The next act with a job at which a person sat."""

    KEEP = "keep"
    WARN = "warn"
    END = "end"


def find_lead(timeout: float) -> float:
    """Return how long before its end a person is told."""
    return min(WARN_SECONDS, timeout / 2)


def decide(
    now: float,
    *,
    last_key: float,
    last_traffic: float,
    last_work: float,
    warned_at: float | None,
    timeout: float,
) -> Next:
    """Decide about a job at which a person sat (AWAY-1, AWAY-2). warned_at: when the person was told,
    None before."""
    active = max(last_key, last_traffic, last_work)
    if now - active < timeout - find_lead(timeout):
        return Next.KEEP
    if warned_at is None or warned_at < active:
        return Next.WARN
    over = now - active >= timeout and now - warned_at >= find_lead(timeout)
    return Next.END if over else Next.KEEP


class Idle(msgspec.Struct, frozen=True, kw_only=True):
    """The state of this watchdog. started_at: when the task started, None before; last_key,
    last_traffic, last_work: when each was seen last; warned_at: when the person was told. window: the
    last reading, None before the first."""

    started_at: float | None = None
    last_key: float = 0.0
    last_traffic: float = 0.0
    last_work: float = 0.0
    warned_at: float | None = None
    window: SignalWindow | None = None

    def start(self, now: float) -> Idle:
        """Note that the task started, which counts as a key."""
        return Idle(started_at=now, last_key=now, last_traffic=now, last_work=now)

    def touch(self, now: float, *, key: bool) -> Idle:
        """Note a key, or traffic of a forwarded port."""
        if key:
            return msgspec.structs.replace(self, last_key=now)
        return msgspec.structs.replace(self, last_traffic=now)

    def sample(
        self, reading: Reading, settings: WatchSettings, gpus: int, owns_whole_box: bool
    ) -> Idle:
        """Note a reading of the task, which shows whether there was work since the reading
        before."""
        if settings.idle_timeout_seconds is None or self.started_at is None:
            return self
        fresh = open_window(reading, gpus, owns_whole_box)
        if self.window is None:
            return msgspec.structs.replace(self, window=fresh)
        if reading.at <= self.window.at:
            return self
        judged = judge(extend_window(self.window, reading, gpus, owns_whole_box), settings, gpus)
        idle = judged.signal is Signal.IDLE or judged.by_tree
        last = self.last_work if idle else reading.at
        return msgspec.structs.replace(self, window=fresh, last_work=last)

    def sample_at(self, settings: WatchSettings) -> float:
        """Return when the next reading is wanted, infinity for never."""
        timeout = settings.idle_timeout_seconds
        if timeout is None or self.started_at is None:
            return math.inf
        last = self.window.at if self.window is not None else self.started_at
        return last + min(_SAMPLE_SECONDS, timeout / _SAMPLES)

    def check(self, now: float, settings: WatchSettings) -> tuple[Idle, Trip | LeavingSoon | None]:
        """Decide whether the job goes on; return the next state of the watchdog, and the
        verdict."""
        timeout = settings.idle_timeout_seconds
        if timeout is None or self.started_at is None:
            return self, None
        found = decide(
            now,
            last_key=self.last_key,
            last_traffic=self.last_traffic,
            last_work=self.last_work,
            warned_at=self.warned_at,
            timeout=timeout,
        )
        if found is Next.KEEP:
            return self, None
        quiet = now - max(self.last_key, self.last_traffic, self.last_work)
        nothing = f"no key, no traffic and no work for {describe_seconds(quiet)}"
        if found is Next.WARN:
            left = describe_seconds(find_lead(timeout))
            words = f"this job ends in {left}, because there was {nothing}; one key keeps it"
            told = LeavingSoon(watchdog=Watchdog.IDLE, reason=words)
            return msgspec.structs.replace(self, warned_at=now), told
        evidence: Evidence = {"quiet_seconds": round(quiet, 3), "idle_timeout_seconds": timeout}
        reason = f"its user left it: {nothing}; its idle timeout is {describe_seconds(timeout)}"
        return self, make_trip(Watchdog.IDLE, reason, evidence)

    def wake_at(self, settings: WatchSettings) -> float:
        """Return the earliest instant at which `check` may say more than keep."""
        timeout = settings.idle_timeout_seconds
        if timeout is None or self.started_at is None:
            return math.inf
        active = max(self.last_key, self.last_traffic, self.last_work)
        if self.warned_at is None or self.warned_at < active:
            return active + timeout - find_lead(timeout)
        return max(active + timeout, self.warned_at + find_lead(timeout))
