"""Every route, fed with messages that no client means: each is refused or taken, none is a bug of the
server, none costs another host anything, and nothing of the server ends.

Messages are made up from the types of the routes (`tests/hostile.py`). How many:
`HOLDFAST_HYPOTHESIS=long`, or `HOLDFAST_FUZZ_SECONDS` for so many seconds (marked `soak`).
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import logging
import os
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from urllib.parse import quote, urlencode

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from holdfast.controller.http.endpoints import Endpoint
from holdfast.controller.routes import ENDPOINTS
from holdfast.controller.server import RunningServer, bind_socket
from holdfast.core.fleet.pools import PoolSpec
from holdfast.core.gpus import GpuTelemetry
from holdfast.store.postgres.store import PostgresStore
from holdfast.wire import agent as wire
from holdfast.wire.calls import CallsRequest
from holdfast.wire.logs.uploads import LogsRequest
from holdfast.wire.operations.operation import Role
from tests.hostile import TEXTS, Maker
from tests.simulated.blobs import MemoryBlobs
from tests.store.pg_fixture import PgServer
from tests.unit.controller.conftest import SECRETS, FakeAgent, Served, add_tokens, bearer, gpu

LONG = os.environ.get("HOLDFAST_HYPOTHESIS") == "long"
SOAK_SECONDS = float(os.environ.get("HOLDFAST_FUZZ_SECONDS", "450"))
PACKED = {"/v1/agent/logs": LogsRequest, "/v1/agent/calls": CallsRequest}
POOLS = {"/v1/pools/{name}"}
QUERIES = ["{ jobs(limit: 3) { id name } }", "{ job(id: \"x\") { id } }", "query($n: Int) { jobs(limit: $n) { id } }"]  # fmt: skip
RULES = [
    '[[rule]]\nname = "a"\npattern = "x+"\ncause = "user_error"\n', "[[rule]]\nname = \"b\"\nexit_codes = [99999999999999999999]\n",
    "[[rule]]\nname = \"c\"\nexit_codes = [3]\nsignals = [-1, 1e308]\n", "x = nan\n", "x = " + "1" * 5000, "x = " + "[" * 5000, "[[rule]]\nname = inf\n", "[[rule]]\n" * 300,
]  # fmt: skip


class Complaints(logging.Handler):
    """Keeps the log's tracebacks: each is something that the server did not expect."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and record.exc_info[0] is not None:
            self.found.append(logging.Formatter().format(record))


class World:
    """A server in a thread of its own, with a little of everything in it, and two hosts: one sends
    what it should, the other what is made up."""

    def __init__(self, store: PostgresStore) -> None:
        self.store = store
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.known: dict[str, list[Any]] = {}
        self.keys: list[Any] = []
        self.ids: dict[str, list[Any]] = {}
        self.complaints = Complaints()
        self.line: http.client.HTTPConnection | None = None

    def run(self, work: Any, seconds: float = 60) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(seconds)

    def open(self) -> None:
        logging.getLogger("holdfast").addHandler(self.complaints)
        self.thread.start()
        self.run(self._open())

    async def _open(self) -> None:
        await self.store.open()
        await add_tokens(self.store)
        self.running = RunningServer(self.store, bind_socket("127.0.0.1", 0), blobs=MemoryBlobs())
        await self.running.start()
        self.served = Served(self.running, self.store)
        for queue in ("kept", "fuzzed", "other"):
            assert (await self.served.call("PUT", f"/v1/queues/{queue}")).status_code == 200
        self.good = FakeAgent(self.served, "good", queues=["kept"], gpus=[gpu(0)])
        assert (await self.good.register()).status_code == 200
        self.job = await self.served.submit(name="kept", queue="kept")
        self.order = await self.good.take()
        await self.good.sync(self.good.running(self.order))
        more: dict[str, Any] = {"queues": ["fuzzed"], "labels": {"app/module": "yes"}}
        self.bad = FakeAgent(self.served, "bad", gpus=[gpu(0), gpu(1)], **more)
        assert (await self.bad.register()).status_code == 200
        for method, path, body in FIRST:
            answer = await self.served.call(method, path, json=body)
            assert answer.status_code < 300, (path, answer.text)
        await self.refresh()

    async def refresh(self) -> None:
        """See what there is now, so that made-up messages name it."""

        async def ids(path: str, field: str = "id") -> list[Any]:
            answer = await self.served.call("GET", path)
            items = answer.json()["items"] if answer.status_code == 200 else []
            return [item[field] for item in items if item[field] != self.job["id"]][:6]

        answer = await self.bad.post_sync()
        if answer.status_code != 200:
            self.bad.key = "" if answer.status_code == 401 else self.bad.key
            self.bad.incarnation += "x"
            assert (await self.bad.register()).status_code == 200
            answer = await self.bad.post_sync()
        said = wire.decode_sync_answer(answer.content)
        orders = [order for each in said.launch for order in each.list_all()]
        await self.bad.post_sync(*(self.bad.running(order) for order in orders))
        jobs = await ids("/v1/jobs?limit=6&executors=show&queue=fuzzed")
        self.keys = [*self.keys[-6:], *([o.key.job_id, o.key.rank, o.key.epoch] for o in orders)]
        keys = [*self.keys, *([job, 0, 1] for job in jobs)]
        self.ids = {
            "jobs": jobs, "workflows": await ids("/v1/workflows"), "call-sets": await ids("/v1/call-sets"),
            "arrays": await ids("/v1/arrays"), "webhooks": await ids("/v1/webhooks"),
        }  # fmt: skip
        self.known = {
            "key": keys, "held": keys, "incarnation": [self.bad.incarnation], "seq": [self.bad.seq + 1], "wait_seconds": [0.0],
            "wait": ["0"], "follow": ["0"], "queue": ["fuzzed", "other"], "queues": ["fuzzed"], "job": [key[0] for key in keys], "ids": jobs,
            "host": ["bad", self.bad.host_id], "url": ["http://127.0.0.1:9/hook"], "provider": ["command", "nothing"], "max": [0], "min": [0],
            "name": ["bad", "fuzzed", "nightly", "p1"], "function": ["module:name"], "query": QUERIES, "text": RULES, "after": jobs, "role": ["read"],
            "node": ["a", "b"], "run": self.ids["workflows"], "set": SETTINGS, "cron": ["0 4 * * *"],
            "tz": ["Europe/Berlin"], "timezone": ["Europe/Berlin"], "expires_seconds": [5.0], "labels": [{}, {"app/module": "yes"}],
            "host_labels": [{}], "shell": [None], "argv[]": [["true"]], "cpu_slots": [4], "batch": [1, 2, 3], "project": ["default"], "id": IDS,
            "rank": [0, 1], "epoch": [1, 2], "leaving": [False], "args": ["[]", "[1, {}]"], "nodes[]": [NODES], "executor": [""], "runtime": [None], "volumes[]": [[]],
        }  # fmt: skip

    def call(self, method: str, path: str, body: bytes, headers: dict[str, str]) -> int:
        """Return the status of a call over the real wire; of a stream, as soon as it begins."""
        for again in (False, True):
            line = self.line or http.client.HTTPConnection(
                *self.running.url.removeprefix("http://").split(":"),
                timeout=60,  # type: ignore[arg-type]  # port
            )
            try:
                line.request(method, path, body, headers)
                answer = line.getresponse()
                if answer.getheader("content-type", "").startswith("text/event-stream"):
                    line.close()
                    self.line = None
                else:
                    answer.read()
                    self.line = line
                return answer.status
            except (http.client.HTTPException, OSError):
                line.close()
                self.line = None
                if again:
                    raise
        raise AssertionError

    def check(self) -> None:
        """The other host is served as before, its readings are written, and every part lives."""
        self.run(self._check())
        assert not self.complaints.found, self.complaints.found[0]

    async def _check(self) -> None:
        began = await self.store.now()
        answer = await self.good.sync(
            self.good.running(self.order), gpus=[GpuTelemetry(index=0, memory_total_bytes=7)]
        )
        assert [renewed.key for renewed in answer.renewed] == [self.order.key]
        await self.running.controller.telemetry.write()
        latest = await self.store.telemetry.read_latest(self.good.host_id)
        assert latest is not None
        assert latest.at > began - timedelta(seconds=1)  # no reading is kept sooner after another
        assert [task.get_name() for task in self.running.list_tasks() if task.done()] == []

    def close(self) -> None:
        self.run(self._close())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(20)
        self.loop.close()
        if self.line is not None:
            self.line.close()
        logging.getLogger("holdfast").removeHandler(self.complaints)

    async def _close(self) -> None:
        await self.served.http.aclose()
        await self.running.stop()
        await self.store.close()


NODES: list[Any] = [
    {"name": "a", "job": {"spec": {"argv": ["true"], "queue": "fuzzed"}}},
    {"name": "b", "ask": {"prompt": "really?"}, "after": ["a"]},
    {"name": "c", "call": {"spec": {"function": "module:name", "queue": "fuzzed"}, "over": [1, 2], "item": "x"}},
]  # fmt: skip
IDS = [f"{number:020d}" for number in range(10, 60)]
SETTINGS: list[Any] = [
    {},
    {"retry_max_retries": 3},
    {"max_running": 5},
    {"stall_timeout_seconds": 9.0},
]
FIRST: list[tuple[str, str, Any]] = [
    ("POST", "/v1/jobs", {"argv": ["true"], "queue": "fuzzed"}),
    ("POST", "/v1/jobs", {"argv": ["true"], "queue": "fuzzed", "tasks": 2, "retry": {"max_retries": 2}}),
    ("POST", "/v1/call-sets", {"id": "0" * 20, "spec": {"function": "module:name", "queue": "fuzzed"}, "args": ["[]", "[]"]}),
    ("POST", "/v1/workflows", {"id": "1" * 20, "spec": {"name": "flow", "nodes": NODES}}),
    ("PUT", "/v1/schedules/nightly", {"cron": "0 4 * * *", "job": {"argv": ["true"], "queue": "fuzzed"}}),
]  # fmt: skip


def make_request(
    world: World, maker: Maker, endpoint: Endpoint
) -> tuple[str, bytes, dict[str, str]]:
    """Return a path with its query, a body and headers."""
    path = endpoint.path
    while "{" in path:
        head, _, rest = path.partition("{")
        name, _, rest = rest.partition("}")
        known = world.known.get(name, ["x"])
        if name == "index":
            known = ["0", "1"]
        elif name == "id":
            known = world.ids.get(path.split("/")[2], ["x"])
        if name == "action":
            known = ["drain", "undrain", "quarantine", "release"]
        plain = known and maker.random.random() < 0.8
        word = str(maker.pick(known)) if plain else maker.pick(TEXTS)[:600] or "x"
        path = head + quote(word, safe="", errors="replace") + rest
    if endpoint.query is not None and maker.random.random() < 0.7:
        made = msgspec.json.decode(msgspec.json.encode(maker.make(endpoint.query)))
        pairs = [(k, v) for k, vs in made.items() for v in (vs if isinstance(vs, list) else [vs])]
        if pairs and maker.random.random() < 0.4:
            at = maker.random.randrange(len(pairs))
            odd = maker.pick([*TEXTS, *(str(n) for n in (2**31, 2**63, -1, 10**19, 1e308))])
            pairs[at] = (pairs[at][0], odd[:3000])
        path += "?" + urlencode([(k, v) for k, v in pairs if v is not None], errors="replace")
    body, headers = b"", {"Content-Type": "application/json"}
    if endpoint.path in PACKED:
        body = maker.encode_packed(PACKED[endpoint.path])
        headers = {"Content-Type": "application/msgpack"}
    elif endpoint.raw:
        body = maker.pick([b"", b"bytes", b"\x00" * 100])
        headers = {"Content-Type": "application/octet-stream"}
        if maker.random.random() < 0.5:
            headers["Holdfast-Sha256"] = maker.pick(["0" * 64, "x", "", "é"])
    elif endpoint.body is not None:
        body = maker.encode_json(PoolSpec if endpoint.path in POOLS else endpoint.body)
    if endpoint.headers and maker.random.random() < 0.3:
        name = maker.pick(list(endpoint.headers))
        headers[name] = maker.pick(["1", "k" * 300, "-1", str(2**70), "é", "", "a\tb"])
    if endpoint.role is Role.HOST:
        headers |= bearer(world.bad.key)
    elif endpoint.role is Role.JOIN:
        headers |= bearer(maker.pick([world.bad.key, SECRETS["join"], "nothing"]))
    else:
        headers |= bearer(SECRETS["admin"])
    return path, body, headers


def try_one(world: World, seed: int) -> None:
    """Send one made-up request. Raises AssertionError where the server was not ready for it."""
    maker = Maker(seed, world.known, always=("argv", "queue", "queues"))
    # Agents' routes are half of all: they are the deepest, and what they bring is never refused whole.
    agents = [e for e in ENDPOINTS if e.role in (Role.HOST, Role.JOIN)]
    endpoint = maker.pick(agents if maker.random.random() < 0.5 else list(ENDPOINTS))
    path, body, headers = make_request(world, maker, endpoint)
    if endpoint.path == "/v1/hosts/{host}/{action}" and "good" in path:
        return
    if endpoint.path.startswith("/v1/tokens/") or path.endswith("/terminate"):
        return
    status = world.call(endpoint.method, path, body, headers)
    said = f"seed {seed}: {endpoint.method} {path[:300]} {body[:2000]!r} {headers} -> {status}"
    assert status < 500, said + "".join(world.complaints.found[:1])
    assert not world.complaints.found, said + world.complaints.found[0]


@pytest.fixture(scope="module")
def world(pg_server: PgServer, pg_template: str) -> Iterator[World]:
    with contextlib.ExitStack() as stack:
        name = pg_server.create_database(pg_template)
        stack.callback(pg_server.drop_database, name)
        made = World(PostgresStore(pg_server.dsn_of(name)))
        made.open()
        stack.callback(made.close)
        yield made


@pytest.mark.slow
@settings(
    max_examples=20 if LONG else 4, deadline=None, phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck), derandomize=not LONG,
)  # fmt: skip
@given(seed=st.integers(0, 2**32))
def test_no_request_is_more_than_refused(world: World, seed: int) -> None:
    for number in range(200 if LONG else 60):
        try_one(world, seed * 1000 + number)
    world.check()
    world.run(world.refresh())


@pytest.mark.soak
def test_no_request_is_more_than_refused_for_a_long_time(world: World) -> None:
    until, seed = time.monotonic() + SOAK_SECONDS / 2, time.time_ns()
    while time.monotonic() < until:
        for _ in range(100):
            seed += 1
            try_one(world, seed)
        world.check()
        world.run(world.refresh())
