"""Lost lease: the controller does not know this (task, epoch), so the process must end (FENCE-1)."""

from __future__ import annotations

import msgspec

from holdfast.core.causes import Watchdog
from holdfast.core.facts import Trip
from holdfast.core.watchdogs.verdicts import make_trip

BY_SYNC = "the sync's answer"
BY_CALLS = "the exchange of calls"
TOLD = (BY_SYNC, BY_CALLS)
"""The sources of a loss that the controller alone told, beside the guardian's own clock and others."""


class LostLease(msgspec.Struct, frozen=True):
    """The state of this watchdog. lost_at: when the loss became known, None while the lease stands;
    source: what made it known."""

    lost_at: float | None = None
    source: str = ""

    def lose(self, now: float, source: str) -> LostLease:
        """Note that the lease is lost; a later call changes nothing."""
        return self if self.lost_at is not None else LostLease(now, source)

    def check(self) -> Trip | None:
        """Trip at once, because a lost lease is a fact that needs no confirmation."""
        if self.lost_at is None:
            return None
        reason = f"the controller no longer knows this task and epoch on this host ({self.source})"
        return make_trip(Watchdog.LOST_LEASE, reason, {"source": self.source})
