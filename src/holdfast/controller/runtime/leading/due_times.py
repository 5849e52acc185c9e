"""The due times of retries that this replica decided: hints that wake the loop which dispatches
them."""

import heapq
from collections.abc import Callable

from holdfast.controller.runtime.wakes import WakeBus

LOOK_SECONDS = 1.0  # between two looks at the waiting jobs when nothing says that there is work


class DueTimes:
    """A heap of due times, in seconds of `clock`."""

    def __init__(self, clock: Callable[[], float], wakes: WakeBus) -> None:
        self._clock = clock
        self._wakes = wakes
        self._times: list[float] = []

    def expect(self, delay_seconds: float) -> None:
        """Wake the loop for a retry that is due before its next look."""
        if delay_seconds < LOOK_SECONDS:
            heapq.heappush(self._times, self._clock() + delay_seconds)
            self._wakes.fire("due")

    def drop_past(self) -> None:
        """Forget the times that have come."""
        while self._times and self._times[0] <= self._clock():
            heapq.heappop(self._times)

    def seconds_left(self) -> float:
        """Return the seconds until the next time, at most `LOOK_SECONDS`."""
        return min(LOOK_SECONDS, self._times[0] - self._clock()) if self._times else LOOK_SECONDS
