"""Stall: beats that stopped, confirmed by a task that does nothing.

STALL-1  Nothing is suspected before the first beat. Entering a section is not a beat; but a section
         whose timeout the job gave itself is watched from its entry, because the job asked for
         exactly that. For the same reason a `first_beat_timeout_seconds` that was set trips without
         confirmation; it counts from the start, or from the last word about a section.
STALL-2  Silence alone never trips before the silence limit: `stall_samples` readings in a row must
         say idle.
STALL-3  One busy reading re-arms: the stall clock starts again. The silence limit's clock runs on,
         because it decides where no signal can, as for a loop that spins for ever.
STALL-4  Silence is counted only while the agent listened. A frozen or restarted agent, or a
         suspended machine, lost the beats of that time and cannot hold them against the job.
"""

from __future__ import annotations

import math

import msgspec

from holdfast.core.causes import Watchdog
from holdfast.core.facts import Trip
from holdfast.core.settings.watch import WatchSettings
from holdfast.core.watchdogs.sections import Sections
from holdfast.core.watchdogs.signals import (
    Judgement,
    Reading,
    Signal,
    SignalWindow,
    extend_window,
    judge,
    open_window,
)
from holdfast.core.watchdogs.verdicts import (
    Evidence,
    Rearmed,
    Suspect,
    Verdict,
    describe_seconds,
    make_trip,
)


class StallPatience(msgspec.Struct, frozen=True):
    """How long silence may last, in seconds. timeout: until suspicion; limit: until the trip. None:
    for ever."""

    timeout: float | None
    limit: float | None


class Stall(msgspec.Struct, frozen=True, kw_only=True):
    """The state of this watchdog.

    armed: a beat came. sign_at: instant of the last datagram, or the start. quiet_since: the same
    instant, or the last re-arming if that was later. suspected, window, idle_samples,
    next_sample_at: the confirmation under way. words, evidence: the result of its last reading.
    """

    armed: bool = False
    sign_at: float = -math.inf
    quiet_since: float = -math.inf
    sections: Sections = Sections()
    suspected: bool = False
    window: SignalWindow | None = None
    idle_samples: int = 0
    next_sample_at: float = math.inf
    words: str = "no signal was read"
    evidence: Evidence = {}

    def start(self, now: float) -> Stall:
        """Note that the task started, and wait for its first beat. Where a beat came before the start
        was reported, nothing changes."""
        if self.sign_at > -math.inf:
            return self
        return Stall(sign_at=now, quiet_since=now)

    def beat(
        self, now: float, section: str | None, timeout: float | None, leave: bool, has_step: bool
    ) -> tuple[Stall, bool, list[Verdict]]:
        """Apply a datagram. Return the next state, whether the datagram was a beat (and not only
        the entry or exit of a section), and the verdicts."""
        sections = self.sections
        if section is None:
            sections, is_beat = sections.clear(), True
        elif leave:
            sections, is_beat = sections.leave(now, section), has_step
        else:
            is_beat = has_step or sections.contains(section)
            sections = sections.enter(now, section, timeout)
        rearmed = Rearmed(watchdog=Watchdog.STALL, reason="a beat came")
        heard: list[Verdict] = [rearmed] if self.suspected else []
        fresh = Stall(armed=self.armed or is_beat, sign_at=now, quiet_since=now, sections=sections)
        return fresh, is_beat, heard

    def patience(self, settings: WatchSettings) -> StallPatience:
        """Return the patience in force: that of the settings, or that of the section in which the
        task is.

        A section's own or learned timeout replaces the stall timeout, and the silence limit counts
        from the end of that timeout. In the first pass of a section without a timeout the stall
        timeout does not count; the silence limit does.
        """
        first = None if self.armed else settings.first_beat_timeout_seconds
        if not settings.stall_watch:
            return StallPatience(None, first)
        limit = settings.silence_limit_seconds
        replaced = self.sections.timeout(settings.section_factor)
        if replaced is not None:
            timeout, given = replaced
            if given:
                return StallPatience(timeout, None if limit is None else timeout + limit)
            if not self.armed or settings.stall_timeout_seconds is None:
                return StallPatience(None, limit if self.armed else first)
            # A pass of 1 s would give a timeout of 5 s: a section may give more time, never less.
            timeout = max(timeout, settings.stall_timeout_seconds)
            return StallPatience(timeout, None if limit is None else timeout + limit)
        if not self.armed:
            return StallPatience(None, first)  # STALL-1
        return StallPatience(None if self.sections.open else settings.stall_timeout_seconds, limit)

    def listen_again(self, deaf_seconds: float) -> Stall:
        """Subtract from the silence the time in which the agent did not listen (STALL-4), and begin
        any confirmation anew."""
        return Stall(
            armed=self.armed,
            sign_at=self.sign_at + deaf_seconds,
            quiet_since=self.quiet_since + deaf_seconds,
            sections=self.sections,
        )

    def check(self, now: float, settings: WatchSettings) -> tuple[Stall, list[Verdict]]:
        """Trip once the silence limit has passed, suspect a stall once the timeout has passed, and
        drop a suspicion that no longer holds."""
        patience = self.patience(settings)
        if patience.limit is not None and now - self.sign_at >= patience.limit:
            return self, [self._trip_by_silence(now, patience.limit)]
        if patience.timeout is None or now - self.quiet_since < patience.timeout:
            rearmed = Rearmed(watchdog=Watchdog.STALL, reason="the settings changed")
            return (self._calm(self.quiet_since), [rearmed]) if self.suspected else (self, [])
        if self.suspected:
            return self, []
        quiet = describe_seconds(now - self.quiet_since)
        reason = f"no beat for {quiet}{self._place()}; checking whether it works"
        begun = {"suspected": True, "idle_samples": 0, "next_sample_at": now}
        suspected = msgspec.structs.replace(self, **begun)
        return suspected, [Suspect(watchdog=Watchdog.STALL, reason=reason)]

    def sample(
        self, reading: Reading, settings: WatchSettings, gpus: int, owns_whole_box: bool
    ) -> tuple[Stall, list[Verdict]]:
        """Apply a reading of the task's signals and return the next state with its verdicts. Just
        before a stall is suspected, the reading is the baseline; while one is suspected, it is a
        sample by which the suspicion is confirmed or dropped."""
        interval = settings.stall_sample_interval_seconds
        if not self.suspected:
            timeout = self.patience(settings).timeout
            if timeout is None or reading.at < self.quiet_since + max(0.0, timeout - 2 * interval):
                return self, []
            fresh = open_window(reading, gpus, owns_whole_box)
            return msgspec.structs.replace(self, window=fresh), []
        if reading.at < self.quiet_since:
            return self, []  # read before the last beat, by a slow probe
        if self.window is not None and reading.at - self.window.at < 0.5 * interval:
            return self, []  # too close to measure a rate over
        if self.window is None:
            window = open_window(reading, gpus, owns_whole_box)
            judged = judge(window, settings, gpus)
            if judged.signal is Signal.BUSY:
                return self._rearm(reading.at, judged)
            next_at = reading.at + interval
            return msgspec.structs.replace(self, window=window, next_sample_at=next_at), []
        window = extend_window(self.window, reading, gpus, owns_whole_box)
        return self._confirm(window, reading, settings, gpus, owns_whole_box)

    def _confirm(
        self,
        window: SignalWindow,
        reading: Reading,
        settings: WatchSettings,
        gpus: int,
        owns_whole_box: bool,
    ) -> tuple[Stall, list[Verdict]]:
        judged = judge(window, settings, gpus)
        if judged.signal is Signal.BUSY:
            return self._rearm(reading.at, judged)
        if judged.signal is Signal.UNKNOWN:  # go on slowly, from a new baseline
            return msgspec.structs.replace(
                self,
                window=open_window(reading, gpus, owns_whole_box),
                idle_samples=0,
                next_sample_at=reading.at + settings.health_sample_interval_seconds,
                words=judged.words,
                evidence=judged.evidence,
            ), []
        counted = msgspec.structs.replace(
            self,
            window=window,
            idle_samples=self.idle_samples + 1,
            next_sample_at=reading.at + settings.stall_sample_interval_seconds,
            words=judged.words,
            evidence=judged.evidence,
        )
        if counted.idle_samples < settings.stall_samples:  # STALL-2
            return counted, []
        quiet = reading.at - self.sign_at
        silence = f"no beat for {describe_seconds(quiet)}{self._place()}"
        reason = f"{silence}, and {counted.idle_samples} samples found it idle: {judged.words}"
        evidence: Evidence = {**judged.evidence, "silent_seconds": round(quiet, 3)}
        return counted, [make_trip(Watchdog.STALL, reason, evidence)]

    def _rearm(self, at: float, judged: Judgement) -> tuple[Stall, list[Verdict]]:
        """Start the stall clock again after a busy reading, but not the silence limit's
        (STALL-3)."""
        words, evidence = judged.words, judged.evidence
        calm = msgspec.structs.replace(self._calm(at), words=words, evidence=evidence)
        return calm, [Rearmed(watchdog=Watchdog.STALL, reason=words, evidence=evidence)]

    def _calm(self, quiet_since: float) -> Stall:
        return Stall(
            armed=self.armed, sign_at=self.sign_at, quiet_since=quiet_since, sections=self.sections
        )

    def _trip_by_silence(self, now: float, limit: float) -> Trip:
        quiet = now - self.sign_at
        if not self.armed and not self.sections.open:
            reason = f"no first beat for {describe_seconds(quiet)}; first_beat_timeout is {describe_seconds(limit)}"
            waited: Evidence = {
                "silent_seconds": round(quiet, 3),
                "first_beat_timeout_seconds": limit,
            }
            return make_trip(Watchdog.STALL, reason, waited)
        signal = self.evidence.get("signal", Signal.UNKNOWN)
        found = f"although its last sample found it {signal}"
        found = "and no signal could decide" if signal == Signal.UNKNOWN else found
        reason = (
            f"no beat for {describe_seconds(quiet)}{self._place()}: the silence limit of "
            f"{describe_seconds(limit)} has passed, {found} ({self.words})"
        )
        evidence: Evidence = {
            **self.evidence,
            "silent_seconds": round(quiet, 3),
            "silence_limit_seconds": limit,
        }
        return make_trip(Watchdog.STALL, reason, evidence)

    def _place(self) -> str:
        return f" in section {self.sections.open[-1].name!r}" if self.sections.open else ""

    def sample_at(self, settings: WatchSettings) -> float:
        """Return when the next reading is wanted; infinity while beats come in time."""
        if self.suspected:
            return self.next_sample_at
        timeout = self.patience(settings).timeout
        if timeout is None:
            return math.inf
        interval = settings.stall_sample_interval_seconds
        due = self.quiet_since + timeout
        # Rates need an earlier reading. One interval ahead, it does not delay the confirmation.
        return due - interval if self.window is None and timeout >= 2 * interval else due

    def wake_at(self, settings: WatchSettings) -> float:
        """Return when `check` has a verdict without any input, infinity for never."""
        patience = self.patience(settings)
        limit = math.inf if patience.limit is None else self.sign_at + patience.limit
        waits = patience.timeout is None or self.suspected
        due = math.inf if waits else self.quiet_since + (patience.timeout or 0.0)
        return min(limit, due)
