"""A controller, served for real on an ephemeral port."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import msgspec
import pytest

from holdfast.controller.runtime.auth import hash_secret, make_new_id
from holdfast.controller.server import RunningServer, bind_socket
from holdfast.core.facts import TaskFacts
from holdfast.core.gpus import Gpu
from holdfast.store.postgres.store import PostgresStore
from holdfast.wire import agent as wire
from holdfast.wire.logs.uploads import LogsRequest, LogUpload
from tests.simulated.blobs import MemoryBlobs
from tests.store.pg_fixture import MakeStore
from tests.waits import within

SECRETS = {"admin": "hft_admin", "submit": "hft_submit", "read": "hft_read", "join": "hfj_join"}


def bearer(secret: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {secret}"}


class Served:
    """The server under test, and a client for each role."""

    def __init__(self, running: RunningServer, store: PostgresStore) -> None:
        self.running = running
        self.controller = running.controller
        self.store = store
        self.url = running.url
        # Unverified, because it is never over TLS: reading the authorities takes longer than a test.
        # Its timeout is longer than any call may wait.
        self.http = httpx.AsyncClient(base_url=self.url, timeout=300, trust_env=False, verify=False)

    async def call(
        self, method: str, path: str, role: str | None = "admin", **more: Any
    ) -> httpx.Response:
        headers = {**(bearer(SECRETS[role]) if role else {}), **more.pop("headers", {})}
        return await self.http.request(method, path, headers=headers, **more)

    async def submit(self, **spec: Any) -> dict[str, Any]:
        spec.setdefault("argv", ["/bin/true"])
        answer = await self.call("POST", "/v1/jobs", json=spec)
        if answer.status_code == 422 and answer.json()["code"] == "unknown_project":
            await self.call("PUT", f"/v1/projects/{spec['project'].replace('/', '%2F')}", json={})
            answer = await self.call("POST", "/v1/jobs", json=spec)
        assert answer.status_code in (200, 201), answer.text
        found: dict[str, Any] = answer.json()
        return found

    async def job(self, job_id: str) -> dict[str, Any]:
        found: dict[str, Any] = (await self.call("GET", f"/v1/jobs/{job_id}")).json()
        return found

    async def until(self, job_id: str, *states: str, seconds: float = 10) -> dict[str, Any]:
        async with within(seconds):
            while (job := await self.job(job_id))["state"] not in states:
                await asyncio.sleep(0.02)
        return job


class FakeAgent:
    """An agent's half of the wire, driven by hand."""

    def __init__(self, served: Served, name: str = "h1", **facts: Any) -> None:
        self.served = served
        self.facts = wire.HostFacts(
            **{"name": name, "cpu_slots": 4, "memory_bytes": 8 << 30, **facts}
        )
        self.incarnation = f"incarnation-of-{name}-1"
        self.key = ""
        self.host_id = ""
        self.seq = 0
        self.rev = 1 << 40

    async def register(self, secret: str | None = None) -> httpx.Response:
        body = wire.encode(wire.RegisterRequest(incarnation=self.incarnation, facts=self.facts))
        answer = await self.served.http.post(
            "/v1/agent/register",
            content=body,
            headers=bearer(secret or self.key or await make_join(self.served)),
        )
        if answer.status_code == 200:
            found = wire.decode_register_answer(answer.content)
            self.host_id, self.key = found.host_id, found.host_key or self.key
        return answer

    async def post_sync(
        self, *tasks: wire.TaskReport, wait: float = 0.0, **more: Any
    ) -> httpx.Response:
        self.seq += 1
        fields: dict[str, Any] = {
            "incarnation": self.incarnation,
            "seq": self.seq,
            "settings_rev": self.rev,
            **more,
        }
        request = wire.SyncRequest(tasks=list(tasks), wait_seconds=wait, **fields)
        return await self.served.http.post(
            "/v1/agent/sync", content=wire.encode(request), headers=bearer(self.key)
        )

    async def sync(
        self, *tasks: wire.TaskReport, wait: float = 0.0, **more: Any
    ) -> wire.SyncAnswer:
        answer = await self.post_sync(*tasks, wait=wait, **more)
        assert answer.status_code == 200, answer.text
        told = wire.decode_sync_answer(answer.content)
        orders = [each for order in told.launch for each in order.list_all()]
        return msgspec.structs.replace(told, launch=orders)

    async def take(self, seconds: float = 10) -> wire.LaunchOrder:
        async with within(seconds):
            while not (found := (await self.sync(wait=2.0)).launch):
                pass
        return found[0]

    async def end(self, order: wire.LaunchOrder, **facts: Any) -> wire.SyncAnswer:
        return await self.sync(
            wire.TaskReport(key=order.key, state="ended", facts=TaskFacts(**facts))
        )

    async def send_log(
        self,
        key: wire.TaskKey,
        data: bytes,
        offset: int = 0,
        ended: bool = False,
        stream: Any = "stdout",
    ) -> httpx.Response:
        upload = LogUpload(key=key, stream=stream, offset=offset, data=data, ended=ended)
        body = msgspec.msgpack.encode(LogsRequest(uploads=[upload]))
        headers = {**bearer(self.key), "Content-Type": "application/msgpack"}
        return await self.served.http.post("/v1/agent/logs", content=body, headers=headers)

    def running(self, order: wire.LaunchOrder, **more: Any) -> wire.TaskReport:
        return wire.TaskReport(key=order.key, state="running", pid=1, **more)


async def make_join(served: Served) -> str:
    answer = await served.call("POST", "/v1/tokens", json={"role": "join"})
    secret: str = answer.json()["secret"]
    return secret


async def add_tokens(store: PostgresStore) -> None:
    for role, secret in SECRETS.items():
        await store.tokens.create_token(
            make_new_id(), role, f"the {role}", hash_secret(secret), None, user="tester"
        )


@pytest.fixture
async def store(make_store: MakeStore) -> PostgresStore:
    """A store with a token for each role."""
    made = await make_store()
    await add_tokens(made)
    return made


@pytest.fixture
async def served(store: PostgresStore) -> AsyncIterator[Served]:
    running = RunningServer(store, bind_socket("127.0.0.1", 0), blobs=MemoryBlobs())
    await running.start()
    found = Served(running, store)
    yield found
    await found.http.aclose()
    await running.stop()


@pytest.fixture
async def agent(served: Served) -> FakeAgent:
    made = FakeAgent(served)
    answer = await made.register()
    assert answer.status_code == 200, answer.text
    return made


def gpu(index: int) -> Gpu:
    return Gpu(index=index, vendor="declared")


def decode_json(data: bytes) -> Any:
    return msgspec.json.decode(data)
