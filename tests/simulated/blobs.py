"""Blobs in memory."""

import time
from collections.abc import AsyncIterator, Callable, Collection

from holdfast.blobs.interface import PIECE_BYTES, BlobInfo, BlobMissing, check_name, check_size


class MemoryBlobs:
    """A dictionary. `clock`: monotonic seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._blobs: dict[str, tuple[float, bytes]] = {}

    @property
    def place(self) -> str:
        """See `BlobStore.place`."""
        return "memory"

    async def write(
        self, name: str, pieces: AsyncIterator[bytes], *, size: int | None = None
    ) -> None:
        """See `BlobStore.write`."""
        check_name(name)
        data = b"".join([piece async for piece in pieces])
        self._blobs[name] = (self._clock(), data)

    async def read(self, name: str, *, size: int | None = None) -> AsyncIterator[bytes]:
        """See `BlobStore.read`."""
        if check_name(name) not in self._blobs:
            raise BlobMissing(f"the blob {name} is not in memory")
        data = self._blobs[name][1]
        check_size(name, self.place, len(data), size)
        for at in range(0, len(data), PIECE_BYTES):
            yield data[at : at + PIECE_BYTES]

    async def find(self, names: Collection[str]) -> set[str]:
        """See `BlobStore.find`."""
        return {name for name in names if name in self._blobs}

    async def claim(self, name: str, data: bytes) -> bytes:
        """See `BlobStore.claim`."""
        return self._blobs.setdefault(check_name(name), (self._clock(), data))[1]

    async def delete(self, names: Collection[str]) -> None:
        """See `BlobStore.delete`."""
        for name in names:
            self._blobs.pop(name, None)

    async def list(self) -> AsyncIterator[BlobInfo]:
        """See `BlobStore.list`."""
        now = self._clock()
        for name, (at, data) in list(self._blobs.items()):
            yield BlobInfo(name=name, size=len(data), age_seconds=now - at)

    async def sweep(self, older_seconds: float) -> int:
        """See `BlobStore.sweep`. Nothing is ever left."""
        return 0

    async def close(self) -> None:
        """See `BlobStore.close`."""
