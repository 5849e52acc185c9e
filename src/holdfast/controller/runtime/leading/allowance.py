"""A token bucket for the retry rate limit. The clock is an argument; nothing here waits.

RATE-1  Over any span of t seconds at most rate × t + max(1, rate) are let through.
"""

import math


class Allowance:
    """A token bucket: the number of retries that may go now. Unused tokens add up to one second's
    worth, and at least to one. Tokens are spent before the store is asked, and added back where
    fewer retries went.

    rate: retries per second; None is no limit. Times are in seconds of any clock that never runs
    backwards.
    """

    def __init__(self) -> None:
        self._tokens = 1.0
        self._at: float | None = None
        self._limited = False

    def refill(self, rate: float | None, now: float) -> int | None:
        """Return how many retries may go at `now`, or None for any number."""
        before, self._at = self._at, now
        self._limited = rate is not None
        if rate is None:
            self._tokens = 1.0
            return None
        if before is not None:
            self._tokens += max(0.0, now - before) * rate
        self._tokens = min(self._tokens, max(1.0, rate))
        return math.floor(self._tokens + 1e-9)

    def spend(self, count: int) -> None:
        """Spend `count` tokens; a negative count adds them back."""
        if self._limited:
            self._tokens -= count

    def wait_seconds(self, rate: float | None) -> float:
        """Return the seconds from the last refill until one more retry may go."""
        return 0.0 if rate is None else max(0.0, (1.0 - self._tokens) / rate)
