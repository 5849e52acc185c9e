"""Lease arithmetic.

LEASE-1  A task's right to run is counted from the *start* of the sync that granted it, on the
         host's own clock.
LEASE-2  The host ends a task at TTL − margin; the controller re-places it at TTL + margin after its
         own later clock reading. So two attempts of one job never overlap, partition or not, while
         clock *rates* differ by less than 2 × margin / TTL (6 % or more; a quartz drifts 0.01 %).
LEASE-3  Silence waits for the lease; evidence (a new incarnation, a provider's or operator's word)
         does not.
LEASE-4  After the controller's own start nothing is reaped until every host has had one full TTL to
         check in.
LEASE-5  So it is after a step of the store's clock: a clock that was set says nothing of how long
         anybody was silent, and a time that it put into the future is brought back to its present.
"""

from __future__ import annotations

from datetime import datetime

import msgspec

STEP_SECONDS = 1.0
"""A step of less than the least margin fits between the host's end of a lease and the controller's
(LEASE-2)."""
STEP_SHARE = 0.05
"""A clock that gains or loses this much of the time is not stepped but slewed, which LEASE-2
stands."""


class ClockReading(msgspec.Struct, frozen=True, kw_only=True):
    """The store's clock, read at some moment between two of the reader's own monotonic clock."""

    at: datetime
    before: float
    after: float


def find_step(last: ClockReading, this: ClockReading) -> float:
    """By how many seconds the store's clock was set between two readings, negative where it was set
    back; else 0."""
    told = (this.at - last.at).total_seconds()
    least, most = this.before - last.after, this.after - last.before
    step = told - most if told > most else min(0.0, told - least)
    return step if abs(step) > max(STEP_SECONDS, STEP_SHARE * most) else 0.0


def margin_seconds(ttl_seconds: float) -> float:
    """The guard on each side of a lease: 5 % of it, at least 1 s. The KILL and its confirmation fit
    in twice this."""
    return max(1.0, 0.05 * ttl_seconds)


def host_deadline(sync_started_at: float, ttl_seconds: float) -> float:
    """When the guardian ends the task, on the host's CLOCK_BOOTTIME, given when the granting sync
    *started*."""
    return sync_started_at + ttl_seconds - margin_seconds(ttl_seconds)
