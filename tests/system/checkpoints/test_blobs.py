"""The blob stores: a blob is there whole or not at all, also when the disk or the bucket fails."""

from __future__ import annotations

import ctypes
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from holdfast.blobs.folder import FolderBlobs
from holdfast.blobs.identity import ID_NAME
from holdfast.blobs.interface import BlobMissing, BlobSpoilt, BlobStore, BlobsUnavailable
from holdfast.blobs.locate import open_blobs
from holdfast.blobs.objects import ObjectBlobs
from holdfast.errors import ValidationError
from tests.simulated.blobs import MemoryBlobs
from tests.system.checkpoints.conftest import use_s3
from tests.system.checkpoints.s3_server import Bucket, serve_bucket
from tests.waits import wait_until

MB = 1 << 20


async def pieces(*data: bytes, error: Exception | None = None) -> AsyncIterator[bytes]:
    for piece in data:
        yield piece
    if error is not None:
        raise error


async def read(blobs: BlobStore, name: str) -> bytes:
    return b"".join([piece async for piece in blobs.read(name)])


async def listed(blobs: BlobStore) -> dict[str, int]:
    """The blobs by their sizes, without the one that names the store."""
    return {found.name: found.size async for found in blobs.list() if found.name != ID_NAME}


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    """An S3 of this test's own, and the environment that leads to it."""
    made = Bucket()
    with serve_bucket(made) as endpoint:
        use_s3(
            monkeypatch,
            {
                "AWS_ENDPOINT_URL": endpoint,
                "AWS_ALLOW_HTTP": "true",
                "AWS_REGION": "here",
                "AWS_ACCESS_KEY_ID": "key",
                "AWS_SECRET_ACCESS_KEY": "secret",
            },
        )
        yield made


@pytest.fixture(params=["folder", "memory", "s3", "ceph"])
def blobs(request: pytest.FixtureRequest, tmp_path: Path) -> BlobStore:
    if request.param == "ceph":
        return ObjectBlobs(request.getfixturevalue("ceph_address"))
    if request.param == "folder":
        return FolderBlobs(tmp_path / "blobs")
    if request.param == "memory":
        return MemoryBlobs()
    request.getfixturevalue("bucket")
    return ObjectBlobs("s3://team/holdfast")


async def test_what_was_written_is_read_listed_and_deleted(blobs: BlobStore) -> None:
    large = [bytes([i]) * MB for i in range(20)]
    await blobs.write("job/0.1.a", pieces(*large))
    await blobs.write("job/0.1.b", pieces(b"small"))
    await blobs.write("job/0.1.c", pieces())
    assert await read(blobs, "job/0.1.a") == b"".join(large)
    assert await read(blobs, "job/0.1.c") == b""
    assert await listed(blobs) == {"job/0.1.a": 20 * MB, "job/0.1.b": 5, "job/0.1.c": 0}
    await blobs.delete(["job/0.1.a", "job/0.1.b", "job/never"])
    assert await listed(blobs) == {"job/0.1.c": 0}
    with pytest.raises(BlobMissing):
        await read(blobs, "job/0.1.a")


async def test_the_first_claim_of_a_name_stays(blobs: BlobStore) -> None:
    assert await blobs.claim("store-id", b"first") == b"first"
    assert await blobs.claim("store-id", b"second") == b"first"
    assert await blobs.find(["store-id", "job/never"]) == {"store-id"}
    assert {found.name: found.size async for found in blobs.list()} == {"store-id": 5}


@pytest.mark.parametrize("size", [1, 20])
async def test_what_breaks_off_leaves_nothing(blobs: BlobStore, size: int) -> None:
    """BLOB-1: also where the error comes after the last byte, as a wrong checksum does."""
    with pytest.raises(ValidationError, match="another checksum"):
        await blobs.write(
            "job/0.1.a", pieces(*([b"x" * MB] * size), error=ValidationError("another checksum"))
        )
    assert await listed(blobs) == {}
    with pytest.raises(BlobMissing):
        await read(blobs, "job/0.1.a")


@pytest.mark.parametrize("size", [5, 20 * MB])
async def test_a_blob_of_another_size_is_told_before_its_first_byte(
    blobs: BlobStore, size: int
) -> None:
    """Its reader has promised as many bytes as are on record, and must not wait for those that
    never come."""
    await blobs.write("job/0.1.a", pieces(bytes(size)))
    assert b"".join([piece async for piece in blobs.read("job/0.1.a", size=size)]) == bytes(size)
    for other in (0, size - 1, size + 1):
        with pytest.raises(BlobSpoilt, match=f"has {size} bytes and not the {other} on record"):
            await anext(blobs.read("job/0.1.a", size=other))


@pytest.mark.parametrize(
    "name", ["../etc/passwd", "/etc/passwd", "a//b", ".hidden", "a/.b", "a/b/c/d/e", "", "a\nb"]
)
async def test_names_cannot_leave_the_store(blobs: BlobStore, name: str) -> None:
    with pytest.raises(ValidationError):
        await blobs.write(name, pieces(b"x"))
    with pytest.raises(ValidationError):
        await read(blobs, name)


async def test_a_bucket_that_writes_under_no_condition_is_claimed_too(bucket: Bucket) -> None:
    blobs = ObjectBlobs("s3://team/holdfast", patience_seconds=1.0)
    bucket.plain = True
    assert await blobs.claim("store-id", b"mine") == b"mine"


async def test_a_multipart_upload_that_breaks_off_is_aborted(bucket: Bucket) -> None:
    blobs = ObjectBlobs("s3://team/holdfast")
    with pytest.raises(ValidationError):
        await blobs.write("job/0.1.a", pieces(*([b"x" * MB] * 30), error=ValidationError("torn")))
    assert (bucket.objects, bucket.uploads) == ({}, {})


async def test_a_bucket_that_refuses_is_told_without_its_keys(bucket: Bucket) -> None:
    blobs = ObjectBlobs("s3://team/holdfast")
    bucket.failing = True
    with pytest.raises(BlobsUnavailable, match="s3://team/holdfast cannot be used") as told:
        await blobs.write("job/0.1.a", pieces(b"x"))
    assert "secret" not in str(told.value)
    with pytest.raises(BlobsUnavailable):
        await read(blobs, "job/0.1.a")


def test_where_blobs_may_be(tmp_path: Path, bucket: Bucket) -> None:
    assert open_blobs(str(tmp_path), {}).place == str(tmp_path)
    assert open_blobs(None, {"XDG_STATE_HOME": "/state"}).place == "/state/holdfast/blobs"
    assert open_blobs("s3://team/prefix/", {}).place == "s3://team/prefix"
    for bad in ("gs://team", "s3://", "s3://key:secret@team/x", "s3://team?region=x"):
        with pytest.raises(ValidationError):
            open_blobs(bad, {})


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 4 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"none", bytes(folder), b"tmpfs", 0, b"size=4m"):
        pytest.skip(f"no file system may be mounted here: {os.strerror(ctypes.get_errno())}")
    yield folder
    libc.umount2(bytes(folder), 2)


async def test_a_full_disk_costs_the_new_blob_alone(small_disk: Path) -> None:
    blobs = FolderBlobs(small_disk / "blobs")
    await blobs.write("job/0.1.a", pieces(b"a" * MB))
    with pytest.raises(BlobsUnavailable, match="No space left"):
        await blobs.write("job/0.1.b", pieces(*([b"b" * MB] * 8)))
    assert await read(blobs, "job/0.1.a") == b"a" * MB
    wait_until(
        lambda: not os.listdir(small_disk / "blobs" / ".parts"), what="the part to be removed"
    )
    await blobs.write("job/0.1.c", pieces(b"c" * MB))  # there is room again
    assert await listed(blobs) == {"job/0.1.a": MB, "job/0.1.c": MB}
    await blobs.close()


async def test_what_a_disk_has_no_room_for_does_not_fill_it_first(small_disk: Path) -> None:
    """A database may be beside it, and an agent sends again and again."""
    blobs, taken = FolderBlobs(small_disk / "blobs"), []

    async def counted() -> AsyncIterator[bytes]:
        for _ in range(8):
            taken.append(MB)
            yield b"b" * MB

    with pytest.raises(BlobsUnavailable, match="No space left"):
        await blobs.write("job/0.1.b", counted(), size=8 * MB)
    assert taken == []
    await blobs.write("job/0.1.c", pieces(b"c" * MB), size=MB)
    assert await listed(blobs) == {"job/0.1.c": MB}
    await blobs.close()
