"""BUNDLE-4: hosts that fetch the same bytes share one read of the blob store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from holdfast.blobs.interface import BlobMissing
from holdfast.controller.runtime.bundles import kept
from holdfast.controller.runtime.bundles.kept import BundleBlobs
from holdfast.controller.runtime.bundles.room import RoomMeter
from holdfast.store.postgres.bundles.bundles import BundleSizes
from tests.simulated.blobs import MemoryBlobs


class SlowBlobs(MemoryBlobs):
    """A disk that answers in a moment."""

    async def read(self, name: str, *, size: int | None = None) -> AsyncIterator[bytes]:
        await asyncio.sleep(0)
        async for piece in super().read(name, size=size):
            yield piece


async def put(blobs: MemoryBlobs, name: str, data: bytes) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        yield data

    await blobs.write(name, pieces())


async def test_eight_hosts_cost_one_read() -> None:
    blobs = SlowBlobs()
    await put(blobs, "packs/p1", b"bytes")
    found = BundleBlobs(blobs)
    assert await asyncio.gather(*(found.read("packs/p1") for _ in range(8))) == [b"bytes"] * 8
    assert await found.read("packs/p1") == b"bytes"
    assert found.reads == 1


async def test_what_was_read_longest_ago_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "MEMORY_BYTES", 25)
    found = BundleBlobs(MemoryBlobs())
    for name in ("packs/a", "packs/b", "packs/c"):
        await found.write(name, bytes(10))
    await found.read("packs/c")
    assert found.reads == 0
    await found.read("packs/a")
    assert found.reads == 1
    await found.write("packs/large", bytes(20))
    await found.read("packs/large")
    assert found.reads == 2


async def test_a_blob_that_is_gone_is_missing_each_time() -> None:
    found = BundleBlobs(MemoryBlobs())
    await found.write("packs/a", b"x")
    await found.delete(["packs/a"])
    for _ in range(2):
        with pytest.raises(BlobMissing):
            await found.read("packs/a")


async def test_many_packs_cost_one_measure_and_what_they_take_counts_at_once() -> None:
    now, asked = [0.0], list[str]()

    async def read(project: str) -> BundleSizes:
        asked.append(project)
        return BundleSizes(100, 1000)

    room = RoomMeter(lambda: now[0])
    for number in range(50):
        assert await room.measure("a", read) == BundleSizes(100 + 5 * number, 1000 + 5 * number)
        room.add("a", 5)
    assert await room.measure("b", read) == BundleSizes(100, 1000)
    room.add("a", 5)
    assert await room.measure("b", read) == BundleSizes(100, 1005)
    assert asked == ["a", "b"]
    now[0] = 3.0
    assert await room.measure("a", read) == BundleSizes(100, 1000)
