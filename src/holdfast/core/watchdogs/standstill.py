"""Standstill: a step or a printed counter that moved and then stood, beside idle hardware.

It sees the hangs that the stall watch does not: of jobs that send no beats, and of jobs whose beats go on
while their work does not, as those of a timer.

STAND-1  It is a suspicion. It is told, and it ends the task only where the job or its queue says so
         (`on_standstill`).
STAND-2  Nothing is suspected before the work was seen to move: two steps or beats, or three printed
         counters. A counter that reached its end is no sign of a standstill (COUNTER-1).
STAND-3  The patience is `standstill_seconds`, or three times the longest time between two moves, if that
         is more; and throughout its last part, at most five minutes, each reading says idle.
"""

from __future__ import annotations

import math

import msgspec

from holdfast.core.causes import Watchdog
from holdfast.core.settings.watch import WatchSettings
from holdfast.core.watchdogs import signals
from holdfast.core.watchdogs.signals import Reading, Signal, SignalWindow
from holdfast.core.watchdogs.verdicts import (
    Evidence,
    Rearmed,
    StandsStill,
    Verdict,
    describe_seconds,
    make_trip,
)

_LONGER = 3.0
_WINDOW_SECONDS = 300.0
_SAMPLES = 10.0
_MOST_GAP = 3.0  # intervals: a window with a longer gap proves nothing


class Standstill(msgspec.Struct, frozen=True, kw_only=True):
    """The state of this watchdog. moved_at: when the work last moved, None before it was seen to
    (STAND-2). longest_seconds: between two moves. what: "step", or "printed counter". window: the idle
    readings since. told: the sentence of the suspicion, "" where there is none."""

    moved_at: float | None = None
    longest_seconds: float = 0.0
    what: str = "step"
    window: SignalWindow | None = None
    told: str = ""

    def move(
        self, at: float | None, longest_seconds: float, what: str
    ) -> tuple[Standstill, list[Verdict]]:
        """Note when the work last moved; None where its progress can no longer be seen."""
        if at == self.moved_at:
            return self, []
        moved = Standstill(moved_at=at, longest_seconds=longest_seconds, what=what)
        rearmed = Rearmed(watchdog=Watchdog.STALL, reason="its work moves again")
        return moved, [rearmed] if self.told else []

    def listen_again(self, deaf_seconds: float) -> Standstill:
        """Subtract a time in which the agent did not listen, or the task was excused (STALL-4)."""
        if self.moved_at is None:
            return self
        return msgspec.structs.replace(
            self, moved_at=self.moved_at + deaf_seconds, window=None, told=""
        )

    def _patience(self, settings: WatchSettings) -> float:
        if settings.on_standstill == "ignore" or settings.standstill_seconds is None:
            return math.inf
        return max(settings.standstill_seconds, _LONGER * self.longest_seconds)

    def sample_at(self, settings: WatchSettings) -> float:
        """Return when the next reading is wanted, infinity for never."""
        patience = self._patience(settings)
        if self.moved_at is None or math.isinf(patience):
            return math.inf
        if self.window is not None:
            return self.window.at + _window_of(patience) / _SAMPLES
        return self.moved_at + patience - _window_of(patience)

    def sample(
        self, reading: Reading, settings: WatchSettings, gpus: int, owns_whole_box: bool
    ) -> tuple[Standstill, list[Verdict]]:
        """Apply a reading: the suspicion is told where the work has stood for its patience and every
        reading of the window says idle, and is dropped where one does not (STAND-3)."""
        if self.moved_at is None or reading.at < self.sample_at(settings) - 0.001:
            return self, []
        length = _window_of(self._patience(settings))
        window = self.window
        if window is None or reading.at - window.at > _MOST_GAP * length / _SAMPLES + 1:
            fresh = signals.open_window(reading, gpus, owns_whole_box)
            return msgspec.structs.replace(self, window=fresh), []
        window = signals.extend_window(window, reading, gpus, owns_whole_box)
        judged = signals.judge(window, settings, gpus)
        if judged.signal is not Signal.IDLE:
            fresh = signals.open_window(reading, gpus, owns_whole_box)
            again = Rearmed(watchdog=Watchdog.STALL, reason=judged.words, evidence=judged.evidence)
            calm = msgspec.structs.replace(self, window=fresh, told="")
            return calm, [again] if self.told else []
        kept = msgspec.structs.replace(self, window=window)
        stood = reading.at - self.moved_at
        if self.told or window.at - window.since < length or stood < self._patience(settings):
            return kept, []
        reason = (
            f"its {self.what} has stood for {describe_seconds(stood)}, and its hardware was idle for the "
            f"last {describe_seconds(window.at - window.since)}: {judged.words}"
        )
        evidence: Evidence = {**judged.evidence, "stood_seconds": round(stood, 3)}
        if settings.on_standstill == "stop":
            return kept, [make_trip(Watchdog.STALL, reason, evidence)]
        told = msgspec.structs.replace(kept, told=reason)
        return told, [StandsStill(watchdog=Watchdog.STALL, reason=reason, evidence=evidence)]


def _window_of(patience: float) -> float:
    return min(_WINDOW_SECONDS, patience / 2)
