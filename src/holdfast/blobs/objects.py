"""Blobs in an S3-compatible bucket, by `obstore` (the extra `holdfast[s3]`).

Credentials, region, endpoint and limits come from the environment alone (`AWS_ACCESS_KEY_ID`,
`AWS_SECRET_ACCESS_KEY`, `AWS_REGION`, `AWS_ENDPOINT_URL`, `AWS_TIMEOUT`, …) or from the machine's
role. A multipart upload becomes visible at its completion, which is after its last byte and its
checksum (BLOB-1); one that broke off is aborted, and a lifecycle rule of the bucket removes what a
killed controller left.
"""

import asyncio
from collections.abc import AsyncIterator, Collection
from datetime import UTC, datetime, timedelta
from typing import Any

from holdfast.blobs.interface import (
    PIECE_BYTES,
    BlobInfo,
    BlobMissing,
    BlobsUnavailable,
    check_name,
    check_size,
)
from holdfast.errors import HoldfastError, ValidationError
from holdfast.version import name_install

_PART_BYTES = 8 << 20  # S3 takes at most 10 000 parts: 80 GB
_PARTS_AT_ONCE = 2
_LOOKS_AT_ONCE = 16
_DELETES_AT_ONCE = 100  # one request has 30 s, of which a busy gateway spent 60 ms on each
_PATIENCE_SECONDS = 60.0
_NO_CONDITIONS = ("501", "NotImplemented", "not supported")
"""Words of a gateway that writes under no condition."""
_NO_BUCKET = "<Code>NoSuchBucket</Code>"


class ObjectBlobs:
    """A prefix of a bucket: `s3://bucket/prefix`."""

    def __init__(self, address: str, *, patience_seconds: float = _PATIENCE_SECONDS) -> None:
        """Open the bucket. Raises ValidationError for an address that cannot be used, or without
        `obstore`.

        patience_seconds: how long one request is retried. It is short, because callers retry too
        and must see the error.
        """
        try:
            import obstore
            from obstore.store import S3Store
        except ImportError:
            raise ValidationError(
                f"s3://… needs an optional part: {name_install('s3')}", field="blobs"
            ) from None
        self._obstore: Any = obstore
        self._address = address.rstrip("/")
        retry: Any = {"max_retries": 10, "retry_timeout": timedelta(seconds=patience_seconds)}
        try:
            self._store: Any = S3Store.from_url(self._address, retry_config=retry)
        except Exception as error:  # the library has a class for each fault of a configuration
            raise ValidationError(
                f"the blob store {address} cannot be used: {error}", field="blobs"
            ) from error

    @property
    def place(self) -> str:
        """See `BlobStore.place`."""
        return self._address

    async def write(
        self, name: str, pieces: AsyncIterator[bytes], *, size: int | None = None
    ) -> None:
        """See `BlobStore.write`."""
        check_name(name)
        first, came = [], 0
        async for piece in pieces:
            first.append(piece)
            came += len(piece)
            if came >= _PART_BYTES:
                break
        else:  # one request instead of three
            data = b"".join(first)
            try:
                await self._obstore.put_async(self._store, name, data, use_multipart=False)
            except Exception as error:
                raise self._unavailable(error) from error
            return
        await self._write_parts(name, first, pieces)

    async def _write_parts(self, name: str, first: list[bytes], rest: AsyncIterator[bytes]) -> None:
        failed: list[BaseException] = []

        async def watched() -> AsyncIterator[bytes]:
            while first:
                yield first.pop(0)
            try:
                async for piece in rest:
                    yield piece
            except BaseException as error:
                failed.append(error)
                raise

        try:
            await self._obstore.put_async(
                self._store,
                name,
                watched(),
                use_multipart=True,
                chunk_size=_PART_BYTES,
                max_concurrency=_PARTS_AT_ONCE,
            )
        except Exception as error:
            if failed:
                raise failed[0] from error
            raise self._unavailable(error) from error
        if failed:  # the library hid the error, but the blob is not whole
            await self.delete([name])
            raise failed[0]

    async def read(self, name: str, *, size: int | None = None) -> AsyncIterator[bytes]:
        """See `BlobStore.read`."""
        try:
            found = await self._obstore.get_async(self._store, check_name(name))
            check_size(name, self._address, found.meta["size"], size)
            async for piece in found.stream(min_chunk_size=PIECE_BYTES):
                yield bytes(piece)
        except FileNotFoundError as error:
            if _NO_BUCKET in str(error):  # the same status, but not this one blob's fault
                raise self._unavailable(error) from error
            raise BlobMissing(
                f"the blob {name} is not in {self._address}; was it deleted?"
            ) from None
        except HoldfastError:
            raise
        except Exception as error:
            raise self._unavailable(error) from error

    async def find(self, names: Collection[str]) -> set[str]:
        """See `BlobStore.find`."""
        wanted = [check_name(name) for name in names]
        found: set[str] = set()
        for first in range(0, len(wanted), _LOOKS_AT_ONCE):
            some = wanted[first : first + _LOOKS_AT_ONCE]
            there = await asyncio.gather(*map(self._is_there, some))
            found |= {name for name, is_there in zip(some, there, strict=True) if is_there}
        return found

    async def _is_there(self, name: str) -> bool:
        try:
            await self._obstore.head_async(self._store, name)
        except FileNotFoundError:
            return False  # also where the bucket is gone, because the answer to HEAD has no body
        except Exception as error:
            raise self._unavailable(error) from error
        return True

    async def claim(self, name: str, data: bytes) -> bytes:
        """See `BlobStore.claim`."""
        from obstore.exceptions import AlreadyExistsError

        async def put(mode: str) -> None:
            await self._obstore.put_async(
                self._store, check_name(name), data, mode=mode, use_multipart=False
            )

        try:
            try:
                await put("create")
            except AlreadyExistsError:
                pass
            except Exception as error:
                if not any(word in str(error) for word in _NO_CONDITIONS):
                    raise
                await put("overwrite")  # of callers at the same moment, all read the last one's
        except Exception as error:
            raise self._unavailable(error) from error
        return b"".join([piece async for piece in self.read(name)])

    async def delete(self, names: Collection[str]) -> None:
        """See `BlobStore.delete`."""
        wanted = [check_name(name) for name in names]
        for first in range(0, len(wanted), _DELETES_AT_ONCE):
            some = wanted[first : first + _DELETES_AT_ONCE]
            try:
                await self._obstore.delete_async(self._store, some)
            except FileNotFoundError as error:
                if _NO_BUCKET in str(error):
                    raise self._unavailable(error) from error
            except Exception as error:
                raise self._unavailable(error) from error

    async def list(self) -> AsyncIterator[BlobInfo]:
        """See `BlobStore.list`."""
        now = datetime.now(UTC)
        try:
            async for batch in self._obstore.list(self._store):
                for found in batch:
                    age = (now - found["last_modified"]).total_seconds()
                    yield BlobInfo(name=found["path"], size=found["size"], age_seconds=age)
        except Exception as error:
            raise self._unavailable(error) from error

    async def sweep(self, older_seconds: float) -> int:
        """See `BlobStore.sweep`. The bucket's lifecycle rule does it."""
        return 0

    async def close(self) -> None:
        """See `BlobStore.close`."""

    def _unavailable(self, error: Exception) -> BlobsUnavailable:
        text = str(error).strip().splitlines()
        return BlobsUnavailable(
            f"the blob store {self._address} cannot be used: {text[0][:500] if text else error!r}"
        )
