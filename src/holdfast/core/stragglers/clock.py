"""Another host's clock, as far as syncs tell it.

CLOCK-1  A message is heard no earlier than it was sent, so the least difference that was seen between the
         hearing and the sending is nearest to the truth, and it is wrong by no more than the shortest
         round trip.
"""

from __future__ import annotations

from collections import deque

KEPT = 16
"""Syncs that count: in the time that they take two quartz clocks part by a few milliseconds."""
DRIFT = 1e-4
"""By how much two clocks may run apart, as a share."""


class HostClock:
    """The clock of one host, compared with that of this process."""

    __slots__ = ("_seen",)

    def __init__(self) -> None:
        self._seen: deque[tuple[float, float, float]] = deque(maxlen=KEPT)

    def note_sync(self, heard_at: float, sent_at: float, round_trip: float | None) -> None:
        """Note a sync that the host sent at `sent_at` of its clock. round_trip: the shortest time
        of a sync and its answer that the host has measured."""
        if self._seen and sent_at < self._seen[-1][1]:
            self._seen.clear()  # it was started anew
        self._seen.append((heard_at, sent_at, 1.0 if round_trip is None else round_trip))

    def translate(self, instant: float) -> tuple[float, float]:
        """Return an instant of the host's clock on this one's, and by how much that may be
        wrong."""
        heard, sent, trip = min(self._seen, key=lambda one: one[0] - one[1])
        newest = self._seen[-1][0]
        return instant + heard - sent, trip + DRIFT * (newest - heard)
