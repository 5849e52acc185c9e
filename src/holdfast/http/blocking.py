"""The blocking client: sockets. Threads may share it."""

from __future__ import annotations

import select
import socket
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from holdfast.http.addresses import HttpAddress
from holdfast.http.courier import HttpAnswer, HttpClient, HttpExchange, HttpRequest

if TYPE_CHECKING:
    import ssl

T = TypeVar("T")
_READ_BYTES = 1 << 16


def run_now(work: Awaitable[T]) -> T:
    """Run a coroutine that never waits for an event loop, and return its result."""
    try:
        work.__await__().send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    raise RuntimeError("a blocking call waited for an event loop")


class BlockingStream:
    """A `ByteStream` over a socket."""

    def __init__(self, wire: socket.socket) -> None:
        self.wire = wire

    async def send(self, data: bytes, seconds: float) -> None:
        """See `ByteStream.send`."""
        self.wire.settimeout(seconds)
        left = memoryview(data)
        while left:
            left = left[self.wire.send(left) :]

    async def receive(self, seconds: float) -> bytes:
        """See `ByteStream.receive`."""
        self.wire.settimeout(seconds)
        return self.wire.recv(_READ_BYTES)

    async def secure(self, tls: ssl.SSLContext, host: str, seconds: float) -> None:
        """See `ByteStream.secure`."""
        self.wire.settimeout(seconds)
        self.wire = tls.wrap_socket(self.wire, server_hostname=host)

    def has_news(self) -> bool:
        """See `ByteStream.has_news`."""
        look = select.poll()  # select() fails for descriptors from 1024 on
        look.register(self.wire, select.POLLIN)
        return bool(look.poll(0))

    def stop(self) -> None:
        """See `ByteStream.stop`."""
        try:
            self.wire.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # the connection has ended by itself

    def close(self) -> None:
        """See `ByteStream.close`."""
        self.wire.close()


class BlockingDialer:
    """A `Dialer` of sockets."""

    async def find(self, host: str, port: int) -> list[str]:
        """See `Dialer.find`."""
        # As bytes: for text the resolver loads the codec of other alphabets.
        found = socket.getaddrinfo(host.encode(), port, type=socket.SOCK_STREAM)
        return list(dict.fromkeys(str(info[4][0]) for info in found))

    async def open(self, address: str, port: int, seconds: float) -> BlockingStream:
        """See `Dialer.open`."""
        where: Any = (address.encode(), port)  # as bytes, as above
        wire = socket.create_connection(where, seconds)
        wire.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return BlockingStream(wire)


class BlockingReply:
    """The head of an answer, and its body as it comes. Reading raises ConnectionLost."""

    def __init__(self, exchange: HttpExchange) -> None:
        self._exchange = exchange
        self.status, self.headers = exchange.answer.status, exchange.answer.headers

    def pieces(self) -> Iterator[bytes]:
        """Yield the body's bytes as they come."""
        while piece := run_now(self._exchange.read()):
            yield piece

    def read(self, most_bytes: int | None = None) -> bytes:
        """Return the body. Raises Unavailable for one of more than `most_bytes`."""
        return run_now(self._exchange.read_all(most_bytes))


class BlockingHttp(HttpClient):
    """See `HttpClient`."""

    _dialer = BlockingDialer()

    @contextmanager
    def send(self, request: HttpRequest) -> Iterator[BlockingReply]:
        """Send a request; the answer can be read in the block. Raises ConnectionLost."""
        exchange = run_now(self._courier.open(request))
        try:
            yield BlockingReply(exchange)
        finally:
            self._courier.finish(exchange)

    def call(self, request: HttpRequest, most_bytes: int | None = None) -> HttpAnswer:
        """Send a request, and return its whole answer. Raises ConnectionLost, and Unavailable for
        an answer of more than `most_bytes`."""
        with self.send(request) as reply:
            body = reply.read(most_bytes)
        return HttpAnswer(reply.status, body, reply.headers)

    def connect(self) -> tuple[socket.socket, HttpAddress]:
        """Connect to a controller, through proxy and TLS, for another protocol. Raises
        NeverConnected."""
        stream, address = run_now(self._courier.connect())
        assert isinstance(stream, BlockingStream), "the dialer makes no others"
        return stream.wire, address
