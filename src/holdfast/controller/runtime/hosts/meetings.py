"""Let the two ends of a session's link, a user's and a host's, meet at this replica."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any


class LinkMeeting:
    """The meeting of the two ends of a link at this replica: the host's end (a
    `http.sockets.Socket`), once it came, and whether both ends are done."""

    def __init__(self) -> None:
        self.host_end: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.over = asyncio.Event()


class LinkMeetings:
    """The links whose two ends meet at this replica, by the links' ids."""

    def __init__(self) -> None:
        self._open: dict[str, LinkMeeting] = {}

    @contextlib.contextmanager
    def wait(self, link_id: str) -> Iterator[LinkMeeting]:
        """Keep a place for the two ends of a link to meet, for as long as the block runs."""
        meeting = self._open[link_id] = LinkMeeting()
        try:
            yield meeting
        finally:
            del self._open[link_id]
            meeting.over.set()
            if not meeting.host_end.done():
                meeting.host_end.cancel()

    def find(self, link_id: str) -> LinkMeeting | None:
        """Return the place at which the user of a link waits for the host's end; None where no user
        waits at this replica."""
        meeting = self._open.get(link_id)
        return meeting if meeting is not None and not meeting.host_end.done() else None
