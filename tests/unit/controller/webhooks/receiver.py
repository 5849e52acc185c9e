"""A receiver of webhooks: a plain asyncio server whose answers are bytes, so that it can fail, hang
and lie."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from holdfast import webhooks
from tests.waits import within

SECRET = "whsec-0123456789abcdef"
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


def status(code: int, *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {code} Something", "Content-Length: 0", *headers, "", ""]
    return "\r\n".join(lines).encode()


@dataclass
class Request:
    """What came."""

    path: str
    headers: dict[str, str]
    body: bytes
    reader: asyncio.StreamReader

    @property
    def delivery(self) -> str:
        return self.headers["holdfast-delivery"]

    @property
    def payload(self) -> dict[str, Any]:
        found: dict[str, Any] = msgspec.json.decode(self.body)
        return found

    @property
    def kind(self) -> str:
        return str(self.payload["event"]["kind"])


Act = Callable[[Request, asyncio.StreamWriter], Awaitable[None]]
Answer = bytes | Act


@dataclass
class Receiver:
    """`answer` decides, by the request and how many came before it; bytes are sent as they are.
    Every request's signature is checked."""

    port: int = 0
    scheme: str = "http"
    requests: list[Request] = field(default_factory=list)
    answer: Callable[[Request, int], Answer] = lambda request, number: OK
    secret: str | None = SECRET
    connections: int = 0
    open_now: int = 0
    most_open: int = 0
    failures: list[BaseException] = field(default_factory=list)
    _tasks: set[asyncio.Task[Any]] = field(default_factory=set)

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.port}/hook?x=1"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        self.open_now += 1
        self.most_open = max(self.most_open, self.open_now)
        try:
            request = await _read(reader)
            self.requests.append(request)
            if self.secret is not None:
                webhooks.verify(self.secret, request.headers, request.body)
            answer = self.answer(request, len(self.requests) - 1)
            if isinstance(answer, bytes):
                writer.write(answer)
                await writer.drain()
            else:
                await answer(request, writer)
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        except Exception as error:
            self.failures.append(error)
        finally:
            self.open_now -= 1
            self._tasks.discard(task)
            writer.close()

    def kinds_of(self, job_id: str) -> list[str]:
        """The kinds of events of a job, in the order they came first."""
        seen: dict[str, str] = {}
        for request in self.requests:
            if request.payload["event"]["job_id"] == job_id:
                seen.setdefault(request.delivery, request.kind)
        return list(seen.values())

    async def until(self, count: int, seconds: float = 20) -> list[Request]:
        """Wait for that many requests."""
        async with within(seconds):
            while len(self.requests) < count:
                await asyncio.sleep(0.01)
        return self.requests


async def _read(reader: asyncio.StreamReader) -> Request:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    headers = {
        name.lower(): value
        for name, _, value in (line.partition(": ") for line in head[1:])
        if name
    }
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return Request(head[0].split()[1], headers, body, reader)


@asynccontextmanager
async def receive(
    *, tls: ssl.SSLContext | None = None, port: int = 0, host: str = "127.0.0.1"
) -> AsyncIterator[Receiver]:
    """A receiver on loopback. At the end every connection that it still holds open is closed,
    and a wrong signature fails the test."""
    receiver = Receiver(scheme="https" if tls else "http")
    server = await asyncio.start_server(receiver.serve, host, port, ssl=tls)
    receiver.port = server.sockets[0].getsockname()[1]
    try:
        yield receiver
    finally:
        server.close()
        for task in list(receiver._tasks):
            task.cancel()
        await asyncio.gather(*receiver._tasks, return_exceptions=True)
        assert receiver.failures == []


async def hang(request: Request, writer: asyncio.StreamWriter) -> None:
    """Never answer; go when the caller goes."""
    await request.reader.read()


def drip(data: bytes, seconds: float) -> Act:
    """`data` byte by byte for ever slower than anybody waits."""

    async def act(request: Request, writer: asyncio.StreamWriter) -> None:
        for byte in data:
            writer.write(bytes([byte]))
            await writer.drain()
            await asyncio.sleep(seconds)
        await asyncio.Event().wait()

    return act


def pour(head: bytes) -> Act:
    """`head`, then a body without end."""

    async def act(request: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(head)
        while True:
            writer.write(b"x" * 65536)
            await writer.drain()

    return act


def make_certificate(folder: Path, name: str) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """A server's context for `name` alone, and a client's that trusts it."""
    key, certificate = folder / f"{name}.key", folder / f"{name}.pem"
    subprocess.run(
        [
            *"openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1".split(),
            *"-nodes -days 2 -keyout".split(),
            key,
            "-out",
            certificate,
            "-subj",
            f"/CN={name}",
            "-addext",
            f"subjectAltName=DNS:{name}",
        ],
        check=True,
        capture_output=True,
    )
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(certificate, key)
    return server, ssl.create_default_context(cafile=certificate)
