"""The places of this replica where a user's link waits for its host's."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any


class Joint:
    """One link: the host's end (a `http.sockets.Socket`), once it came, and whether both are
    done."""

    def __init__(self) -> None:
        self.host_end: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.over = asyncio.Event()


class Joints:
    """The links that are open here, by their ids."""

    def __init__(self) -> None:
        self._open: dict[str, Joint] = {}

    @contextlib.contextmanager
    def wait(self, link_id: str) -> Iterator[Joint]:
        """Keep a joint for a link within the block."""
        joint = self._open[link_id] = Joint()
        try:
            yield joint
        finally:
            del self._open[link_id]
            joint.over.set()
            if not joint.host_end.done():
                joint.host_end.cancel()

    def find(self, link_id: str) -> Joint | None:
        """Return the joint of a link whose user waits here for its host's end."""
        joint = self._open.get(link_id)
        return joint if joint is not None and not joint.host_end.done() else None
