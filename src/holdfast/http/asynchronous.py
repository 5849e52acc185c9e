"""The asyncio client: streams. A client belongs to one event loop."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from weakref import WeakKeyDictionary

from holdfast.http.addresses import HttpAddress
from holdfast.http.courier import HttpAnswer, HttpClient, HttpExchange, HttpRequest

_READ_BYTES = 1 << 16


class AsyncStream:
    """A `ByteStream` over asyncio's streams."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def send(self, data: bytes, seconds: float) -> None:
        """See `ByteStream.send`."""
        self._writer.write(data)
        if self._writer.transport.get_write_buffer_size():
            async with asyncio.timeout(seconds):
                await self._writer.drain()

    async def receive(self, seconds: float) -> bytes:
        """See `ByteStream.receive`."""
        async with asyncio.timeout(seconds):
            return await self._reader.read(_READ_BYTES)

    async def secure(self, tls: ssl.SSLContext, host: str, seconds: float) -> None:
        """See `ByteStream.secure`."""
        await self._writer.start_tls(tls, server_hostname=host, ssl_handshake_timeout=seconds)

    def hand_over(self, protocol: asyncio.Protocol) -> None:
        """Have another protocol read and write this connection from now on."""
        _HANDED_OVER[protocol] = self._writer
        transport = self._writer.transport
        transport.set_protocol(protocol)
        protocol.connection_made(transport)

    def has_news(self) -> bool:
        """Return whether the connection's end has come. Asyncio does not tell of bytes."""
        return self._reader.at_eof() or self._writer.is_closing()

    def stop(self) -> None:
        """See `ByteStream.stop`."""
        self._writer.transport.abort()

    close = stop  # a polite close would wait for a peer that does not read


_HANDED_OVER: WeakKeyDictionary[asyncio.Protocol, asyncio.StreamWriter] = WeakKeyDictionary()
"""The writers of connections that have other protocols now: a writer that is collected closes its
connection."""


class AsyncDialer:
    """A `Dialer` of asyncio's streams."""

    async def find(self, host: str, port: int) -> list[str]:
        """See `Dialer.find`."""
        if _is_literal(host):
            return [host]
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        return list(dict.fromkeys(str(info[4][0]) for info in found))

    async def open(self, address: str, port: int, seconds: float) -> AsyncStream:
        """See `Dialer.open`."""
        async with asyncio.timeout(seconds):
            return AsyncStream(*await asyncio.open_connection(address, port))


class AsyncReply:
    """The head of an answer, and its body as it comes. Reading raises ConnectionLost."""

    def __init__(self, exchange: HttpExchange) -> None:
        self._exchange = exchange
        self.status, self.headers = exchange.answer.status, exchange.answer.headers

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yield the body's bytes as they come."""
        while piece := await self._exchange.read():
            yield piece

    async def read(self, most_bytes: int | None = None) -> bytes:
        """Return the body. Raises Unavailable for one of more than `most_bytes`."""
        return await self._exchange.read_all(most_bytes)


class AsyncHttp(HttpClient):
    """See `HttpClient`."""

    _dialer = AsyncDialer()

    @asynccontextmanager
    async def send(self, request: HttpRequest) -> AsyncIterator[AsyncReply]:
        """Send a request; the answer can be read in the block. Raises ConnectionLost."""
        exchange = await self._courier.open(request)
        try:
            yield AsyncReply(exchange)
        finally:
            self._courier.finish(exchange)

    async def call(self, request: HttpRequest, most_bytes: int | None = None) -> HttpAnswer:
        """Send a request, and return its whole answer. Raises ConnectionLost, and Unavailable for
        an answer of more than `most_bytes`."""
        async with self.send(request) as reply:
            body = await reply.read(most_bytes)
        return HttpAnswer(reply.status, body, reply.headers)

    async def connect(self, protocol: asyncio.Protocol) -> tuple[AsyncStream, HttpAddress]:
        """Connect another protocol with a controller, through proxy and TLS. The protocol must hold
        the stream, because asyncio closes a connection whose stream is forgotten. Raises
        NeverConnected."""
        stream, address = await self._courier.connect()
        assert isinstance(stream, AsyncStream), "the dialer makes no others"
        stream.hand_over(protocol)
        return stream, address


def _is_literal(host: str) -> bool:
    """Return whether a host is written as its address, for which no thread has to look a name up."""
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            socket.inet_pton(family, host)
            return True
        except OSError:
            continue
    return False
