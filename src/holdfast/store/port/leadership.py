"""Leadership, and hints between replicas."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Protocol


class LeadershipStore(Protocol):
    """One replica leads; all of them hint to each other.

    A hint says that a topic may have work: "admit", "drain", "due", "events", "logs", "host:<id>".
    It may be lost; polling is the contract.
    """

    async def try_lead(self) -> bool:
        """Take or confirm leadership (a session's advisory lock on a connection of its own). False:
        another replica leads, or leadership was lost."""

    async def stop_leading(self) -> None:
        """Give leadership back, if this replica has it."""

    def hint(self, topic: str) -> None:
        """Tell every replica about `topic`, soon and at most once per 20 ms per topic."""

    def hints(self) -> AsyncIterator[str]:
        """Yield hints from every replica, this one included, for ever."""


class HintHub:
    """Hands the topics of hints to this process's listeners."""

    def __init__(self) -> None:
        self._listeners: dict[int, tuple[dict[str, None], asyncio.Event]] = {}
        self._next = 0

    def deliver(self, topic: str) -> None:
        """Hand a topic to every listener; one that has it already is not told twice."""
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
