"""The HTTP client against servers that behave as servers do: chunked, closing, silent, lying."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from holdfast.agent.uplink.calls import read_problem
from holdfast.errors import Conflict, ConnectionLost, NeverConnected, Unavailable, ValidationError
from holdfast.http.addresses import read_addresses
from holdfast.http.asynchronous import AsyncHttp
from holdfast.http.courier import HttpAnswer, HttpRequest
from tests.waits import in_time

Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter, int], Awaitable[None]]


@contextlib.asynccontextmanager
async def serving(talk: Talk) -> AsyncIterator[AsyncHttp]:
    count = 0

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal count
        count += 1
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            await talk(reader, writer, count)
        writer.close()

    server = await asyncio.start_server(take, "127.0.0.1", 0)
    client = AsyncHttp(
        read_addresses(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/prefix")
    )
    try:
        yield client
    finally:
        client.close()
        server.close()


async def read_request(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    size = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
    return head + await reader.readexactly(size)


async def call(client: AsyncHttp, seconds: float = 5.0) -> HttpAnswer:
    headers = {"Authorization": "Bearer t"}
    request = HttpRequest("POST", "/v1/x", seconds, (), headers, b"body", repeatable=True)
    answer = await client.call(request)
    return HttpAnswer(answer.status, answer.body)


async def test_chunked_answers_and_a_kept_connection() -> None:
    seen = []

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> None:
        while True:
            seen.append((number, await read_request(reader)))
            writer.write(
                b"HTTP/1.1 200 OK\r\nTransfer-Encoding: "
                b"chunked\r\n\r\n2\r\nab\r\n1\r\nc\r\n0\r\n\r\n"
            )

    async with serving(talk) as client:
        assert await call(client) == HttpAnswer(200, b"abc")
        assert await call(client) == HttpAnswer(200, b"abc")
    assert [number for number, _ in seen] == [1, 1]
    assert seen[0][1].startswith(b"POST /prefix/v1/x HTTP/1.1\r\n")
    assert seen[0][1].endswith(b"body")


async def test_a_kept_connection_that_died_costs_one_more_try() -> None:
    """CALL-1: the server answers once per connection and then closes without saying so."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> None:
        await read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n%d" % number)
        if number == 1:
            await read_request(reader)  # takes the second call and hangs up on it

    async with serving(talk) as client:
        assert (await call(client)).body == b"1"
        assert (await call(client)).body == b"2"


async def test_an_answer_that_breaks_off_is_not_repeated() -> None:
    calls = 0

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> None:
        nonlocal calls
        calls += 1
        await read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf")

    async with serving(talk) as client:
        with pytest.raises(Unavailable, match="closed the connection within"):
            await call(client)
    assert calls == 1


@pytest.mark.parametrize(
    "answer", [b"", b"junk\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: -4\r\n\r\n"]
)
async def test_nonsense_is_unavailable(answer: bytes) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> None:
        await read_request(reader)
        writer.write(answer)

    async with serving(talk) as client:
        with pytest.raises(Unavailable):
            await call(client)


async def test_silence_ends_at_the_limit() -> None:
    gone = asyncio.Event()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> None:
        await read_request(reader)
        await reader.read()
        gone.set()

    async with serving(talk) as client:
        with pytest.raises(ConnectionLost, match="timed out"):
            await call(client, 0.1)
        await in_time(gone.wait(), 5)  # and the connection is not left open


async def test_nobody_listens() -> None:
    server = await asyncio.start_server(lambda r, w: None, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()
    with pytest.raises(NeverConnected, match="refused"):
        await call(AsyncHttp(read_addresses(f"http://127.0.0.1:{port}")))


def test_only_a_controller_may_refuse() -> None:
    """A proxy's page with status 409 or 404 must not make an agent give anything up."""
    assert isinstance(read_problem(HttpAnswer(409, b"<html>conflict</html>")), Unavailable)
    found = read_problem(
        HttpAnswer(409, b'{"status":409,"code":"stale_incarnation","detail":"newer"}')
    )
    assert isinstance(found, Conflict)
    assert found.code == "stale_incarnation"
    assert isinstance(read_problem(HttpAnswer(502, b'{"code":"x"}')), Unavailable)


@pytest.mark.parametrize("url", ["ftp://x", "http://", "http://x:port"])
def test_addresses_that_cannot_work(url: str) -> None:
    with pytest.raises(ValidationError):
        read_addresses(url)


async def test_each_new_connection_begins_with_the_next_address_of_the_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """CALL-2: the first replica takes connections, and answers none."""

    async def be_frozen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok")
        writer.close()

    frozen = await asyncio.start_server(be_frozen, "127.0.0.1", 0)
    port = frozen.sockets[0].getsockname()[1]
    other = await asyncio.start_server(answer, "127.0.0.2", port)

    async def look_up(host: str, port: int, **_: object) -> list[tuple[object, ...]]:
        return [(0, 0, 0, "", (address, port)) for address in ("127.0.0.1", "127.0.0.2")]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", look_up)
    client = AsyncHttp(read_addresses(f"http://controllers.example:{port}"))
    with pytest.raises(Unavailable):
        await call(client, 0.05)
    assert (await in_time(call(client), 20)).body == b"ok"
    client.close()
    for server in (frozen, other):
        server.close()
