"""What no well-behaved client sends: half requests, garbage, endless heads, slow bodies. Raw
sockets."""

from __future__ import annotations

import asyncio
import json

import pytest

from holdfast.controller.http import bodies, protocol
from tests.unit.controller.conftest import SECRETS, Served
from tests.waits import in_time, within

HEAD = (
    f"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {SECRETS['submit']}\r\n".encode()
)
LONG = 60.0  # for a client that gets no turn meanwhile


async def connect(served: Served) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, port = served.url.removeprefix("http://").rsplit(":", 1)
    return await asyncio.open_connection(host, int(port))


async def read_all(reader: asyncio.StreamReader, seconds: float = 10) -> bytes:
    async with within(seconds):
        try:
            return await reader.read()
        except ConnectionResetError:
            return b""


def problem_in(answer: bytes) -> dict[str, object]:
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"application/problem+json" in head.lower(), answer
    found: dict[str, object] = json.loads(body)
    return found


@pytest.mark.parametrize(
    "data",
    [b"\x16\x03\x01\x02\x00\x01\x00", b"nonsense\r\n\r\n", b"GET\r\n\r\n", b"\x00" * 100],
    ids=str,
)
async def test_garbage_is_answered_400_and_closed(served: Served, data: bytes) -> None:
    reader, writer = await connect(served)
    writer.write(data)
    problem = problem_in(await read_all(reader))
    assert (problem["status"], problem["code"]) == (400, "malformed_request")
    writer.close()
    assert (await served.call("GET", "/healthz", None)).status_code == 200


@pytest.mark.parametrize(
    "sent",
    [b"", b"GET /heal", HEAD, HEAD + b"X-Slow: "],
    ids=["nothing", "half a line", "half a head", "half a header"],
)
async def test_a_half_request_is_closed_in_time(
    served: Served, sent: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "HEAD_SECONDS", 0.3)
    reader, writer = await connect(served)
    writer.write(sent)
    assert problem_in(await read_all(reader, 5))["code"] == "request_timeout"
    writer.close()


async def test_a_drop_at_a_time_does_not_hold_a_connection_open(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "HEAD_SECONDS", 0.4)
    monkeypatch.setattr(protocol, "LINGER_SECONDS", LONG)
    reader, writer = await connect(served)
    writer.write(HEAD)

    async def drip() -> None:
        while True:
            writer.write(b"X-A: b\r\n")
            await asyncio.sleep(0.05)

    dripping = asyncio.create_task(drip())
    assert problem_in(await read_all(reader, 5))["code"] == "request_timeout"
    dripping.cancel()
    writer.close()


async def test_who_is_refused_while_it_sends_can_read_why(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """HTTP-3: were the connection just closed, what is sent into it would have it reset, and the
    answer with it."""
    monkeypatch.setattr(protocol, "LINGER_SECONDS", LONG)
    reader, writer = await connect(served)
    writer.write(b"no request at all\r\n\r\n")
    for _ in range(20):  # the answer is on its way, or here and unread
        await asyncio.sleep(0.01)
        writer.write(b"x" * 1000 + b"\r\n")
    assert problem_in(await read_all(reader, 5))["code"] == "malformed_request"
    assert await in_time(reader.read(), 5) == b""
    writer.close()


async def test_a_slow_body_is_given_up(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "BODY_SECONDS", 0.3)
    reader, writer = await connect(served)
    writer.write(HEAD + b'Connection: close\r\nContent-Length: 1000\r\n\r\n{"argv":')
    assert problem_in(await read_all(reader, 5))["status"] == 408
    writer.close()


@pytest.mark.parametrize(
    "head",
    [b"X-Big: " + b"a" * 70_000 + b"\r\n", b"".join(b"X-%d: a\r\n" % n for n in range(500)), b"X-B: " + b"b" * 9_000_000 + b"\r\n"],
    ids=["a large header", "many headers", "9 MB of header"],
)  # fmt: skip
async def test_large_heads_are_refused(served: Served, head: bytes) -> None:
    reader, writer = await connect(served)
    try:
        writer.write(HEAD + head + b"\r\n")
        await writer.drain()
    except ConnectionResetError:
        pass
    answer = await read_all(reader)
    if answer:  # the answer may be lost where much of the head was still on its way
        assert problem_in(answer)["status"] == 431
    writer.close()
    assert (await served.call("GET", "/healthz", None)).status_code == 200


async def test_a_client_that_goes_in_its_body_leaves_nothing(served: Served) -> None:
    for _ in range(20):
        _, writer = await connect(served)
        writer.write(HEAD + b"Content-Length: 50000\r\n\r\n{")
        await writer.drain()
        writer.close()
    async with within(5):
        while served.running._server.server_state.tasks:
            await asyncio.sleep(0.02)
    assert (await served.call("GET", "/v1/jobs")).json()["items"] == []


async def test_two_requests_in_one_packet(served: Served) -> None:
    reader, writer = await connect(served)
    writer.write(
        b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\nGET /healthz HTTP/1.1\r\nHost: x\r\nConnection: "
        b"close\r\n\r\n"
    )
    assert (await read_all(reader)).count(b"HTTP/1.1 200") == 2
    writer.close()


async def test_a_websocket_is_spoken_on_the_routes_of_sessions_alone(served: Served) -> None:
    reader, writer = await connect(served)
    writer.write(
        b"GET /v1/events HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: "
        b"websocket\r\n"
        b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n"
    )
    async with within(5):
        assert b" 404 " in await reader.readline()
    writer.close()


async def test_idle_connections_hold_no_tasks(served: Served) -> None:
    opened = [await connect(served) for _ in range(50)]
    assert not served.running._server.server_state.tasks
    for _, writer in opened:
        writer.close()
