"""Tell every browser of this server what has changed: one follower of events for all of them.

- A browser that is told of a change reads the page anew, so that a lost message costs a moment
  and no fact; after a pause it reads everything anew.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable

import msgspec

from holdfast.client.methods.jobs import JobMethods
from holdfast.core.records import EventRecord
from holdfast.errors import HoldfastError
from holdfast.web.reader import ApiReader

log = logging.getLogger("holdfast.web")
BURST_SECONDS = 0.03
"""How long a browser is not told of a change, because others of the same act follow it."""
GATHER_SECONDS = 0.25
"""How long after it was told a browser is not told of the next."""
KEEP_ALIVE_SECONDS = 1.0
"""A page says that the controller is lost after two of them."""
AGAIN_SECONDS = 1.0
MAX_NAMES = 500
ALL = "all"
"""The name of everything, for a browser that may have missed something."""


def name_changes(event: EventRecord) -> set[str]:
    """Return the names of what an event changed: kinds of pages, and single jobs and hosts."""
    kind = event.kind.partition(".")[0].partition("_")[0]
    names = {"events", kind if kind.endswith("s") else f"{kind}s"}
    if event.job_id is not None:
        names |= {"jobs", f"job:{event.job_id}"}
    if event.host_id is not None:
        names |= {"hosts", f"host:{event.host_id}"}
    if event.queue is not None:
        names.add("queues")
    return names


class _LiveBrowser:
    """One browser's stream: the names that it was not told of yet."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.woken = asyncio.Event()

    def tell(self, names: set[str]) -> None:
        self.names |= names
        if len(self.names) > MAX_NAMES:
            self.names = {ALL}
        self.woken.set()


class Changes:
    """Follows the events while a browser listens. seen: returns a word that changes with every event,
    so that a page that was drawn under the same word is not read anew."""

    def __init__(
        self, make_reader: Callable[[], ApiReader], seen: Callable[[], str] = lambda: ""
    ) -> None:
        self._make_reader, self._seen = make_reader, seen
        self._listeners: set[_LiveBrowser] = set()
        self._following: asyncio.Task[None] | None = None

    async def stream(self) -> AsyncIterator[bytes]:
        """Yield server-sent events: `changed` with names, and a comment each second."""
        listener = _LiveBrowser()
        self._listeners.add(listener)
        if self._following is None or self._following.done():
            self._following = asyncio.create_task(self._follow(), name="events for browsers")
        now, told_at = asyncio.get_running_loop().time, 0.0
        try:
            told = msgspec.json.encode({"seen": self._seen()})
            yield b"event: open\ndata: " + told + b"\n\n"
            while True:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(KEEP_ALIVE_SECONDS):
                        await listener.woken.wait()
                if listener.woken.is_set():
                    await asyncio.sleep(max(BURST_SECONDS, told_at + GATHER_SECONDS - now()))
                    told_at = now()
                names, listener.names = listener.names, set()
                listener.woken.clear()
                if names:
                    told = msgspec.json.encode({"names": sorted(names)})
                    yield b"event: changed\ndata: " + told + b"\n\n"
                else:
                    yield b": here\n\n"
        finally:
            self._listeners.discard(listener)
            if not self._listeners and self._following is not None:
                self._following.cancel()
                self._following = None

    async def _follow(self) -> None:
        while True:
            try:
                reader = self._make_reader()
                async for event in reader.each(JobMethods.events(reader, follow=True, tail=1)):
                    self._tell(name_changes(event))
            except HoldfastError as error:
                log.debug("events for browsers: %s", error)
            self._tell({ALL})
            await asyncio.sleep(AGAIN_SECONDS)

    def _tell(self, names: set[str]) -> None:
        for listener in self._listeners:
            listener.tell(names)
