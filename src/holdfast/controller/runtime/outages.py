"""Whether the store takes the hosts' renewals, and since when it did not."""

from __future__ import annotations

import logging
from collections.abc import Callable

log = logging.getLogger("holdfast.controller")
TOLERATED_SECONDS = 3.0
QUIET_SECONDS = 10.0


class Outages:
    """From the first call that failed for want of the store until hosts can renew again.

    Hosts missed their renewals meanwhile, so after an outage longer than `TOLERATED_SECONDS`
    LEASE-4 asks for a fresh count: `on_over` is called. That another call went through does not
    mean that a renewal would: a store on a full disk, or one that has become read-only, answers
    reads all along, and a loop may have had nothing to ask. Such a call ends an outage only when
    nothing has failed for `QUIET_SECONDS`, as where no host is left to renew anything.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._since: float | None = None
        self._failed_at = 0.0
        self.on_over: Callable[[], None] = lambda: None

    @property
    def going_on(self) -> bool:
        """True between a failed call and the end of its outage."""
        return self._since is not None

    def note_failure(self, error: Exception) -> None:
        """A call of the store failed for want of the store."""
        self._failed_at = self._clock()
        if self._since is None:
            self._since = self._failed_at
            log.error(
                "the store cannot be reached; work that runs goes on under its leases: %s", error
            )

    def note_renewal(self) -> None:
        """Hosts could renew: whatever was, is over."""
        if self._since is None:
            return
        away = self._clock() - self._since
        self._since = None
        log.warning("the store answers again after %.1f s", away)
        if away > TOLERATED_SECONDS:
            self.on_over()

    def note_success(self) -> None:
        """Something else went through."""
        if self._clock() - self._failed_at >= QUIET_SECONDS:
            self.note_renewal()
