"""A rank's beats → blocks of steps, in a memory that is bounded at any pace of the job.

PACE-2  A block ends at a multiple of its length, and lengths are 5, 10, 20 … steps, so blocks of
        ranks on different hosts cover the same steps.
PACE-3  A block takes a second or more, so a fast job costs no more than a slow one. Steps in which
        a section was open are no part of a block, because an evaluation or a save is not the pace.
"""

from __future__ import annotations

from statistics import median

import msgspec

from holdfast.core.stragglers.agree import ChecksumRing
from holdfast.core.stragglers.values import MAX_BLOCKS, PaceBlock

LEAST_STEPS = 5
LEAST_SECONDS = 1.0
LEAST_BEATS = 3
CPU_SECONDS = 0.15
"""The shortest time between two readings of the processor time."""
MAX_BEATS = 256
"""Beats of one block that are kept: every second one is dropped beyond that."""
MAX_LENGTH = 5 << 16
_DIGITS = 7
"""Decimals of a second that are told: a tenth of a microsecond."""


class _Ended(msgspec.Struct, frozen=True):
    """A block, and the instant of its last beat."""

    at: float
    block: PaceBlock


class _CpuSeen(msgspec.Struct, frozen=True):
    """A reading of the processor time."""

    at: float
    step: int
    seconds: float


class PaceRing:
    """The blocks of one rank that are not told yet, and the steps of the present one."""

    __slots__ = (
        "_at", "_began_at", "_began_step", "_cpu", "_ended", "_length", "_owns", "_seconds",
        "_skipped", "_step", "_used", "_waited",
    )  # fmt: skip

    def __init__(self) -> None:
        self._step: int | None = None  # of the last beat
        self._at = 0.0
        self._waited: float | None = None
        self._cpu: _CpuSeen | None = None
        self._length = LEAST_STEPS
        self._ended: list[_Ended] = []
        self._begin(0, 0.0)

    def _begin(self, step: int, at: float) -> None:
        self._began_step, self._began_at = step, at
        self._used: list[float] = []  # processor seconds a step, reading by reading
        self._seconds: list[float] = []
        self._owns: list[float] = []
        self._skipped = False

    def beat(self, at: float, step: int, waited: float | None = None) -> bool:
        """Note a beat at the instant `at`; return True if a block is full, after which the caller
        calls `end`.

        waited: seconds that the rank has waited for others since its start, as far as the job says.
        """
        before, self._step = self._step, step
        since, self._at = self._at, at
        had, self._waited = self._waited, waited
        if had is not None and waited is not None and waited < had:
            had = None  # another process beats now
        if before is None or step < before or at < since:
            self._length = LEAST_STEPS
            self._cpu = None
            self._begin(step, at)
            return False
        count = step - before
        if count == 0:
            self._step, self._at, self._waited = before, since, had
            return False
        if not self._skipped:
            seconds = (at - since) / count
            self._seconds.append(seconds)
            if waited is not None and had is not None:
                self._owns.append(max(0.0, seconds - (waited - had) / count))
            if len(self._seconds) > MAX_BEATS:
                self._seconds, self._owns = self._seconds[::2], self._owns[::2]
        return step // self._length > self._began_step // self._length

    def wants_cpu(self, now: float) -> bool:
        """Return whether a reading of the processor time is due."""
        return self._cpu is None or now - self._cpu.at >= CPU_SECONDS

    def read_cpu(self, now: float, seconds: float | None) -> None:
        """Take a reading at a beat: the processor seconds of the rank until now. None: unknown."""
        before, step = self._cpu, self._step or 0
        self._cpu = None if seconds is None else _CpuSeen(now, step, seconds)
        if before is not None and seconds is not None and step > before.step:
            self._used.append(max(0.0, seconds - before.seconds) / (step - before.step))
            del self._used[:-MAX_BEATS]

    def skip(self) -> None:
        """Drop the present block, because a section is open."""
        self._skipped = True

    def end(self) -> None:
        """End the block that is full."""
        step, at = self._step or 0, self._at
        steps, took = step - self._began_step, at - self._began_at
        few = len(self._seconds) < LEAST_BEATS
        if not self._skipped and (few or took < LEAST_SECONDS) and self._length < MAX_LENGTH:
            self._length *= 2
            return
        if not few:
            whole = len(self._owns) == len(self._seconds)
            used = _round(self._used) if self._used and not self._skipped else None
            self._ended.append(
                _Ended(
                    at,
                    PaceBlock(
                        last_step=step,
                        steps=steps,
                        seconds=_round(self._seconds),
                        own_seconds=_round(self._owns) if whole else None,
                        cpu_seconds=used,
                    ),
                )
            )
            del self._ended[:-MAX_BLOCKS]
        if took > 2.2 * LEAST_SECONDS and self._length > LEAST_STEPS:
            self._length //= 2
        self._begin(step, at)

    def take_blocks(self, now: float) -> list[PaceBlock]:
        """Return the blocks that were not told yet, with their ages, and forget them."""
        if not self._ended:
            return []
        ended, self._ended = self._ended, []
        return [
            msgspec.structs.replace(one.block, age_seconds=round(max(0.0, now - one.at), 4))
            for one in ended
        ]


def _round(seconds: list[float]) -> float:
    return round(median(seconds), _DIGITS)


class RankRings:
    """One rank's recent steps, which the agent keeps for the comparison with others. waited_ms: as much of the
    wait that the job told as is counted in its tally."""

    __slots__ = ("checksums", "pace", "waited_ms")

    def __init__(self) -> None:
        self.pace = PaceRing()
        self.checksums = ChecksumRing()
        self.waited_ms = 0
