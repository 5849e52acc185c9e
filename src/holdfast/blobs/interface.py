"""The interface of a blob store.

BLOB-1  A name is written once and holds all of its bytes or does not exist: a write that broke off
        before its last byte, or whose pieces ended in an error (a wrong checksum), leaves nothing
        under the name.
"""

import re
from collections.abc import AsyncIterator, Collection
from typing import Protocol

import msgspec

from holdfast.errors import HoldfastError, ValidationError

PIECE_BYTES = 1 << 20
_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,127}(/[A-Za-z0-9_-][A-Za-z0-9_.-]{0,127}){0,3}")


class BlobsUnavailable(HoldfastError, code="blobs_unavailable", status=503):
    """The blob store cannot be used now: a full disk, a bucket that does not answer. The rest of
    Holdfast goes on."""


class BlobMissing(HoldfastError, code="blob_missing", status=410):
    """A blob that is on record is not in the blob store."""


class BlobSpoilt(HoldfastError, code="blob_spoilt", status=410):
    """A blob that is on record has another size in the blob store: it was cut or changed."""


class BlobInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One blob in a listing. age_seconds: time since its write, by the blob store's clock."""

    name: str
    size: int
    age_seconds: float


class BlobStore(Protocol):
    """Bytes by name. Every method raises BlobsUnavailable when the store cannot be used."""

    @property
    def place(self) -> str:
        """Return the path or address of the store for messages, without credentials."""

    async def write(
        self, name: str, pieces: AsyncIterator[bytes], *, size: int | None = None
    ) -> None:
        """Write a blob (BLOB-1). An error that `pieces` raises is raised again, and nothing is
        kept. size: number of bytes, where known, so that a store without room for them raises
        before the first."""

    def read(self, name: str, *, size: int | None = None) -> AsyncIterator[bytes]:
        """Yield the bytes in pieces. At the first step it raises BlobMissing where there is no such
        blob, and BlobSpoilt where it has not `size` bytes."""

    async def find(self, names: Collection[str]) -> set[str]:
        """Return which of these blobs are there."""

    async def claim(self, name: str, data: bytes) -> bytes:
        """Write a small blob where no blob has this name, and return the bytes of the blob that has
        it then: of several callers at once, all get the bytes of the first."""

    async def delete(self, names: Collection[str]) -> None:
        """Delete blobs; a name that does not exist is no error."""

    def list(self) -> AsyncIterator[BlobInfo]:
        """Yield every blob."""

    async def sweep(self, older_seconds: float) -> int:
        """Remove the parts that broken-off writes left, which no listing shows. Return how many."""

    async def close(self) -> None:
        """Release threads and connections."""


def check_size(name: str, place: str, found: int, wanted: int | None) -> None:
    """Raise BlobSpoilt where a blob in `place` has not the size on record."""
    if wanted is not None and found != wanted:
        raise BlobSpoilt(
            f"the blob {name} in {place} has {found} bytes and not the {wanted} on record; was it "
            "cut, or changed?"
        )


def check_name(name: str) -> str:
    """Return `name`, of letters, digits and `._-`, in at most four levels. Raises
    ValidationError."""
    if not _NAME.fullmatch(name):
        raise ValidationError(f"{name!r} is not the name of a blob")
    return name
