"""Make HTTP/1.1 calls to one controller, over asyncio streams and httptools.

httpx costs 0.5 to 1 ms of CPU per call and 20 MB per process; an agent makes the same few calls for
ever to one address, so the parser below uvicorn is used directly. The client follows no redirects
and knows no proxies: put the controller's real address into the agent's config.

CALL-1  A call on a kept connection that fails before the first byte of its answer is made once more
        on a fresh one, because the server may have closed the idle connection. Every call of the
        agent may be repeated.
CALL-2  If the controller's name has several addresses, each new connection tries the next address
       first, so that a replica that accepts connections and answers none delays one call only.
"""

import asyncio
import socket
import ssl
from collections.abc import Callable
from typing import TypeVar
from urllib.parse import urlsplit

import msgspec

from holdfast.client.answers import AnswerReader, BadAnswer, write_head
from holdfast.errors import Unavailable, ValidationError

P = TypeVar("P", bound=asyncio.BaseProtocol)
CONNECT_SECONDS = 5.0
MAX_ANSWER_BYTES = 64 << 20
_READ_BYTES = 1 << 16
_IDLE_CONNECTIONS = 4


class HttpAnswer(msgspec.Struct, frozen=True):
    """A whole answer of the controller."""

    status: int
    body: bytes


class _Lost(Exception):
    """Says that the connection broke before the answer began."""


class _Connection:
    """Makes calls on one connection, one at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._answer = AnswerReader()

    async def exchange(self, request: bytes) -> HttpAnswer:
        began = False
        answer = self._answer = AnswerReader()
        try:
            self._writer.write(request)
            await self._writer.drain()
            chunks, size = [], 0
            while not answer.done:
                data = await self._reader.read(_READ_BYTES)
                began = began or bool(data)
                answer.feed(data)
                for chunk in answer.take():
                    size += len(chunk)
                    if size > MAX_ANSWER_BYTES:
                        too_long = f"the controller's answer is over {MAX_ANSWER_BYTES} bytes"
                        raise Unavailable(too_long)
                    chunks.append(chunk)
            return HttpAnswer(answer.status, b"".join(chunks))
        except (OSError, BadAnswer) as error:
            if not began:
                raise _Lost(str(error)) from error
            raise Unavailable(f"the controller's answer broke off: {error}") from error

    def keep(self) -> bool:
        """Return True if the connection is good for another call."""
        return self._answer.is_reusable and self.usable

    @property
    def usable(self) -> bool:
        return not self._writer.is_closing() and not self._reader.at_eof()

    def close(self) -> None:
        self._writer.transport.abort()


class HttpClient:
    """Makes calls to one controller over kept connections: a sync call that waits there and a
    report beside it, for the host and for its executors."""

    def __init__(self, url: str, *, ca_file: str | None = None) -> None:
        """Parse the address. Raises ValidationError for an address or a CA file that cannot be
        used."""
        parts = urlsplit(url)
        try:
            port = parts.port
        except ValueError:
            raise ValidationError(f"{url!r} has no usable port", field="url") from None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValidationError(
                f"{url!r} is no address of a controller; write http://host:port", field="url"
            )
        self.url = url
        self._host = parts.hostname
        self._port = port or (443 if parts.scheme == "https" else 80)
        self.prefix = parts.path.rstrip("/")
        self.authority = parts.netloc.rpartition("@")[2]
        self._tls = _make_tls(ca_file) if parts.scheme == "https" else None
        self._idle: list[_Connection] = []
        self._connects = 0

    async def call(
        self,
        method: str,
        path: str,
        body: bytes,
        *,
        headers: dict[str, str],
        timeout_seconds: float,
    ) -> HttpAnswer:
        """Make one call. Raises Unavailable if there is no connection, no whole answer in
        `timeout_seconds`, or an answer that broke off."""
        words = [("Host", self.authority), ("Content-Length", str(len(body))), *headers.items()]
        request = write_head(method, f"{self.prefix}{path}", words) + body
        try:
            async with asyncio.timeout(timeout_seconds):
                while self._idle:
                    kept = self._idle.pop()
                    if not kept.usable:
                        kept.close()
                        continue
                    try:
                        return await self._exchange(kept, request)
                    except _Lost:
                        break  # CALL-1
                return await self._exchange(await self._connect(), request)
        except _Lost as error:
            raise Unavailable(f"the controller at {self.url} hung up: {error}") from error
        except TimeoutError:
            raise Unavailable(
                f"the controller at {self.url} did not answer in {timeout_seconds:.0f} s"
            ) from None

    async def _exchange(self, connection: _Connection, request: bytes) -> HttpAnswer:
        kept = False
        try:
            answer = await connection.exchange(request)
            kept = connection.keep()
            return answer
        finally:
            if kept and len(self._idle) < _IDLE_CONNECTIONS:
                self._idle.append(connection)
            else:
                connection.close()

    async def _connect(self) -> _Connection:
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                reader, writer = await self._open()
        except TimeoutError:
            raise Unavailable(f"no connection to {self.url} in {CONNECT_SECONDS:.0f} s") from None
        except OSError as error:
            raise Unavailable(f"no connection to {self.url}: {error.strerror or error}") from error
        return _Connection(reader, writer)

    async def _open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, loop = asyncio.StreamReader(), asyncio.get_running_loop()
        transport, protocol = await self.connect(lambda: asyncio.StreamReaderProtocol(reader))
        return reader, asyncio.StreamWriter(transport, protocol, reader, loop)

    async def connect(self, make: Callable[[], P]) -> tuple[asyncio.Transport, P]:
        """Connect to the next of the name's addresses (CALL-2). Raises OSError."""
        loop, kind = asyncio.get_running_loop(), socket.SOCK_STREAM
        found = [
            str(info[4][0]) for info in await loop.getaddrinfo(self._host, self._port, type=kind)
        ]
        found = list(dict.fromkeys(found))
        first = self._connects % len(found)
        self._connects += 1
        name = self._host if self._tls is not None else None
        for address in (*found[first:], *found[:first]):
            try:
                return await loop.create_connection(
                    make, address, self._port, ssl=self._tls, server_hostname=name
                )
            except OSError as error:
                refused = error
        raise refused

    def close(self) -> None:
        """Close the kept connections."""
        while self._idle:
            self._idle.pop().close()


def _make_tls(ca_file: str | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca_file)
    except (OSError, ssl.SSLError) as error:
        why = f"the CA file {ca_file} cannot be used: {error}"
        raise ValidationError(why, field="ca_file") from error
