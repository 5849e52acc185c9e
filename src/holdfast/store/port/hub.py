"""Hints within one process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator


class HintHub:
    """Topics told to this process's listeners at once, and to other replicas' at most every 20
    ms."""

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
