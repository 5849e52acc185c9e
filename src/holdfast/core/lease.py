"""Lease arithmetic.

LEASE-1  A task's right to run is counted from the *start* of the sync that granted it, on the
         host's own clock.
LEASE-2  The host ends a task at TTL − margin; the controller re-places it at TTL + margin after its
         own later clock reading. So two attempts of one job never overlap, partition or not, while
         clock *rates* differ by less than 2 × margin / TTL (6 % or more; a quartz drifts 0.01 %).
LEASE-3  The tasks of a silent host are freed when their leases end. With evidence of their end (a
         new incarnation, the report of a provider or an operator) they are freed at once. A host's
         goodbye is evidence of the ends that it reports, and of no other.
LEASE-4  After its own start the controller reaps nothing until every host has had one full TTL to
         check in.
LEASE-5  The same holds after a step of the store's clock, because a clock that was set does not
         show how long a host was silent. Times that the step put into the future are set to the
         present.
LEASE-6  A lease counts only time in which a renewal could be written. The leader stamps that time
         in the database, through the tables that renewals write, so a lock, a full disk, a
         read-only database, a failover or a stopped controller leaves a gap, for all replicas
         alike. The silence of all hosts leaves none.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from itertools import pairwise

import msgspec

STEP_SECONDS = 1.0
"""A step of less than the least margin fits between the host's end of a lease and the controller's
(LEASE-2)."""
STEP_SHARE = 0.05
"""A clock that gains or loses less of the time than this is slewed, not stepped: LEASE-2 allows it."""


GAP_SECONDS = 3.0
"""Stamps come every other second, so a time without one is a gap after this much (LEASE-6). Only the
rest of it is one: a leader that is always slow must not keep the leases of a dead host for ever."""


class Spell(msgspec.Struct, frozen=True):
    """A time in which renewals could be written: from its first stamp to its last."""

    since: datetime
    until: datetime


def count_gaps(spells: Sequence[Spell], since: datetime, until: datetime) -> float:
    """Return the seconds between two times in which no renewal could be written (LEASE-6). spells:
    in order; nothing is known of the time before the first."""
    ends = [*spells, Spell(until, until)] if spells else []
    slack = timedelta(seconds=GAP_SECONDS)
    gaps = (
        min(later.since, until) - max(earlier.until + slack, since)
        for earlier, later in pairwise(ends)
    )
    return sum(max(0.0, gap.total_seconds()) for gap in gaps)


class ClockReading(msgspec.Struct, frozen=True, kw_only=True):
    """The store's clock, read between `before` and `after` of the reader's monotonic clock."""

    at: datetime
    before: float
    after: float


def find_step(last: ClockReading, this: ClockReading) -> float:
    """Return the seconds by which the store's clock was set between two readings; negative where it
    was set back."""
    passed = (this.at - last.at).total_seconds()
    # The monotonic clock bounds the true time between the readings; the rest is the step.
    least, most = this.before - last.after, this.after - last.before
    step = passed - most if passed > most else min(0.0, passed - least)
    return step if abs(step) > max(STEP_SECONDS, STEP_SHARE * most) else 0.0


def margin_seconds(ttl_seconds: float) -> float:
    """Return the guard on each side of a lease, 5 %, at least 1 s; KILL takes less than two."""
    return max(1.0, 0.05 * ttl_seconds)


def host_deadline(sync_started_at: float, ttl_seconds: float) -> float:
    """Return when the guardian ends a task, for a sync *started* then (CLOCK_BOOTTIME)."""
    return sync_started_at + ttl_seconds - margin_seconds(ttl_seconds)
