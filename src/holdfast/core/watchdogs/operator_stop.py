"""Operator stop: an operator switched the host or the queue off, hard."""

from __future__ import annotations

import msgspec

from holdfast.core.causes import Watchdog
from holdfast.core.facts import Trip
from holdfast.core.watchdogs.verdicts import make_trip


class OperatorStop(msgspec.Struct, frozen=True):
    """The state of this watchdog. ordered_at: the time of the order, None without one; order: its
    reason."""

    ordered_at: float | None = None
    order: str = ""

    def stop(self, now: float, order: str) -> OperatorStop:
        """Note the order; a repeated one changes nothing."""
        return self if self.ordered_at is not None else OperatorStop(now, order)

    def check(self) -> Trip | None:
        """Trip at once, because an order needs no confirmation."""
        if self.ordered_at is None:
            return None
        reason = f"an operator stopped it: {self.order}"
        return make_trip(Watchdog.OPERATOR_STOP, reason, {"order": self.order[:256]})
