"""How one replica of the controller becomes the leader, and how replicas poke each other's loops."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager
from typing import Protocol

from holdfast.store.port.clock import Now

LEAD_SECONDS = 6.0
"""How long a lead lasts without a renewal. With the two seconds between two tries of a standby, and
the time of a frozen leader's open transaction, another replica leads within 10 s."""


class LeadershipStore(Protocol):
    """One replica leads; all of them hint to each other.

    LEAD-3  The lead has an expiry and a number. A write of the leader's loops is committed only
            while its number is the newest and has not run out, so a leader that was frozen changes
            nothing when it thaws.

    A hint is the news that a topic may have work: "admit", "retries", "drain", "members", "due",
    "events", "logs", "log_reads", "host:<id>". A hint may be lost, so readers must poll as well.
    """

    async def try_lead(self, *, now: Now = None) -> bool:
        """Acquire or renew the lead, which runs out after `LEAD_SECONDS`. Return False where
        another replica leads, or the lead was lost."""

    def fenced(self) -> AbstractContextManager[None]:
        """Return a context that ties all writes in it, and in tasks made in it, to the present lead
        (LEAD-3): once that lead is over, such a write raises Stale and changes nothing."""

    async def stop_leading(self) -> None:
        """Release the lead, if this replica has it."""

    def hint(self, topic: str) -> None:
        """Send every replica a hint about `topic`, soon and at most once per 20 ms per topic."""

    def hints(self) -> AsyncIterator[str]:
        """Yield hints from every replica, this one included, for ever."""


class HintHub:
    """A distributor of hints' topics to the listeners of this process."""

    def __init__(self) -> None:
        self._listeners: dict[int, tuple[dict[str, None], asyncio.Event]] = {}
        self._next = 0

    def deliver(self, topic: str) -> None:
        """Give a topic to every listener; one in which it waits already gets it once."""
        for topics, event in self._listeners.values():
            topics[topic] = None
            event.set()

    async def listen(self) -> AsyncIterator[str]:
        """Yield topics for ever."""
        topics: dict[str, None] = {}
        event = asyncio.Event()
        number, self._next = self._next, self._next + 1
        self._listeners[number] = (topics, event)
        try:
            while True:
                await event.wait()
                event.clear()
                while topics:
                    topic = next(iter(topics))
                    del topics[topic]
                    yield topic
        finally:
            del self._listeners[number]
