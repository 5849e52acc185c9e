"""The places of this replica where a user's link waits for its host's."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any


class Joint:
    """The meeting of the two ends of a link at this replica: the host's end (a
    `http.sockets.Socket`), once it came, and whether both ends are done."""

    def __init__(self) -> None:
        self.host_end: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.over = asyncio.Event()


class Joints:
    """The links whose two ends meet at this replica, by their ids."""

    def __init__(self) -> None:
        self._open: dict[str, Joint] = {}

    @contextlib.contextmanager
    def wait(self, link_id: str) -> Iterator[Joint]:
        """Keep a place for the two ends of a link to meet, for as long as the block runs."""
        joint = self._open[link_id] = Joint()
        try:
            yield joint
        finally:
            del self._open[link_id]
            joint.over.set()
            if not joint.host_end.done():
                joint.host_end.cancel()

    def find(self, link_id: str) -> Joint | None:
        """Return the place at which the user of a link waits for the host's end; None where no user
        waits at this replica."""
        joint = self._open.get(link_id)
        return joint if joint is not None and not joint.host_end.done() else None
