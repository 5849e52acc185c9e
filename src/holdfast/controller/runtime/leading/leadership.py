"""The time since which this replica leads, by the store's clock: silence of hosts counts from
there.

- `since` is the store's time at which this replica began to lead, or at which the last outage was
  over, or to which the store's clock was set: LEASE-4 and LEASE-5 count from it.

LEAD-4  `hears_since` is the store's time from which hosts could be heard without a gap: `since`, or
        the end of the last pause of this replica or of its store. A host that could not be heard is
        not silent.
"""

import logging
from collections.abc import Callable
from datetime import datetime

from holdfast.controller.runtime.outages import Outages
from holdfast.core.lease import ClockReading, find_step
from holdfast.store.postgres.store import PostgresStore

log = logging.getLogger("holdfast.controller")
MAX_PAUSE_SECONDS = 10.0
"""Two intervals of the slowest loop that reads the time. A longer gap between two readings means
that this replica itself had paused."""


class Leadership:
    """The start of one replica's leadership. `since` is None while another replica leads."""

    def __init__(self, store: PostgresStore, clock: Callable[[], float], outages: Outages) -> None:
        self._store = store
        self._clock = clock
        self._outages = outages
        self._since: datetime | None = None
        self._restarts = False
        self._reading: ClockReading | None = None
        self._resumed: datetime | None = None
        outages.call_when_over(self._restart)

    @property
    def since(self) -> datetime | None:
        """Return the store's time from which silence counts, or None."""
        return self._since

    @property
    def hears_since(self) -> datetime | None:
        """Return the store's time since which hosts were heard without a pause (LEAD-4), or
        None."""
        if self._since is None or self._resumed is None:
            return self._since
        return max(self._since, self._resumed)

    def begin(self, at: datetime) -> None:
        """Count the silence of hosts from `at`."""
        self._since = at

    async def confirm(self, *, begins: bool) -> None:
        """Count the silence of hosts from now where leadership begins, or where an outage ended
        since."""
        if begins or self._restarts or self._since is None:
            self._restarts = False  # before the call: an outage during it restarts the count again
            self.begin(await self._store.now())

    def end(self) -> None:
        """Stop counting the silence of hosts, because another replica may lead."""
        self._since = None

    def _restart(self) -> None:
        # No lease may lapse by the old count, not even before the new one is read.
        self._since = None
        self._restarts = True

    async def read_time(self) -> datetime:
        """Return the store's time, for loops that judge silence by it. Where the store's clock was
        set, the count begins anew (LEASE-5)."""
        before = self._clock()
        at = await self._store.now()
        self._outages.note_success()  # ends a long outage first, so that the old count is gone (LEASE-4)
        last, this = self._reading, ClockReading(at=at, before=before, after=self._clock())
        step = 0.0 if last is None else find_step(last, this)
        if step < 0.0 or last is None:  # before the first reading the clock may have been set too
            await self._store.leases.settle_clock()
        if step:
            log.error(
                "the database's clock was set %s by %.1f s; no host counts as silent before a "
                "whole lease has passed",
                "forward" if step > 0.0 else "back",
                abs(step),
            )
            if self._since is not None:
                self.begin(at)
            self._resumed = None  # by the clock before the step
        paused = last is not None and this.after - last.before > MAX_PAUSE_SECONDS
        if paused or not self._outages.takes_renewals:
            self._resumed = at
        self._reading = this
        return at
