"""The controller's half over the real wire, its agent driven by hand: what is taken, what is
refused, what is kept."""

from __future__ import annotations

import asyncio
import hashlib
import os
import resource
import socket
from collections.abc import AsyncIterator, Collection
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from holdfast.agent.uplink.transfers import Transfers, Wire, open_newest
from holdfast.blobs.folder import FolderBlobs
from holdfast.blobs.interface import BlobsUnavailable
from holdfast.controller.loops.checkpoints import CheckpointsLoop
from holdfast.controller.server import RunningServer, bind_socket
from holdfast.core.facts import TaskFacts
from holdfast.core.ids import TaskKey
from holdfast.errors import Conflict, TooLarge
from holdfast.http.addresses import read_addresses
from holdfast.http.blocking import BlockingHttp
from holdfast.store.postgres.store import PostgresStore
from holdfast.wire import agent as wire
from tests.system.proxy import Proxy
from tests.unit.controller.conftest import FakeAgent, Served, bearer, store
from tests.waits import in_time, within

__all__ = ["store"]


class MoodyBlobs(FolderBlobs):
    """A folder from which nothing can be deleted for a while."""

    stuck = False

    async def delete(self, names: Collection[str]) -> None:
        if self.stuck and names:
            raise BlobsUnavailable("the disk is away")
        await super().delete(names)


@pytest.fixture
async def blobs(tmp_path: Path) -> MoodyBlobs:
    return MoodyBlobs(tmp_path / "blobs")


@pytest.fixture
async def served(store: PostgresStore, blobs: FolderBlobs) -> AsyncIterator[Served]:
    running = RunningServer(store, bind_socket("127.0.0.1", 0), blobs=blobs)
    await running.start()
    found = Served(running, store)
    yield found
    await found.http.aclose()
    await running.stop()
    await blobs.close()


@pytest.fixture
async def agent(served: Served) -> FakeAgent:
    made = FakeAgent(served)
    assert (await made.register()).status_code == 200
    return made


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def files(blobs: FolderBlobs) -> list[Path]:
    """Everything in the folder, what broke off included."""
    return sorted(p for p in Path(blobs.place).rglob("*") if p.is_file())


def was_used(blobs: FolderBlobs) -> bool:
    """Whether anything was ever written: the folder is made for the first piece."""
    return Path(blobs.place).exists()


async def upload(
    agent: FakeAgent,
    key: wire.TaskKey,
    data: Any,
    *,
    sha: str | None = None,
    step: int | None = None,
    url: str | None = None,
    incarnation: str | None = None,
    **headers: str,
) -> httpx.Response:
    params: dict[str, Any] = {
        "job": key.job_id,
        "rank": key.rank,
        "epoch": key.epoch,
        "incarnation": incarnation or agent.incarnation,
    }
    if step is not None:
        params["step"] = step
    words = {**bearer(agent.key), "Holdfast-Sha256": sha or digest(data), **headers}
    async with httpx.AsyncClient(
        base_url=url or agent.served.url, timeout=60, trust_env=False
    ) as http:
        return await http.put("/v1/agent/checkpoint", params=params, content=data, headers=words)


async def fetch(agent: FakeAgent, order: wire.LaunchOrder) -> httpx.Response:
    assert order.checkpoint is not None
    params: dict[str, Any] = {
        "job": order.key.job_id,
        "rank": order.key.rank,
        "epoch": order.key.epoch,
        "incarnation": agent.incarnation,
        "number": order.checkpoint.number,
    }
    return await agent.served.http.get(
        "/v1/agent/checkpoint", params=params, headers=bearer(agent.key)
    )


async def start(served: Served, agent: FakeAgent, **spec: Any) -> wire.LaunchOrder:
    await served.submit(**{"retry": {"max_retries": 3, "retry_delay": 0.0}, **spec})
    order = await agent.take()
    await agent.sync(agent.running(order))
    return order


async def test_the_newest_is_handed_to_the_next_attempt(
    served: Served, agent: FakeAgent, blobs: FolderBlobs
) -> None:
    order = await start(served, agent)
    assert order.checkpoint is None
    for step in (1, 2, 3):
        answer = await upload(agent, order.key, b"state %d" % step, step=step)
        assert (answer.status_code, answer.json()) == (200, {"number": step})
    job = order.key.job_id
    listed = (await served.call("GET", f"/v1/jobs/{job}/checkpoints", "read")).json()["items"]
    assert [(c["number"], c["step"], c["size"], c["epoch"]) for c in listed] == [
        (2, 2, 7, 1),
        (3, 3, 7, 1),
    ]  # the last two
    await asyncio.to_thread(wait_for, lambda: len(files(blobs)) == 2)
    await agent.end(order, exit_code=1)
    again = await agent.take()
    assert again.checkpoint == wire.CheckpointOffer(
        number=3, size=7, sha256=digest(b"state 3"), step=3
    )
    assert again.inline_bytes == 32 * 1024
    answer = await fetch(agent, again)
    assert (answer.content, answer.headers["holdfast-sha256"]) == (b"state 3", digest(b"state 3"))
    await agent.end(again, exit_code=0)
    await served.until(job, "succeeded")
    async with within(15):  # the rows go once their bytes are gone
        while (await served.call("GET", f"/v1/jobs/{job}/checkpoints")).json()["items"]:
            await asyncio.sleep(0.01)
    assert not files(blobs)


def wait_for(condition: Any) -> None:
    from tests.waits import wait_until

    wait_until(condition, 15)


async def test_each_rank_has_its_own(served: Served, agent: FakeAgent) -> None:
    await served.submit(tasks=2, retry={"max_retries": 1, "retry_delay": 0.0})
    first = await take_gang(agent, 2)
    for order in first:
        assert (await upload(agent, order.key, b"of rank %d" % order.key.rank)).status_code == 200
    ends = [wire.TaskReport(key=o.key, state="ended", facts=TaskFacts(exit_code=1)) for o in first]
    await agent.sync(*ends)
    second = await take_gang(agent, 2)
    assert [(await fetch(agent, order)).content for order in second] == [b"of rank 0", b"of rank 1"]


async def take_gang(agent: FakeAgent, size: int) -> list[wire.LaunchOrder]:
    claimed: dict[wire.TaskKey, wire.TaskReport] = {}
    found: dict[int, wire.LaunchOrder] = {}
    async with within(20):
        while len(found) < size:
            answer = await agent.sync(*claimed.values(), wait=1.0)
            for claim in answer.claim:
                claimed[claim.key] = wire.TaskReport(key=claim.key, state="claimed", port=40_000)
            for order in answer.launch:
                found[order.key.rank] = order
    orders = [found[rank] for rank in sorted(found)]
    await agent.sync(*(agent.running(order) for order in orders))
    return orders


async def test_bytes_that_are_not_those_announced_replace_nothing(
    served: Served, agent: FakeAgent, blobs: FolderBlobs
) -> None:
    order = await start(served, agent)
    assert (await upload(agent, order.key, b"good")).status_code == 200
    answer = await upload(agent, order.key, b"changed on the way", sha=digest(b"something else"))
    assert (answer.status_code, answer.json()["code"]) == (422, "checksum_mismatch")
    answer = await upload(agent, order.key, b"x", sha="not a checksum")
    assert answer.status_code == 422
    await agent.end(order, exit_code=1)
    assert (await fetch(agent, await agent.take())).content == b"good"
    await asyncio.to_thread(wait_for, lambda: len(files(blobs)) == 1)


async def test_an_upload_that_is_cut_replaces_nothing(
    served: Served, agent: FakeAgent, blobs: FolderBlobs
) -> None:
    """The proxy cuts in mid-body: neither a row nor a blob nor a part of one is left (BLOB-1,
    CKPT-4)."""
    order = await start(served, agent)
    assert (await upload(agent, order.key, b"good")).status_code == 200
    port = int(served.url.rsplit(":", 1)[1])
    with Proxy(port) as proxy:
        sent, cut = asyncio.Event(), asyncio.Event()

        async def body() -> AsyncIterator[bytes]:
            for _ in range(4):
                yield b"x" * (1 << 20)
            sent.set()
            await cut.wait()
            for _ in range(4):
                yield b"x" * (1 << 20)

        torn = asyncio.create_task(
            upload(
                agent,
                order.key,
                body(),
                sha=digest(b"never"),
                url=f"http://127.0.0.1:{proxy.port}",
                **{"Content-Length": str(8 << 20)},
            )
        )
        await in_time(sent.wait(), 20)
        await asyncio.to_thread(
            wait_for, lambda: len(files(blobs)) == 2
        )  # the good one, and the part
        await asyncio.to_thread(proxy.cut)
        cut.set()
        with pytest.raises(httpx.TransportError):
            await torn
    await asyncio.to_thread(wait_for, lambda: len(files(blobs)) == 1)
    await agent.end(order, exit_code=1)
    assert (await fetch(agent, await agent.take())).content == b"good"


async def test_what_is_too_large_is_refused_before_and_while_it_comes(
    served: Served, agent: FakeAgent, blobs: FolderBlobs
) -> None:
    await served.call("PUT", "/v1/queues/small", json={"set": {"checkpoint_max_mb": 0.001}})
    order = await start(served, agent, queue="small")
    answer = await upload(agent, order.key, b"x" * 2000)
    assert (answer.status_code, answer.json()["code"]) == (413, "checkpoint_too_large")

    async def body() -> AsyncIterator[bytes]:
        for _ in range(20):
            yield b"x" * 100

    answer = await upload(
        agent, order.key, body(), sha=digest(b"x" * 2000)
    )  # chunked: no length is announced
    assert (answer.status_code, answer.json()["code"]) == (413, "checkpoint_too_large")
    assert (await upload(agent, order.key, b"x" * 1000)).status_code == 200
    await asyncio.to_thread(wait_for, lambda: len(files(blobs)) == 1)


async def test_the_agent_hears_why_a_large_one_is_refused(
    served: Served, agent: FakeAgent, tmp_path: Path
) -> None:
    """The controller answers and closes while the agent still sends. What is taken for a broken
    line is sent again and again."""
    await served.call("PUT", "/v1/queues/small", json={"set": {"checkpoint_max_mb": 1}})
    order = await start(served, agent, queue="small")
    (tmp_path / "checkpoint").write_bytes(bytes(32 << 20))
    transfers = Transfers(
        BlockingHttp(read_addresses(served.url)),
        incarnation=agent.incarnation,
        token=lambda: agent.key,
    )
    late = TaskKey(order.key.job_id, order.key.rank, order.key.epoch + 5)
    for key, kind in ((order.key, TooLarge), (late, Conflict)) * 10:
        saved = open_newest(tmp_path)
        assert saved is not None
        with pytest.raises(kind):
            await asyncio.to_thread(transfers.upload, key, saved, digest(b""), Wire())
        saved.close()


async def test_an_old_epoch_another_host_and_another_incarnation_are_refused(
    served: Served, agent: FakeAgent
) -> None:
    """CKPT-1."""
    order = await start(served, agent)
    other = FakeAgent(served, "h2", queues=["elsewhere"])
    await other.register()
    assert (await upload(other, order.key, b"not mine")).status_code == 409
    assert (
        await upload(agent, order.key, b"before", incarnation="another-incarnation")
    ).status_code == 409
    await agent.end(order, exit_code=1)
    again = await agent.take()
    answer = await upload(agent, order.key, b"late")
    assert (answer.status_code, answer.json()["code"]) == (409, "stale_epoch")
    assert (await upload(agent, again.key, b"in time")).status_code == 200
    unknown = wire.TaskKey("nobody", 0, 1)
    assert (await upload(agent, unknown, b"x")).status_code == 409


async def test_a_draining_attempt_may_still_save(served: Served, agent: FakeAgent) -> None:
    order = await start(served, agent)
    await served.call("POST", f"/v1/jobs/{order.key.job_id}/cancel", json={})
    assert (await served.job(order.key.job_id))["state"] == "draining"
    assert (await upload(agent, order.key, b"last words")).status_code == 200
    await agent.end(order, signal=15, stopped=True)
    job = order.key.job_id
    await served.until(job, "cancelled")
    assert (await served.call("GET", f"/v1/jobs/{job}/checkpoint")).content == b"last words"
    assert (await served.call("POST", f"/v1/jobs/{job}/retry", json={})).status_code == 200
    again = await agent.take()
    assert (await fetch(agent, again)).content == b"last words"


async def test_a_retry_from_scratch_forgets(
    served: Served, agent: FakeAgent, blobs: FolderBlobs
) -> None:
    order = await start(served, agent, retry={"max_retries": 0})
    await upload(agent, order.key, b"spoilt")
    await agent.end(order, exit_code=1)
    await served.until(order.key.job_id, "failed")
    answer = await served.call(
        "POST", f"/v1/jobs/{order.key.job_id}/retry", json={"from_scratch": True}
    )
    assert answer.status_code == 200
    assert "from scratch" in answer.json()["reason"]
    again = await agent.take()
    assert again.checkpoint is None
    await CheckpointsLoop(served.controller, orphan_seconds=-1.0).run_once()
    assert files(blobs) == []


async def test_the_same_upload_again_is_one_checkpoint(
    served: Served, agent: FakeAgent, blobs: FolderBlobs
) -> None:
    order = await start(served, agent)
    for _ in range(3):  # the answers were lost
        assert (await upload(agent, order.key, b"once", step=5)).json() == {"number": 1}
    await asyncio.to_thread(wait_for, lambda: len(files(blobs)) == 1)


async def test_people_leave_fetch_and_forget_checkpoints(
    served: Served, agent: FakeAgent, blobs: FolderBlobs
) -> None:
    order = await start(served, agent)
    path = f"/v1/jobs/{order.key.job_id}/checkpoint"
    answer = await served.call("PUT", path, "submit", content=b"by hand")
    assert answer.status_code == 409
    assert "epoch=1" in answer.json()["detail"]
    assert (await served.call("PUT", path, "submit", params={"epoch": 9}, content=b"x")).json()[
        "code"
    ] == "stale_epoch"
    assert (
        await served.call("PUT", path, "read", params={"epoch": 1}, content=b"x")
    ).status_code == 403
    assert (
        await served.call("PUT", path, params={"epoch": 1, "rank": 1}, content=b"x")
    ).status_code == 404
    answer = await served.call(
        "PUT", path, "submit", params={"epoch": 1, "step": 4}, content=b"by hand"
    )
    assert (answer.status_code, answer.json()["number"], answer.json()["step"]) == (201, 1, 4)
    await upload(agent, order.key, b"newer")
    assert (await served.call("GET", path, "read")).content == b"newer"
    assert (await served.call("GET", path, params={"number": 1})).content == b"by hand"
    assert (await served.call("GET", path, params={"number": 7})).status_code == 404
    await agent.end(order, exit_code=1)
    again = await agent.take()
    await agent.sync(agent.running(again))
    answer = await served.call("DELETE", path + "s", params={"number": 2})
    assert answer.status_code == 204
    await agent.end(again, exit_code=1)
    assert (await fetch(agent, await agent.take())).content == b"by hand"
    assert (await served.call("DELETE", path + "s")).status_code == 204
    assert (await served.call("DELETE", path + "s")).status_code == 404
    await asyncio.to_thread(wait_for, lambda: not files(blobs))


async def test_a_checkpoint_is_found_by_the_epoch_it_was_saved_under(
    served: Served, agent: FakeAgent
) -> None:
    order = await start(served, agent)
    await upload(agent, order.key, b"of the first")
    await agent.end(order, exit_code=1)
    again = await agent.take()
    await upload(agent, again.key, b"of the next")
    path = f"/v1/jobs/{order.key.job_id}/checkpoint"
    found = [
        await served.call("GET", path, params={"epoch": key.epoch})
        for key in (order.key, again.key)
    ]
    assert [answer.content for answer in found] == [b"of the first", b"of the next"]
    assert (
        await served.call("GET", path, params={"epoch": again.key.epoch + 1})
    ).status_code == 404


async def test_what_a_person_may_not_leave_is_refused_before_it_is_sent(
    served: Served, agent: FakeAgent, blobs: FolderBlobs
) -> None:
    order = await start(served, agent)
    path = f"/v1/jobs/{order.key.job_id}/checkpoint"

    async def body() -> AsyncIterator[bytes]:
        for _ in range(4):
            yield b"x" * (1 << 20)

    for params, code in (
        ({}, "conflict"),
        ({"epoch": 9}, "stale_epoch"),
        ({"epoch": 1, "rank": 1}, "not_found"),
    ):
        answer = await served.call("PUT", path, "submit", params=params, content=body())
        assert answer.json()["code"] == code
    assert not was_used(blobs), "some of it was written"


async def test_a_blob_that_is_gone_is_told(
    served: Served, agent: FakeAgent, blobs: FolderBlobs
) -> None:
    order = await start(served, agent)
    await upload(agent, order.key, b"lost")
    (blob,) = files(blobs)
    blob.unlink()
    answer = await served.call("GET", f"/v1/jobs/{order.key.job_id}/checkpoint")
    assert (answer.status_code, answer.json()["code"]) == (410, "blob_missing")


@pytest.mark.parametrize("left", [0, 4, 3 << 20])
async def test_a_blob_that_was_cut_is_told_before_its_first_byte(
    served: Served, agent: FakeAgent, blobs: FolderBlobs, left: int
) -> None:
    order = await start(served, agent)
    await upload(agent, order.key, b"x" * (4 << 20))
    (blob,) = files(blobs)
    os.truncate(blob, left)
    answer = await served.call("GET", f"/v1/jobs/{order.key.job_id}/checkpoint")
    assert (answer.status_code, answer.json()["code"]) == (410, "blob_spoilt")


async def test_what_cannot_be_used_is_skipped_and_told_once(
    served: Served, agent: FakeAgent, blobs: FolderBlobs
) -> None:
    """SAVE-4: the one before is offered, under the fence, and nothing is deleted."""
    order = await start(served, agent)
    for step in (1, 2):
        await upload(agent, order.key, b"step %d" % step, step=step)
    await agent.end(order, exit_code=1)
    again = await agent.take()
    assert again.checkpoint is not None
    assert again.checkpoint.number == 2

    async def skip(number: int, **fields: Any) -> httpx.Response:
        said = wire.CheckpointSkip(
            **{
                "key": again.key,
                "incarnation": agent.incarnation,
                "number": number,
                "reason": "rot",
                **fields,
            }
        )
        return await served.http.post(
            "/v1/agent/checkpoint/skip", content=wire.encode(said), headers=bearer(agent.key)
        )

    for _ in range(2):  # an answer may be lost
        answer = await skip(2)
        assert answer.status_code == 200, answer.text
        older = wire.decode_checkpoint_offer(answer.content)
        assert (older.number, older.step, older.size, older.sha256) == (1, 1, 6, digest(b"step 1"))
    assert (await skip(1)).status_code == 404, "nothing is older"
    assert (await skip(2, key=order.key)).status_code == 409, "another epoch"
    assert (await skip(2, incarnation="incarnation-of-nobody")).status_code == 409
    assert (
        await served.http.post(
            "/v1/agent/checkpoint/skip", content=b"{}", headers=bearer(agent.key)
        )
    ).status_code == 422
    events = (await served.call("GET", f"/v1/events?job={again.key.job_id}&tail=100")).json()[
        "items"
    ]
    (skipped,) = [e for e in events if e["kind"] == "task.checkpoint_skipped"]
    assert (skipped["rank"], skipped["attempt"], skipped["data"]) == (
        0,
        2,
        {"number": 2, "older": 1, "reason": "rot"},
    )
    assert (
        skipped["message"]
        == "rank 0 starts from checkpoint 1, of step 1: number 2 cannot be used: rot"
    )
    assert len(files(blobs)) == 2, "a person may want to look at it"


async def test_orphans_are_swept_and_named_blobs_are_not(
    served: Served, agent: FakeAgent, blobs: FolderBlobs
) -> None:
    """CKPT-4: what a crash between the blob and its row left."""
    order = await start(served, agent)
    await upload(agent, order.key, b"named")

    async def pieces() -> AsyncIterator[bytes]:
        yield b"orphan"

    await blobs.write(f"{order.key.job_id}/0.1.orphan", pieces())

    async def others() -> AsyncIterator[bytes]:
        yield b"of another database"

    await blobs.write("a-job-of-another-database/0.1.a", others())
    await asyncio.to_thread(Path(blobs.place, ".parts", "torn").write_bytes, b"half")
    assert not await CheckpointsLoop(served.controller).run_once()  # all are young
    assert await CheckpointsLoop(served.controller, orphan_seconds=-1.0).run_once() == {
        "cleared": 0,
        "swept": 2,
    }
    # A job that is unknown here may be known to another database that keeps its blobs in the same
    # place.
    assert {path.read_bytes() for path in files(blobs)} == {b"named", b"of another database"}


async def test_what_could_not_be_deleted_in_its_time_is_deleted_though_its_job_is_gone(
    served: Served, agent: FakeAgent, blobs: MoodyBlobs
) -> None:
    """CKPT-4: after a job is forgotten only the checkpoint's row leads to its blob, so the row goes
    last."""
    blobs.stuck = True
    order = await start(served, agent)
    await upload(agent, order.key, b"kept for too long")
    await agent.end(order, exit_code=0)
    await served.until(order.key.job_id, "succeeded")
    loop = CheckpointsLoop(served.controller, orphan_seconds=-1.0)
    await loop.run_once()
    assert await served.store.jobs.prune(0.0, now=await served.store.now() + timedelta(days=1)) == 1
    await loop.run_once()
    assert len(files(blobs)) == 1
    blobs.stuck = False
    await loop.run_once()
    assert files(blobs) == []
    assert await served.store.checkpoints.find_unneeded_blobs() == ()


async def test_a_large_checkpoint_passes_in_constant_memory(
    served: Served, agent: FakeAgent, tmp_path: Path, store: PostgresStore
) -> None:
    """CKPT-3: 200 MB up and down, in this process, which is the server's too."""
    order = await start(served, agent)
    size, piece = 200 << 20, bytes(range(256)) * 4096
    hashed = hashlib.sha256()
    for _ in range(size // len(piece)):
        hashed.update(piece)

    async def body() -> AsyncIterator[bytes]:
        for _ in range(size // len(piece)):
            yield piece

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    answer = await upload(
        agent, order.key, body(), sha=hashed.hexdigest(), **{"Content-Length": str(size)}
    )
    assert answer.status_code == 200, answer.text
    came = hashlib.sha256()
    path = f"{served.url}/v1/jobs/{order.key.job_id}/checkpoint"
    async with served.http.stream("GET", path, headers=bearer("hft_read")) as found:
        assert found.headers["content-length"] == str(size)
        async for part in found.aiter_raw(1 << 20):
            came.update(part)
    assert came.hexdigest() == hashed.hexdigest()
    grown_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown_kb < 64 * 1024, f"{grown_kb >> 10} MB more for a checkpoint of 200 MB"


async def test_a_sender_that_falls_silent_is_not_waited_for(
    served: Served, agent: FakeAgent, blobs: FolderBlobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    import holdfast.controller.api.checkpoints.bytes as module

    monkeypatch.setattr(module, "SILENCE_SECONDS", 0.3)
    order = await start(served, agent)
    host, port = served.url.removeprefix("http://").split(":")
    query = f"job={order.key.job_id}&rank=0&epoch=1&incarnation={agent.incarnation}"
    head = (
        f"PUT /v1/agent/checkpoint?{query} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer "
        f"{agent.key}\r\n"
        f"Holdfast-Sha256: {'0' * 64}\r\nContent-Length: 1000\r\n\r\nabc"
    )
    reader, writer = await asyncio.open_connection(host, int(port), family=socket.AF_INET)
    writer.write(head.encode())
    assert b" 408 " in await in_time(reader.readline(), 20)
    writer.close()
    await asyncio.to_thread(wait_for, lambda: not files(blobs))


async def test_a_sender_that_drips_is_given_up_and_one_that_is_only_slow_is_not(
    served: Served, agent: FakeAgent, blobs: FolderBlobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    import holdfast.controller.api.checkpoints.bytes as module

    monkeypatch.setattr(module, "SILENCE_SECONDS", 2.0)
    monkeypatch.setattr(module, "LEAST_BYTES", 1000)
    order = await start(served, agent)

    async def body(piece: bytes, seconds: float) -> AsyncIterator[bytes]:
        for _ in range(60):
            yield piece
            await asyncio.sleep(seconds)

    answer = await upload(agent, order.key, body(b"x", 0.1), sha=digest(b"x" * 60))
    assert answer.status_code == 408, answer.text
    assert "bytes of the body came in 2 s" in answer.json()["detail"]
    answer = await upload(agent, order.key, body(b"x" * 1000, 0.1), sha=digest(b"x" * 60_000))
    assert answer.status_code == 200, answer.text
    await asyncio.to_thread(wait_for, lambda: len(files(blobs)) == 1)
