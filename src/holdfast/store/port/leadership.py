"""Leadership, and hints between replicas."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager
from typing import Protocol

from holdfast.store.port.clock import Now

LEAD_SECONDS = 6.0
"""How long a lead lasts without a renewal. With the two seconds between two tries of a standby, and
what a frozen leader's open transaction may take, another leads within 10 s."""


class LeadershipStore(Protocol):
    """One replica leads; all of them hint to each other.

    LEAD-3  The lead has an expiry and a number. A write of the leader's loops is committed only
            while its number is the newest and has not run out, so a leader that was frozen changes
            nothing when it thaws.

    A hint says that a topic may have work: "admit", "retries", "drain", "members", "due", "events", "logs",
    "log_reads", "host:<id>".
    It may be lost; polling is the contract.
    """

    async def try_lead(self, *, now: Now = None) -> bool:
        """Take or renew the lead, which runs out after `LEAD_SECONDS`. False: another replica
        leads, or the lead was lost."""

    def fenced(self) -> AbstractContextManager[None]:
        """Tie what is done inside, and in tasks made inside, to the lead of this moment (LEAD-3):
        a later write raises Stale and changes nothing."""

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
