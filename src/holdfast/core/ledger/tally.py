"""An agent's count of what one task spent its time on, as a state machine.

A tally is cumulative since the task's start, so a report that is lost, repeated or late loses
nothing and counts nothing twice. Two events name earlier time anew: at its first beat a task turns
out to have been loading, and at the trip of a watchdog the silence before it was a stall.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from holdfast.bounds import Large
from holdfast.core.ledger.values import LedgerName

WAIT_SECTION = "wait"
SAVE_SECTION = "checkpoint"
BRIEF_MS = 5000
"""A task that ended within this time and never beat sends no tally, because it would say nothing
that its lease does not."""
_NEVER_STALLED = frozenset(
    {LedgerName.SETTING_UP, LedgerName.CHECKPOINTING, LedgerName.STALLED, LedgerName.DRAINING}
)
_UNBEATEN = (LedgerName.UNMEASURED_BUSY, LedgerName.UNMEASURED_IDLE)
_Name = Annotated[str, Meta(pattern="^[a-z_]{1,32}$")]


class Tally(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Milliseconds since the task's start by name; a name that another version made up is ignored.

    now: what the task spends its time on from here. beaten: it has sent a beat. first_step, step:
    the steps of its first and its furthest beat.
    """

    ms: Annotated[dict[_Name, Large], Meta(max_length=32)] = {}
    now: _Name = LedgerName.SETTING_UP
    beaten: bool = False
    first_step: Large | None = None
    step: Large | None = None

    @property
    def total_ms(self) -> int:
        """Return the time that was counted."""
        return sum(self.ms.values())

    @property
    def says_little(self) -> bool:
        """Return whether the task's lease alone says as much: it was brief and never beat."""
        return not self.beaten and self.total_ms < BRIEF_MS


class TallyClock(msgspec.Struct, frozen=True, kw_only=True):
    """A tally that is being counted. Instants are milliseconds of CLOCK_BOOTTIME.

    at_ms: the instant up to which it is counted; None before it begins. mark: the milliseconds by
    name as they were at the last sign of progress.
    """

    tally: Tally = Tally()
    at_ms: int | None = None
    mark: dict[str, int] = {}

    def count(self, now_ms: int, name: LedgerName) -> TallyClock:
        """Count the time since the last call as what the task did then; it does `name` from now
        on. An instant before the last one counts nothing."""
        tally, at = self.tally, self.at_ms
        if at is None or now_ms < at:
            return msgspec.structs.replace(
                self, at_ms=now_ms, tally=msgspec.structs.replace(tally, now=name)
            )
        ms = tally.ms
        if now_ms > at:
            ms = {**ms, tally.now: ms.get(tally.now, 0) + now_ms - at}
        elif name == tally.now:
            return self
        counted = msgspec.structs.replace(tally, ms=ms, now=name)
        return msgspec.structs.replace(self, at_ms=now_ms, tally=counted)

    def beat(self, now_ms: int, step: int | None, name: LedgerName) -> TallyClock:
        """Count a beat. The first one names the time before it *loading*."""
        counted = self.count(now_ms, name)
        tally = counted.tally
        ms = tally.ms
        if not tally.beaten:
            ms = _move(ms, _UNBEATEN, LedgerName.LOADING)
        first, furthest = tally.first_step, tally.step
        if step is not None:
            first = step if first is None else first
            furthest = step if furthest is None else max(furthest, step)
        told = msgspec.structs.replace(tally, ms=ms, beaten=True, first_step=first, step=furthest)
        return msgspec.structs.replace(counted, tally=told, mark=ms)

    def wait(self, told_ms: int, counted_ms: int) -> tuple[TallyClock, int]:
        """Name as much work *waiting for peers* as a rank told since its start beyond `counted_ms`,
        where so much was counted as work; return how much is named now. A sum that fell is that of
        another process, and begins anew."""
        if told_ms < counted_ms:
            return self, told_ms
        ms = self.tally.ms
        moved = min(told_ms - counted_ms, ms.get(LedgerName.KEPT, 0))
        if moved <= 0:
            return self, counted_ms
        named = {**ms, LedgerName.KEPT: ms[LedgerName.KEPT] - moved}
        named[LedgerName.WAITING] = ms.get(LedgerName.WAITING, 0) + moved
        tally = msgspec.structs.replace(self.tally, ms=named)
        mark = {**self.mark, LedgerName.WAITING: named[LedgerName.WAITING]}
        mark[LedgerName.KEPT] = min(mark.get(LedgerName.KEPT, 0), named[LedgerName.KEPT])
        return msgspec.structs.replace(self, tally=tally, mark=mark), counted_ms + moved

    def save(self, took_ms: int) -> TallyClock:
        """Name the last `took_ms` *checkpointing*, as far as they have the present name."""
        tally, to = self.tally, LedgerName.CHECKPOINTING
        took = min(took_ms, tally.ms.get(tally.now, 0))
        if took <= 0 or tally.now in _NEVER_STALLED:
            return self
        ms = {**tally.ms, tally.now: tally.ms[tally.now] - took, to: tally.ms.get(to, 0) + took}
        return msgspec.structs.replace(self, tally=msgspec.structs.replace(tally, ms=ms))

    def stall(self, now_ms: int) -> TallyClock:
        """Name the time since the last beat *stalled*, except what saves took."""
        counted = self.count(now_ms, LedgerName.DRAINING)
        ms = dict(counted.tally.ms)
        for name in list(ms):
            grown = ms[name] - self.mark.get(name, 0)
            if grown > 0 and name not in _NEVER_STALLED:
                ms[name] -= grown
                ms[LedgerName.STALLED] = ms.get(LedgerName.STALLED, 0) + grown
        told = msgspec.structs.replace(counted.tally, ms=ms)
        return msgspec.structs.replace(counted, tally=told)


def _move(ms: dict[str, int], names: tuple[LedgerName, ...], to: LedgerName) -> dict[str, int]:
    moved = sum(ms.get(name, 0) for name in names)
    left = {name: count for name, count in ms.items() if name not in names}
    return {**left, to: left.get(to, 0) + moved} if moved else left


def name_now(
    *, began: bool, stopping: bool, beaten: bool, sections: tuple[str, ...], idle: bool
) -> LedgerName:
    """Return the name of what a task spends its time on, the first in precedence.

    began: its own program runs. stopping: it was told to stop. sections: the names of the sections
    that it is in. idle: its GPUs were read, and did nothing.
    """
    if stopping:
        return LedgerName.DRAINING
    if SAVE_SECTION in sections:
        return LedgerName.CHECKPOINTING
    if WAIT_SECTION in sections:
        return LedgerName.WAITING
    if not began:
        return LedgerName.SETTING_UP
    if not beaten:
        return LedgerName.UNMEASURED_IDLE if idle else LedgerName.UNMEASURED_BUSY
    return LedgerName.IDLE if idle else LedgerName.KEPT
