"""Blobs and checkpoints in a real S3: signatures, parts and pages that are not ours, and a gateway
that fails."""

from __future__ import annotations

import asyncio
import hashlib
import os
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from holdfast.blobs.interface import BlobMissing, BlobsUnavailable
from holdfast.blobs.objects import ObjectBlobs
from tests.store.pg_fixture import PgServer
from tests.system.checkpoints.ceph import Gateway
from tests.system.checkpoints.conftest import write_script
from tests.system.checkpoints.test_blobs import MB, listed, pieces, read
from tests.system.cluster import Cluster
from tests.system.conftest import make_cluster
from tests.waits import stretch, wait_until, within

pytestmark = [pytest.mark.slow, pytest.mark.heavy]
SECONDS = 60.0


@pytest.fixture
def bucket(ceph_address: str) -> str:
    return ceph_address.removeprefix("s3://").partition("/")[0]


@pytest.fixture
def mended(real_s3: Gateway) -> Iterator[Gateway]:
    """The gateway, which serves again when the test is over."""
    yield real_s3
    if real_s3.gateway_lives:
        real_s3.freeze_gateway(False)
    else:
        real_s3.start_gateway()


async def test_a_torn_upload_leaves_no_object_and_no_parts(
    real_s3: Gateway, ceph_address: str, bucket: str
) -> None:
    blobs = ObjectBlobs(ceph_address)
    with pytest.raises(OSError, match="torn"):
        await blobs.write("job/0.1.a", pieces(*([b"x" * MB] * 30), error=OSError("torn")))
    assert real_s3.uploads(bucket) == []
    assert await listed(blobs) == {}
    writing = asyncio.create_task(blobs.write("job/0.1.b", pieces(*([os.urandom(MB)] * 200))))
    async with within(SECONDS):
        while not await asyncio.to_thread(real_s3.uploads, bucket):
            await asyncio.sleep(0.01)
    writing.cancel()  # the controller gave up: its sender has gone
    with pytest.raises(asyncio.CancelledError):
        await writing
    assert await listed(blobs) == {}


async def test_a_listing_of_many_pages_and_a_deletion_of_all(ceph_address: str) -> None:
    blobs, many = ObjectBlobs(ceph_address), 1100  # a page has a thousand
    names = [f"job-{n % 7}/0.{n}.a" for n in range(many)]
    for first in range(0, many, 20):
        await asyncio.gather(
            *(blobs.write(name, pieces(b"x")) for name in names[first : first + 20])
        )
    assert len(await listed(blobs)) == many
    await blobs.delete(names)
    assert await listed(blobs) == {}


@pytest.mark.parametrize("wrong", ["AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY_ID"])
async def test_a_key_that_is_not_taken(
    ceph_address: str, monkeypatch: pytest.MonkeyPatch, wrong: str
) -> None:
    good = ObjectBlobs(ceph_address)
    await good.write("job/0.1.a", pieces(b"kept"))
    monkeypatch.setenv(wrong, "wrong-and-not-to-be-shown")
    blobs = ObjectBlobs(ceph_address)
    for size in (1, 9):
        with pytest.raises(BlobsUnavailable, match=f"{ceph_address} cannot be used") as told:
            await blobs.write("job/0.1.b", pieces(*([b"x" * MB] * size)))
        assert os.environ["AWS_SECRET_ACCESS_KEY"] not in str(told.value)
    with pytest.raises(BlobsUnavailable):
        await read(blobs, "job/0.1.a")
    with pytest.raises(BlobsUnavailable):
        await listed(blobs)
    with pytest.raises(BlobsUnavailable):
        await blobs.delete(["job/0.1.a"])
    assert await read(good, "job/0.1.a") == b"kept"


async def test_a_bucket_that_is_not_there_is_no_missing_blob(ceph_address: str) -> None:
    """Both are a 404. One is told once and for all; the other is somebody's mistake in a variable,
    and passes."""
    blobs = ObjectBlobs("s3://nobody-made-this/holdfast")
    for size in (1, 9):
        with pytest.raises(BlobsUnavailable, match="NoSuchBucket"):
            await blobs.write("job/0.1.a", pieces(*([b"x" * MB] * size)))
    with pytest.raises(BlobsUnavailable, match="NoSuchBucket"):
        await read(blobs, "job/0.1.a")
    with pytest.raises(BlobsUnavailable, match="NoSuchBucket"):
        await blobs.delete(["job/0.1.a"])
    with pytest.raises(BlobsUnavailable, match="NoSuchBucket"):
        await listed(blobs)
    with pytest.raises(BlobMissing):
        await read(ObjectBlobs(ceph_address), "job/0.1.a")


@pytest.mark.parametrize("how", ["down", "frozen"])
async def test_a_gateway_that_is_away_is_told_in_time_and_comes_back(
    mended: Gateway, ceph_address: str, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_TIMEOUT", f"{stretch(1):.0f}s")
    blobs = ObjectBlobs(ceph_address, patience_seconds=stretch(2))
    await blobs.write("job/0.1.a", pieces(b"before"))
    mended.kill_gateway() if how == "down" else mended.freeze_gateway(True)
    began, limit = time.monotonic(), stretch(SECONDS)
    with pytest.raises(BlobsUnavailable):
        await blobs.write("job/0.1.b", pieces(b"meanwhile"))
    with pytest.raises(BlobsUnavailable):
        await read(blobs, "job/0.1.a")
    assert time.monotonic() - began < max(limit, stretch(SECONDS)), (
        "the library's own patience is three minutes for each"
    )
    mended.start_gateway() if how == "down" else mended.freeze_gateway(False)
    async with within(SECONDS):
        while True:
            try:
                assert await read(blobs, "job/0.1.a") == b"before"
                break
            except BlobsUnavailable:
                await asyncio.sleep(0.2)
    await blobs.write("job/0.1.c", pieces(b"after"))
    assert await read(blobs, "job/0.1.c") == b"after"


async def test_a_reader_that_takes_its_time_gets_every_byte(
    ceph_address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request has a time limit, its answer included; what is larger than the buffers between is
    asked for again from there."""
    monkeypatch.setenv("AWS_TIMEOUT", "2s")
    blobs = ObjectBlobs(ceph_address)
    data = [os.urandom(MB) for _ in range(64)]
    await blobs.write("job/0.1.a", pieces(*data))
    digest, slow = hashlib.sha256(), 0
    async for piece in blobs.read("job/0.1.a"):
        digest.update(piece)
        if slow < 3:  # four and a half seconds, where each request may take two
            slow += 1
            await asyncio.sleep(1.5)
    assert digest.hexdigest() == hashlib.sha256(b"".join(data)).hexdigest()


# ---- jobs


@pytest.fixture
def cluster(tmp_path: Path, pg_server: PgServer, ceph_address: str) -> Iterator[Cluster]:
    with ExitStack() as stack:
        yield make_cluster(stack, tmp_path, pg_server, blobs=ceph_address)


SAVES = """
    import hashlib, os, sys, time
    import holdfast

    before = holdfast.checkpoint.load()
    step = holdfast.checkpoint.step() or 0
    print("began at", step, before and hashlib.sha256(before).hexdigest(), flush=True)
    if step == 0:
        for step in range(1, 5):
            assert holdfast.checkpoint.save(bytes([step]) * (20 << 20), step=step)
            while not os.path.exists(f"{sys.argv[1]}/{step}"):
                time.sleep(0.02)
        sys.exit(3)
    """


def test_a_jobs_checkpoints_live_in_the_bucket(
    cluster: Cluster, mended: Gateway, ceph_address: str, bucket: str
) -> None:
    """Multi-part, the last two kept, one saved while the gateway is away, handed on, and gone with
    the job's success."""
    blobs, folder = ObjectBlobs(ceph_address), cluster.folder
    cluster.add_host("h")
    script = write_script(folder, "saves", SAVES)
    job = cluster.submit(
        sys.executable, script, str(folder), retry={"max_retries": 1, "retry_delay": 0.0}
    )

    def kept() -> list[int | None]:
        return sorted(c.step or 0 for c in cluster.client.checkpoints(job))

    for step in (1, 2, 3):
        wait_until(lambda s=step: s in kept(), SECONDS, what=f"checkpoint {step}")
        (folder / str(step)).touch()
    wait_until(lambda: kept()[:1] == [2], SECONDS, what="the oldest to go")
    wait_until(lambda: 4 in kept(), SECONDS, what="checkpoint 4")
    wait_until(
        lambda: len(asyncio.run(listed(blobs))) == 2,
        SECONDS,
        what="the blobs of those that were dropped to go",
    )
    assert set(asyncio.run(listed(blobs)).values()) == {20 * MB}

    mended.kill_gateway()
    (folder / "4").touch()  # it fails, and its next attempt needs a blob that cannot be read now
    wait_until(lambda: cluster.client.job(job).attempts == 2, SECONDS, what="the second attempt")
    wait_until(lambda: cluster.client.tasks(job), SECONDS, what="its place")
    assert b"began at 4" not in cluster.output(job)
    mended.start_gateway()
    cluster.until(job, "succeeded", seconds=120)
    expected = hashlib.sha256(bytes([4]) * (20 << 20)).hexdigest()
    assert cluster.output(job, attempt=2).decode() == f"began at 4 {expected}\n"
    wait_until(lambda: not asyncio.run(listed(blobs)), SECONDS, what="the bucket to be empty")
    assert mended.uploads(bucket) == []


def test_a_checkpoint_that_rots_in_the_bucket_gives_way_to_the_one_before(
    cluster: Cluster, ceph_address: str
) -> None:
    folder = cluster.folder
    cluster.add_host("h")
    job = cluster.submit(sys.executable, write_script(folder, "saves", SAVES), str(folder))
    for step in (1, 2, 3, 4):
        wait_until(
            lambda s=step: s in [c.step for c in cluster.client.checkpoints(job)],
            SECONDS,
            what=f"number {step}",
        )
        (folder / str(step)).touch()
    cluster.until(job, "failed", seconds=SECONDS)
    blobs, newest = ObjectBlobs(ceph_address), bytes([4]) * (20 << 20)

    async def spoil() -> None:
        for name in await listed(blobs):
            if await read(blobs, name) == newest:
                await blobs.write(name, pieces(*([b"r" * MB] * 20)))

    wait_until(
        lambda: len(asyncio.run(listed(blobs))) == 2, SECONDS, what="only the last two to be there"
    )
    asyncio.run(spoil())
    cluster.client.retry(job)
    cluster.until(job, "succeeded", seconds=SECONDS)
    kept = hashlib.sha256(bytes([3]) * (20 << 20)).hexdigest()
    assert cluster.output(job, attempt=2).decode() == f"began at 3 {kept}\n"
    assert "task.checkpoint_skipped" in [event.kind for event in cluster.client.events(job_id=job)]
