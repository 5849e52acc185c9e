"""The blobs of bundles: written once, and read once for many hosts.

BUNDLE-4  Hosts that fetch the same bytes at about the same time share one read of the blob store:
          what was read last stays in memory, up to `MEMORY_BYTES`, and a read that is under way is
          waited for.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator, Collection

from holdfast.blobs.interface import BlobStore

log = logging.getLogger("holdfast.controller")

PACKS, PLANS = "packs/", "plans/"
MEMORY_BYTES = 64 << 20


class BundleBlobs:
    """Packs and plans in the blob store. reads: how many were read from there."""

    def __init__(self, blobs: BlobStore) -> None:
        self._blobs = blobs
        self._known: OrderedDict[str, bytes] = OrderedDict()
        self._size = 0
        self._reading: dict[str, asyncio.Task[bytes]] = {}
        self.reads = 0

    async def write(self, name: str, data: bytes) -> None:
        """Write a blob, and remember it for its first readers. Raises BlobsUnavailable."""

        async def pieces() -> AsyncIterator[bytes]:
            yield data

        await self._blobs.write(name, pieces(), size=len(data))
        self._keep(name, data)

    async def read(self, name: str) -> bytes:
        """Return a blob's bytes (BUNDLE-4). Raises BlobMissing, BlobsUnavailable."""
        if (data := self._known.get(name)) is not None:
            self._known.move_to_end(name)
            return data
        work = self._reading.get(name)
        if work is None:
            work = self._reading[name] = asyncio.create_task(self._read(name))
            work.add_done_callback(lambda _: self._reading.pop(name, None))
        return await asyncio.shield(work)

    async def _read(self, name: str) -> bytes:
        self.reads += 1
        data = b"".join([piece async for piece in self._blobs.read(name)])
        self._keep(name, data)
        return data

    def _keep(self, name: str, data: bytes) -> None:
        if len(data) > MEMORY_BYTES // 2:
            return
        self._size += len(data) - len(self._known.pop(name, b""))
        self._known[name] = data
        while self._size > MEMORY_BYTES:
            self._size -= len(self._known.popitem(last=False)[1])

    async def delete(self, names: Collection[str]) -> None:
        """Delete blobs that no row names any more. Raises BlobsUnavailable; the sweep then finds
        them."""
        for name in names:
            self._size -= len(self._known.pop(name, b""))
        await self._blobs.delete(list(names))
