"""What a blob store does.

BLOB-1  A name is written once and holds all of its bytes or is not there: what broke off before its
        last byte, or whose pieces ended in an error (a checksum that does not fit), leaves nothing
        under the name.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Collection
from typing import Protocol

import msgspec

from holdfast.errors import HoldfastError, ValidationError

PIECE_BYTES = 1 << 20
_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,127}(/[A-Za-z0-9_-][A-Za-z0-9_.-]{0,127}){0,3}")


class BlobsUnavailable(HoldfastError):
    """The blob store cannot take or give these bytes now: a full disk, a bucket that does not
    answer. The rest of Holdfast goes on."""

    code = "blobs_unavailable"
    status = 503


class BlobMissing(HoldfastError):
    """A blob that is on record is not in the blob store."""

    code = "blob_missing"
    status = 410


class BlobSpoilt(HoldfastError):
    """A blob that is on record has another size in the blob store: it was cut, or changed by
    another's hand."""

    code = "blob_spoilt"
    status = 410


class BlobInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One blob as a listing shows it. age_seconds: since it was written, by the blob store's own
    clock."""

    name: str
    size: int
    age_seconds: float


class BlobStore(Protocol):
    """Bytes by name. Every method raises BlobsUnavailable when the store cannot be used."""

    @property
    def place(self) -> str:
        """Where it is, for people: a path or an address, without credentials."""

    async def write(
        self, name: str, pieces: AsyncIterator[bytes], *, size: int | None = None
    ) -> None:
        """Write a blob (BLOB-1). An error that `pieces` raises is raised again, and nothing is
        kept.

        size: how many bytes are to come, where that is known: a store that has no room for them
        says so before the first.
        """

    def read(self, name: str, *, size: int | None = None) -> AsyncIterator[bytes]:
        """The bytes in pieces; size: how many there must be. At the first step it raises
        BlobMissing where there is no such blob, and BlobSpoilt where it has another size."""

    async def delete(self, names: Collection[str]) -> None:
        """Delete; names that are not there are no error."""

    def list(self) -> AsyncIterator[BlobInfo]:
        """Every blob there is."""

    async def sweep(self, older_seconds: float) -> int:
        """Remove what broken-off writes left and nobody lists. Returns how many."""

    async def close(self) -> None: ...


def check_size(name: str, place: str, found: int, wanted: int | None) -> None:
    """Raise BlobSpoilt where a blob in `place` has not as many bytes as its reader was promised."""
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
