"""All watchdogs over one attempt of one task.

Inputs return nothing; `tick` returns everything. The runner puts in what happened, ticks, and
carries out the verdicts: a `Trip` ends the task (at most one ever comes), `Suspect` and `Rearmed`
are for the log.

A `TaskWatch` is made new for every attempt, so the evidence of a hang never outlives a restart.

EXCUSE-1  A rank of a gang in a section excuses the ranks that are in none, because these may wait
          for it: their clocks of silence and idleness stand still, for no longer than the section's own
          timeout, or the silence limit. A host manager without processes (IDLE-1) excuses no rank,
          because none waits for it. A rank in a section is never excused, so two ranks that hang in
          their sections do not excuse each other.
"""

from __future__ import annotations

import math
from typing import Any

import msgspec

from holdfast.core.causes import Watchdog
from holdfast.core.facts import Trip
from holdfast.core.settings.watch import WatchSettings
from holdfast.core.watchdogs.gpu_health import GpuHealth, watches_health
from holdfast.core.watchdogs.idle import Idle
from holdfast.core.watchdogs.lost_lease import BY_SYNC, LostLease
from holdfast.core.watchdogs.operator_stop import OperatorStop
from holdfast.core.watchdogs.sections import IDLE_SECTION
from holdfast.core.watchdogs.signals import Reading
from holdfast.core.watchdogs.stall import Stall
from holdfast.core.watchdogs.standstill import Standstill
from holdfast.core.watchdogs.time_limit import TimeLimit
from holdfast.core.watchdogs.verdicts import Evidence, Verdict, make_trip
from holdfast.errors import ValidationError

TICK_SECONDS = 5.0
"""The runner ticks at least this often, even where `wake_at` of the parts would allow more."""
LONGEST_EXCUSE_SECONDS = 1800.0
"""How long a section without a timeout of its own excuses the other ranks."""
ASK_AGAIN_SECONDS = 10.0
"""How long before the end of its excuse a rank asks for another one."""
DEAF_SECONDS = 15.0
"""A longer gap between two calls of a watch means that it missed datagrams, because the agent froze
or the machine slept (STALL-4)."""


def ends_hangs(settings: WatchSettings, gpus: int, *, beaten: bool) -> bool:
    """Return whether any watchdog would end a task that hangs from now on. beaten: the task has
    sent a beat."""
    if settings.time_limit_seconds is not None or watches_health(settings, gpus):
        return True
    if not beaten:
        return settings.first_beat_timeout_seconds is not None
    clocks = (settings.stall_timeout_seconds, settings.silence_limit_seconds)
    return settings.stall_watch and any(clock is not None for clock in clocks)


class SampleWish(msgspec.Struct, frozen=True):
    """A reading is wanted at the instant `at`; `fast`: it confirms a suspicion."""

    at: float
    fast: bool


class LastBeat(msgspec.Struct, frozen=True, kw_only=True):
    """The last beat, as it is reported and shown. Step and total are the last that were given."""

    at: float
    step: int | None = None
    total: int | None = None


class _State(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that must survive a kill -9 of the agent."""

    at: float = -math.inf
    time_limit: TimeLimit = TimeLimit()
    stall: Stall = Stall()
    health: GpuHealth = GpuHealth()
    lost_lease: LostLease = LostLease()
    operator_stop: OperatorStop = OperatorStop()
    idle: Idle = Idle()
    standstill: Standstill = Standstill()
    last_beat: LastBeat | None = None
    trip: Trip | None = None


class TaskWatch:
    """The watch over one attempt of one task with `gpus` devices, for a single thread."""

    def __init__(self, settings: WatchSettings, *, gpus: int) -> None:
        self._settings = settings
        self._gpus = gpus
        self._state = _State()
        self._said: list[Verdict] = []
        self._excused_until = -math.inf

    # ---- what can be asked

    @property
    def settings(self) -> WatchSettings:
        """Return the settings in force."""
        return self._settings

    @property
    def trip(self) -> Trip | None:
        """Return the trip that ended this watch, None while it runs."""
        return self._state.trip

    @property
    def last_beat(self) -> LastBeat | None:
        """Return the task's last beat, None before the first."""
        return self._state.last_beat

    @property
    def section(self) -> str | None:
        """Return the innermost open section, or None."""
        opened = self._state.stall.sections.open
        return opened[-1].name if opened else None

    @property
    def sections(self) -> tuple[str, ...]:
        """Return the names of the open sections, the innermost last."""
        return tuple(section.name for section in self._state.stall.sections.open)

    @property
    def suspected(self) -> bool:
        """Return whether a stall is being confirmed."""
        return self._state.stall.suspected

    @property
    def standstill(self) -> str:
        """Return the sentence of the suspicion that the work stands still, "" where there is none."""
        return self._state.standstill.told

    @property
    def knows_sections(self) -> bool:
        """Return whether the task has announced any section."""
        sections = self._state.stall.sections
        return bool(sections.open or sections.learned)

    def excuses_until(self) -> float:
        """Return the instant until which the task's open section excuses the silence of other
        ranks; -inf where no section does (EXCUSE-1)."""
        stall, settings = self._state.stall, self._settings
        idle = stall.sections.contains(IDLE_SECTION)
        if not stall.sections.open or idle or self._state.trip is not None:
            return -math.inf
        replaced = stall.sections.timeout(settings.section_factor)
        if replaced is None:
            return stall.sign_at + (settings.silence_limit_seconds or LONGEST_EXCUSE_SECONDS)
        timeout, given = replaced
        least = 0.0 if given else settings.stall_timeout_seconds or 0.0
        return stall.quiet_since + max(timeout, least)

    def waits(self, now: float) -> bool:
        """Return whether the task needs to be excused by another rank's section (EXCUSE-1): it is
        in no section itself, has been silent for half of the time that it may be, and its present
        excuse is over soon."""
        stall = self._state.stall
        patience = stall.patience(self._settings)
        least = min(x for x in (patience.timeout, patience.limit, math.inf) if x is not None)
        health = self._settings.health_window_seconds if self._gpus else math.inf
        silent = now - stall.quiet_since >= min(least, health) / 2
        began = self._state.time_limit.started_at is not None
        ends = self._excused_until - now < ASK_AGAIN_SECONDS
        return silent and ends and began and not stall.sections.open

    def wants_sample(self) -> SampleWish | None:
        """Return the instant at which the next reading is wanted, None for never; an instant in the
        past means now."""
        state = self._state
        if state.trip is not None or state.time_limit.started_at is None:
            return None
        stall_at = state.stall.sample_at(self._settings)
        health_at = state.health.sample_at(self._settings, self._gpus)
        health_at = math.inf if self._health_rests() else health_at
        idle_at = state.idle.sample_at(self._settings)
        if not state.stall.sections.open:
            idle_at = min(idle_at, state.standstill.sample_at(self._settings))
        at = min(stall_at, health_at, idle_at)
        return None if math.isinf(at) else SampleWish(at, fast=stall_at <= min(health_at, idle_at))

    def wake_at(self, now: float) -> float:
        """Return when `tick` must be called next if nothing happens: within `TICK_SECONDS`."""
        state = self._state
        if state.trip is not None:
            return math.inf
        wakes = (
            watch.wake_at(self._settings) for watch in (state.time_limit, state.stall, state.idle)
        )
        return min(now + TICK_SECONDS, *wakes)

    # ---- what can happen

    def started(self, now: float) -> None:
        """Note that the task's process started. Repeats change nothing."""
        if self._state.time_limit.started_at is None:
            self._hear(now)
            self._set(
                time_limit=TimeLimit(now),
                stall=self._state.stall.start(now),
                health=self._state.health.start(now),
                idle=self._state.idle.start(now),
            )

    def touch(self, now: float, *, key: bool) -> None:
        """Note a key of the task's user, or traffic of a forwarded port (AWAY-1)."""
        if self._settings.idle_timeout_seconds is not None and self._state.trip is None:
            self._hear(now)
            self._set(idle=self._state.idle.touch(self._state.at, key=key))

    def move(self, now: float, at: float | None, longest_seconds: float, what: str) -> None:
        """Note when the work last moved forward, by its steps or by what it prints (STAND-2)."""
        if self._state.trip is None:
            self._hear(now)
            standstill, said = self._state.standstill.move(at, longest_seconds, what)
            self._said += said
            self._set(standstill=standstill)

    def beat(
        self,
        now: float,
        *,
        step: int | None = None,
        total: int | None = None,
        section: str | None = None,
        timeout: float | None = None,
        leave: bool = False,
    ) -> None:
        """Apply a datagram of the task (the fields are those of `wire.beat.Beat`)."""
        if self._state.trip is not None:
            return
        self._hear(now)
        now = self._state.at
        has_step, before = step is not None, self._state.stall
        stall, is_beat, heard = before.beat(now, section, timeout, leave, has_step)
        self._said += heard
        health = self._state.health
        self._set(stall=stall, health=health.beat(now) if is_beat else health.reset(now))
        if is_beat:
            last = self._state.last_beat or LastBeat(at=now)
            step = last.step if step is None else step
            total = last.total if total is None else total
            self._set(last_beat=LastBeat(at=now, step=step, total=total))

    def sample(self, now: float, reading: Reading, *, owns_whole_box: bool = False) -> None:
        """Apply a reading of the task; a reading that is late or was not asked for does no harm.

        owns_whole_box: no other task and no foreign process uses this host's GPUs now (SIGNAL-2).
        """
        if self._state.trip is not None or self._state.time_limit.started_at is None:
            return
        self._hear(now)
        idle = self._state.idle.sample(reading, self._settings, self._gpus, owns_whole_box)
        self._set(idle=idle)
        if not self._state.stall.sections.open:
            standstill, said = self._state.standstill.sample(
                reading, self._settings, self._gpus, owns_whole_box
            )
            self._said += said
            self._set(standstill=standstill)
        stall, said = self._state.stall.check(now, self._settings)
        if not any(isinstance(verdict, Trip) for verdict in said):  # `tick` trips by silence
            self._said += said
            stall, said = stall.sample(reading, self._settings, self._gpus, owns_whole_box)
            self._said += said
            self._set(stall=stall)
        if self._health_rests():
            self._set(health=self._state.health.reset(now))
            return
        health, trip = self._state.health.sample(
            reading, self._settings, self._gpus, owns_whole_box
        )
        self._set(health=health)
        if trip is not None:
            self._said.append(trip)

    def excuse(self, until: float) -> None:
        """Note that another rank's section excuses this rank's silence until the instant `until`
        (EXCUSE-1)."""
        self._excused_until = max(until, self._excused_until)

    def renew(self, now: float, started_at: float, settings: WatchSettings) -> None:
        """Watch other work of the same task from now on, as an executor's next call.

        started_at: the begin of that work, from which its time limit counts; its silence counts
        from now. Earlier readings are no evidence against it; a lost lease or an operator's stop
        stands.
        """
        if self._state.trip is not None:
            return
        self._hear(now)
        self._settings, self._said = settings, []
        self._set(
            time_limit=TimeLimit(started_at),
            stall=Stall().start(now),
            health=GpuHealth().start(started_at).reset(now),
            standstill=Standstill(),
            last_beat=None,
        )

    def gpu_failed(self, now: float, reason: str, evidence: Evidence) -> None:
        """Trip, because the kernel reports that a device of the task is broken."""
        if self._state.trip is None and self._state.time_limit.started_at is not None:
            self._hear(now)
            self._said.append(make_trip(Watchdog.GPU_HEALTH, reason, evidence))

    def lease_lost(self, now: float, source: str = BY_SYNC) -> None:
        """Note that the controller does not know this (task, epoch) here any more."""
        self._hear(now)
        self._set(lost_lease=self._state.lost_lease.lose(now, source))

    def stop_by_operator(self, now: float, order: str) -> None:
        """Note that an operator switched the host or queue off, hard."""
        self._hear(now)
        self._set(operator_stop=self._state.operator_stop.stop(now, order))

    def change_settings(self, now: float, settings: WatchSettings) -> None:
        """Judge the task by these settings from now on."""
        self._hear(now)
        self._settings = settings

    def tick(self, now: float) -> list[Verdict]:
        """Return the verdicts since the last tick; of several trips only the first in order.

        TRIP-2  The order is: operator stop, lost lease, time limit, stall, GPU health, idle. Orders
                from outside come before measurements, since they are facts; a stall before GPU
                health, since it knows more of the work. After a trip the watch is finished and returns no
                more verdicts.
        """
        state = self._state
        if state.trip is not None:
            return []
        self._hear(now)
        stall, said = self._state.stall.check(self._state.at, self._settings)
        idle, left = self._state.idle.check(self._state.at, self._settings)
        self._set(stall=stall, idle=idle)
        said, self._said = self._said + said, []
        said = said if left is None else [*said, left]
        trips = [
            self._state.operator_stop.check(),
            self._state.lost_lease.check(),
            self._state.time_limit.check(self._state.at, self._settings),
            # The order of TRIP-2: stall (76), then GPU health (78), then idle (80).
            *sorted((v for v in said if isinstance(v, Trip)), key=lambda t: t.exit_code),
        ]
        first = next((trip for trip in trips if trip is not None), None)
        self._set(trip=first)
        others: list[Verdict] = [v for v in said if not isinstance(v, Trip)]
        return others if first is None else [*others, first]

    # ---- what survives the agent

    def dump(self, now: float) -> dict[str, Any]:
        """Return the state as plain values. The agent writes them at about every sync, because
        after a kill -9 the watch loses the time since the last dump (STALL-4)."""
        state = msgspec.structs.replace(self._state, at=max(now, self._state.at))
        kept, stall, health = msgspec.structs.asdict(state), state.stall, state.health
        kept["stall"] = {"armed": stall.armed, "sections": stall.sections}
        if stall.sign_at > -math.inf:  # infinities have no JSON
            kept["stall"] |= {"sign_at": stall.sign_at, "quiet_since": stall.quiet_since}
        names = ("started_at", "reset_at", "beaten")
        kept["health"] = {name: getattr(health, name) for name in names}
        kept["idle"] = msgspec.structs.replace(state.idle, window=None)
        kept["standstill"] = Standstill()  # the next agent sees for itself whether the work moves
        plain: dict[str, Any] = msgspec.to_builtins(kept)
        return plain

    @classmethod
    def restore(
        cls, dumped: object, now: float, settings: WatchSettings, *, gpus: int
    ) -> TaskWatch:
        """Return the watch that `dump` wrote, on the same boot of the same host.

        Its readings are not kept, because a window with a gap proves nothing.

        Raises:
            ValidationError: not a dump, or one of another boot; begin with a new watch then.
        """
        try:
            state = msgspec.convert(dumped, _State)
        except msgspec.ValidationError as error:
            raise ValidationError(f"this is not a watch's state: {error}") from error
        if state.at > now:
            raise ValidationError(
                f"this watch's state is of instant {state.at}, after {now}: it is of another boot"
            )
        watch = cls(settings, gpus=gpus)
        watch.resume(state, now)
        return watch

    def resume(self, state: _State, now: float) -> None:
        """Go on from a dumped state; the time since then does not count as silence."""
        self._state = state
        if state.at > -math.inf:
            self._listen_again(now, now - state.at)

    # ---- inside

    def _set(self, **changes: Any) -> None:
        self._state = msgspec.structs.replace(self._state, **changes)

    def _hear(self, now: float) -> None:
        """Move time on, never back, and notice a long time without calls."""
        before = self._state.at
        if now <= before:
            return
        if now - before > DEAF_SECONDS and before > -math.inf:
            self._listen_again(now, now - before)
            return
        excused = min(now, self._excused_until) - before
        if excused > 0 and before > -math.inf and not self._state.stall.sections.open:
            self._listen_again(now, excused)
        else:
            self._set(at=now)

    def _listen_again(self, now: float, deaf_seconds: float) -> None:
        health = self._state.health
        health = health.reset(now) if health.started_at is not None else health
        self._set(
            at=now,
            stall=self._state.stall.listen_again(deaf_seconds),
            health=health,
            standstill=self._state.standstill.listen_again(deaf_seconds),
        )

    def _health_rests(self) -> bool:
        """Return whether GPU health pauses: inside a section in which another clock runs, because
        an evaluation on the CPU may leave the GPU idle. Where no clock runs (no beat yet, or the
        stall watch is off) GPU health goes on."""
        stall = self._state.stall
        patience = stall.patience(self._settings)
        timed = patience.timeout is not None or patience.limit is not None
        return bool(stall.sections.open) and timed
