"""GPUs that are held for nothing: jobs whose GPUs all did nothing for a long time.

HELD-1  A job is judged only where every device of it was idle in the whole of each look, by the
        ledger. A look in which one worked, or in which the job was in a section of its own, begins
        anew. A look without readings is no evidence, and changes nothing.
HELD-2  A job at which a person sits is never judged, nor an executor: each has a rule of its own for
        idleness (AWAY-1, `executor_idle_seconds`). Of a job that runs once, people are told, and it is
        never stopped, because it could not be queued again.
HELD-3  Nothing is stopped before people were told and `idle_gpus_drain_seconds` went by after that,
        and then by a drain: the job saves, and is queued again at no charge.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from enum import StrEnum

import msgspec

from holdfast.core.ledger.values import LedgerName
from holdfast.core.records import Record

IDLE_NAMES = (LedgerName.IDLE, LedgerName.UNMEASURED_IDLE)
_WHOLE = 0.98
"""The part of a look that must be idle: a minute's edges may lie in what came before."""


class IdlePolicy(msgspec.Struct, frozen=True, kw_only=True):
    """A project's policy for jobs whose GPUs idle. then: off, tell, or drain."""

    then: str = "tell"
    tell_seconds: float = 1800.0
    drain_seconds: float = 1800.0


class IdleGpus(Record, frozen=True, kw_only=True):
    """A job that holds idle GPUs. since: when they fell idle. seen_at: the end of the last look.
    told_at: when people were told, None before. usd_per_hour: what its GPUs cost, None without a
    price."""

    job_id: str
    epoch: int
    gpus: int
    since: datetime
    seen_at: datetime
    told_at: datetime | None = None
    usd_per_hour: float | None = None

    @property
    def seconds(self) -> float:
        """Return for how long the GPUs have been idle."""
        return (self.seen_at - self.since).total_seconds()

    @property
    def usd(self) -> float | None:
        """Return what the idle time has cost."""
        return None if self.usd_per_hour is None else self.usd_per_hour * self.seconds / 3600


class IdleJob(Record, frozen=True, kw_only=True):
    """A job that holds idle GPUs, as it is shown. policy: off, tell or drain, as its project sets it.
    drain_at: when it will be stopped unless its GPUs work before; None where it will not."""

    job_id: str
    name: str
    project: str
    owner: str
    queue: str
    gpus: int
    idle_seconds: float
    usd: float | None = None
    told_at: datetime | None = None
    policy: str = "tell"
    drain_at: datetime | None = None


class IdleLook(msgspec.Struct, frozen=True, kw_only=True):
    """The idle time that one look at a job found. ms: milliseconds × devices by name, from `since` to `until`.
    excused: the job was in a section of its own, or has a rule of its own for idleness."""

    job_id: str
    epoch: int
    gpus: int
    since: datetime
    until: datetime
    ms: Mapping[LedgerName, int]
    excused: bool = False
    usd_per_hour: float | None = None


class Then(StrEnum):
    """The next act for a job whose GPUs idle: nothing, a notice to people, or a stop."""

    KEEP = "keep"
    TELL = "tell"
    DRAIN = "drain"


def take_look(before: IdleGpus | None, look: IdleLook) -> IdleGpus | None:
    """Return what is known of a job after a look, None where its GPUs are not idle (HELD-1)."""
    known = before if before is not None and before.epoch == look.epoch else None
    whole = sum(look.ms.values())
    idle = sum(look.ms.get(name, 0) for name in IDLE_NAMES)
    if look.excused or (whole and idle < whole * _WHOLE):
        return None
    if not whole:
        return known
    if known is None:
        held = timedelta(milliseconds=whole / max(1, look.gpus))
        return IdleGpus(
            job_id=look.job_id,
            epoch=look.epoch,
            gpus=look.gpus,
            since=max(look.since, look.until - held),  # it may have begun within the look
            seen_at=look.until,
            usd_per_hour=look.usd_per_hour,
        )
    seen_at = max(known.seen_at, look.until)
    return msgspec.structs.replace(known, seen_at=seen_at, usd_per_hour=look.usd_per_hour)


def decide_idle(found: IdleGpus, policy: IdlePolicy) -> Then:
    """Return what is to be done about a job whose GPUs are idle (HELD-3)."""
    if policy.then == "off" or found.seconds < policy.tell_seconds:
        return Then.KEEP
    if found.told_at is None:
        return Then.TELL
    drain_at = find_drain(found, policy)
    return Then.DRAIN if drain_at is not None and found.seen_at >= drain_at else Then.KEEP


def find_drain(found: IdleGpus, policy: IdlePolicy) -> datetime | None:
    """Return when a job will be stopped, None where it will not or people were not told yet."""
    if policy.then != "drain" or found.told_at is None:
        return None
    return found.told_at + timedelta(seconds=policy.drain_seconds)


def say_idle(found: IdleGpus, policy: IdlePolicy, *, drains: bool = False) -> str:
    """Return the sentence of an event, or of the drain."""
    gpus = f"{found.gpus} GPU{'s' * (found.gpus != 1)}"
    cost = f", which cost ${found.usd:,.2f}" if found.usd else ""
    minutes = found.seconds / 60
    said = f"it holds {gpus} that did nothing for {minutes:.0f} min{cost}"
    if drains:
        return f"{said}; it is queued again (idle_gpus=drain)"
    if policy.then == "drain":
        drain_at = find_drain(found, policy)
        left = policy.drain_seconds / 60
        if drain_at is not None:
            left = max(0.0, (drain_at - found.seen_at).total_seconds() / 60)
        return f"{said}; unless they work, it is stopped in {left:.0f} min and queued again"
    return said
