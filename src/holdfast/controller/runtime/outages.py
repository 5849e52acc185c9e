"""Note whether the store accepts the hosts' renewals, and since when it does not."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

log = logging.getLogger("holdfast.controller")
TOLERATED_SECONDS = 3.0
QUIET_SECONDS = 10.0


class Outages:
    """An outage lasts from the first call that the store did not answer until hosts can renew again.

    Meanwhile this replica stamps no renewals (LEASE-6). Another call that goes through does not
    prove that a renewal would: a store on a full disk, or a read-only one, answers reads all along,
    and a loop may have asked nothing. Such a call ends an outage only when nothing has failed for
    `QUIET_SECONDS`, as happens where no host is left to renew anything.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._since: float | None = None
        self._failed_at = 0.0
        self._asked_at: list[float] = []  # one per waiting renewal, the oldest first

    @property
    def going_on(self) -> bool:
        """Return True between a failed call and the end of its outage."""
        return self._since is not None

    @property
    def takes_renewals(self) -> bool:
        """Return False in an outage, and while renewals wait longer than `TOLERATED_SECONDS` for
        the store."""
        waits = self._clock() - self._asked_at[0] if self._asked_at else 0.0
        return not self.going_on and waits <= TOLERATED_SECONDS

    @contextmanager
    def asking(self) -> Iterator[None]:
        """Count renewals as waiting for the store within the block."""
        at = self._clock()
        self._asked_at.append(at)
        try:
            yield
        finally:
            self._asked_at.remove(at)

    def note_failure(self, error: Exception) -> None:
        """Note that the store did not answer a call."""
        self._failed_at = self._clock()
        if self._since is None:
            self._since = self._failed_at
            log.error(
                "the store cannot be reached; work that runs goes on under its leases: %s", error
            )

    def note_renewal(self) -> None:
        """Note that hosts could renew, which ends an outage."""
        if self._since is None:
            return
        away = self._clock() - self._since
        self._since = None
        log.warning("the store answers again after %.1f s", away)

    def note_success(self) -> None:
        """Note that a call other than a renewal went through."""
        if self._clock() - self._failed_at >= QUIET_SECONDS:
            self.note_renewal()
