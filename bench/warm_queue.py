"""Calls of several models and one queue, on simulated time: the real choice of a feed, and a naive one
that takes the most urgent and oldest call whatever is loaded."""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable

import msgspec

from holdfast.core.calls.feeds import choose_feed, is_warm

COLD_WAIT_SECONDS = 60.0
Choose = Callable[[list["SimulatedFeed"], str | None], "SimulatedFeed | None"]


class SimulatedFeed(msgspec.Struct, kw_only=True):
    """Calls that wait for one model, by the times at which they came."""

    id: int
    model: str
    arrived: deque[float] = msgspec.field(default_factory=deque)
    now: float = 0.0
    served_at: float = -1e9
    vram_gb: float = 0.0
    head_priority: int = 50
    cold_wait_seconds: float = COLD_WAIT_SECONDS

    @property
    def ready(self) -> int:
        """How many calls wait."""
        return len(self.arrived)

    @property
    def head_age_seconds(self) -> float:
        """How long the first of them has waited."""
        return self.now - self.arrived[0] if self.arrived else 0.0

    @property
    def unserved_seconds(self) -> float:
        """How long ago one of them was last taken."""
        return self.now - self.served_at


class QueueShape(msgspec.Struct, frozen=True, kw_only=True):
    """A day of a queue. shares: of each model among the calls. load: offered, where loads are free."""

    executors: int = 4
    shares: tuple[float, ...] = (0.4, 0.25, 0.15, 0.1, 0.06, 0.04)
    call_seconds: float = 2.0
    load_seconds: float = 20.0
    load: float = 0.7
    hours: float = 4.0


class WarmFigures(msgspec.Struct, frozen=True, kw_only=True):
    """What came of it. warm: share of calls whose model was loaded. longest_wait: of any call.
    longest_passed: how long a cold call waited while its model's turn did not come."""

    calls: int
    warm: float
    mean_wait_seconds: float
    longest_wait_seconds: float
    longest_passed_seconds: float


def choose_naively(feeds: list[SimulatedFeed], loaded: str | None) -> SimulatedFeed | None:
    """Take the oldest call."""
    return min((f for f in feeds if f.arrived), key=lambda f: f.arrived[0], default=None)


def choose_warm(feeds: list[SimulatedFeed], loaded: str | None) -> SimulatedFeed | None:
    """Take as an exchange does."""
    return choose_feed(feeds, loaded)


def simulate_queue(shape: QueueShape, choose: Choose, seed: int) -> WarmFigures:
    """Run a queue. The same seed gives the same calls."""
    chance = random.Random(seed)
    feeds = [SimulatedFeed(id=i, model=f"model-{i}") for i in range(len(shape.shares))]
    rate = shape.load * shape.executors / shape.call_seconds
    arrivals: list[tuple[float, int]] = []
    at = 0.0
    while at < shape.hours * 3600:
        at += chance.expovariate(rate)
        arrivals.append((at, chance.choices(range(len(feeds)), shape.shares)[0]))
    coming = deque(arrivals)
    free = [(0.0, n) for n in range(shape.executors)]
    loaded: dict[int, str | None] = dict.fromkeys(range(shape.executors))
    waits: list[float] = []
    cold: list[float] = []
    while coming or any(feed.arrived for feed in feeds):
        now, n = heapq.heappop(free)
        while coming and coming[0][0] <= now:
            came, which = coming.popleft()
            feeds[which].arrived.append(came)
        for feed in feeds:
            feed.now = now
        feed = choose(feeds, loaded[n])
        if feed is None:
            heapq.heappush(free, (coming[0][0], n))
            continue
        passed = min(feed.head_age_seconds, feed.unserved_seconds)
        waits.append(now - feed.arrived.popleft())
        feed.served_at = now
        seconds = shape.call_seconds
        if not is_warm(feed, loaded[n]):
            cold.append(passed)
            seconds += shape.load_seconds
            loaded[n] = feed.model
        heapq.heappush(free, (now + seconds, n))
    return WarmFigures(
        calls=len(waits),
        warm=1 - len(cold) / len(waits),
        mean_wait_seconds=sum(waits) / len(waits),
        longest_wait_seconds=max(waits),
        longest_passed_seconds=max(cold, default=0.0),
    )
