"""The time since which this replica leads, by the store's clock: silence of hosts counts from
there.

- `since` is the store's time at which this replica began to lead, or to which the store's clock was
  set: LEASE-4 and LEASE-5 count from it.

LEAD-4  `hears_since` is the store's time from which hosts could be heard without a gap: `since`, or
        the end of the last pause in the stamps of renewals (LEASE-6), whichever server it held up.
        A host that could not be heard is not silent.
"""

import logging
import math
from collections.abc import Callable
from datetime import datetime

from holdfast.controller.runtime.outages import Outages
from holdfast.core.lease import ClockReading, find_step
from holdfast.store.postgres.store import PostgresStore

log = logging.getLogger("holdfast.controller")
STAMP_SECONDS = 1.0
"""Between two stamps of renewals."""


class Leadership:
    """The start of one replica's leadership. `since` is None while another replica leads."""

    def __init__(self, store: PostgresStore, clock: Callable[[], float], outages: Outages) -> None:
        self._store = store
        self._clock = clock
        self._outages = outages
        self._since: datetime | None = None
        self._reading: ClockReading | None = None
        self._heard_since: datetime | None = None
        self._stamped_at = -math.inf

    @property
    def since(self) -> datetime | None:
        """Return the store's time from which silence counts, or None."""
        return self._since

    @property
    def hears_since(self) -> datetime | None:
        """Return the store's time since which hosts were heard without a pause (LEAD-4), or
        None."""
        if self._since is None or self._heard_since is None:
            return self._since
        return max(self._since, self._heard_since)

    def begin(self, at: datetime) -> None:
        """Count the silence of hosts from `at`."""
        self._since = at

    async def confirm(self, *, begins: bool) -> None:
        """Count the silence of hosts from now where leadership begins."""
        if begins or self._since is None:
            self.begin(await self._store.now())

    def end(self) -> None:
        """Stop counting the silence of hosts, because another replica may lead."""
        self._since = None

    async def read_time(self) -> datetime:
        """Return the store's time, for loops that judge silence by it, and stamp that renewals can
        be written, unless those of this replica fail or wait (LEASE-6). Where the store's clock was
        set, the count begins anew (LEASE-5)."""
        before = self._clock()
        if not self._outages.takes_renewals:
            at = self._heard_since = await self._store.now()
        elif before - self._stamped_at < STAMP_SECONDS:
            at = await self._store.now()
        else:
            at, heard = await self._store.leases.stamp_renewals()
            self._heard_since = max(filter(None, (heard, self._heard_since)), default=None)
            self._stamped_at = before
        self._outages.note_success()
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
            self._heard_since = at  # before it stands the clock before the step
        self._reading = this
        return at
