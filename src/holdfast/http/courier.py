"""Carry requests to controllers and bring the answers: on a kept connection or a new one, to one of
several controllers, perhaps through a proxy. The steps are written once, for `blocking` and
`asynchronous`.

CALL-1  A repeatable request that a kept connection loses before the first byte of its answer is sent
        once more on a fresh one, because the server may have closed the idle connection.
CALL-2  If a controller's name has several addresses, each new connection tries the next address
        first, so that a replica that accepts connections and answers none delays one call only.
CALL-3  A request goes to the controller that answered last. A controller that cannot be connected,
        that loses a request, or that answers 502, 503 or 504 is left for the next in the list. The
        request itself goes on there where it was not sent or may be repeated; each controller is
        tried once, and the caller decides on the pauses between rounds.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping
from urllib.parse import urlencode

import msgspec

from holdfast.errors import ConnectionLost, NeverConnected, Unavailable
from holdfast.http.addresses import HttpAddress
from holdfast.http.answers import AnswerReader, BadAnswer, write_head
from holdfast.http.proxies import find_proxy, write_login
from holdfast.http.streams import ByteStream, Dialer
from holdfast.http.tls import make_tls

CONNECT_SECONDS = 10.0
_CONNECT_SOON_SECONDS = 2.0  # where there is another address to be tried
_IDLE_SECONDS, _IDLE_CONNECTIONS = 5.0, 20
_AWAY = (502, 503, 504)
_COPIED_BYTES = 1 << 16  # a larger body is sent by itself, because joining it to the head copies it


class HttpRequest(msgspec.Struct, frozen=True):
    """One request.

    silence_seconds: the longest wait for more of the answer. body: the bytes of the request's body,
    or pieces that make up the Content-Length of `headers`. repeatable: True if sending the request
    twice does no harm; never for a body in pieces. opened: called with the connection before the
    request is sent.
    """

    method: str
    path: str
    silence_seconds: float
    query: tuple[tuple[str, str], ...] = ()
    headers: Mapping[str, str] | None = None
    body: bytes | Iterable[bytes] | None = None
    repeatable: bool = False
    opened: Callable[[ByteStream], None] | None = None


class HttpAnswer(msgspec.Struct, frozen=True):
    """A whole answer. headers: the headers, with names in lower case."""

    status: int
    body: bytes
    headers: Mapping[str, str] = {}


class HttpExchange:
    """Carries requests on one connection, one after the other. at: the number of its controller.
    tells_early: whether bytes that come during the sending are an answer; over TLS they may be a
    record of the session."""

    def __init__(self, stream: ByteStream, at: int, tells_early: bool) -> None:
        self.stream, self.at, self._tells_early = stream, at, tells_early
        self.answer = AnswerReader()
        self.was_lost = self.hung_up = False
        self._silence_seconds = 0.0
        self._is_sent = self._began = False
        self._idle_since = 0.0

    async def ask(self, head: bytes, request: HttpRequest, length: int, seconds: float) -> None:
        """Send a request, and read the head of its answer. Where the server hangs up meanwhile, the
        answer is still read, because it may name the reason. Raises ConnectionLost."""
        self.answer = AnswerReader()
        self._is_sent = self._began = False
        self._silence_seconds = request.silence_seconds
        self._is_sent = await self._send(head, request.body, length, seconds)
        while not self.answer.status:
            await self._receive()

    async def _send(
        self, head: bytes, body: bytes | Iterable[bytes] | None, length: int, seconds: float
    ) -> bool:
        """Send a request. Return False if the server hung up, or answered, before it had the whole
        request."""
        if body is None or isinstance(body, bytes):
            data = body or b""
            if len(data) < _COPIED_BYTES:
                return await self._write(head + data, seconds)
            return await self._write(head, seconds) and await self._write(data, seconds)
        unsent = head
        for piece in body:
            length -= len(piece)
            if length < 0:
                break  # a file that grows during the sending must not exceed it
            if not unsent and self._tells_early and self.stream.has_news():
                return False  # a refusal, so the rest need not be sent
            if not await self._write(unsent + piece, seconds):
                return False
            unsent = b""
        if length:
            raise self._lose("what is sent is not as long as it was said to be")
        return not unsent or await self._write(unsent, seconds)

    async def _write(self, data: bytes, seconds: float) -> bool:
        try:
            await self.stream.send(data, seconds)
        except TimeoutError as error:
            raise self._lose("timed out") from error
        except OSError:
            return False
        return True

    async def _receive(self) -> None:
        try:
            data = await self.stream.receive(self._silence_seconds)
            self._began = self._began or bool(data)
            if not data and not self.answer.status:
                self.hung_up = not self._began
                raise self._lose("the server hung up without an answer")
            self.answer.feed(data)
        except TimeoutError as error:
            raise self._lose(f"timed out: no answer in {self._silence_seconds:g} s") from error
        except (OSError, BadAnswer) as error:
            self.hung_up = not self._began
            raise self._lose(str(error) or type(error).__name__) from error

    def _lose(self, why: str) -> ConnectionLost:
        self.was_lost = True
        return ConnectionLost(why)

    async def read(self) -> bytes:
        """Return the next bytes of the body; no bytes at its end. Raises ConnectionLost."""
        while not (parts := self.answer.take_pieces()) and not self.answer.done:
            await self._receive()
        return b"".join(parts)

    async def read_all(self, most_bytes: int | None) -> bytes:
        """Return the body. Raises ConnectionLost, and Unavailable for one of more than
        `most_bytes`."""
        parts, size = [], 0
        while piece := await self.read():
            size += len(piece)
            if most_bytes is not None and size > most_bytes:
                raise Unavailable(f"the answer is over {most_bytes} bytes")
            parts.append(piece)
        return b"".join(parts)

    def keep(self) -> bool:
        """Prepare the connection for another request. Return False where the connection cannot
        carry one."""
        self._idle_since = time.monotonic()
        return self._is_sent and self.answer.is_reusable

    def is_usable(self, repeatable: bool) -> bool:
        """Return whether the connection may carry another request. The server may be closing a
        connection that lay idle for long, which a repeatable request survives (CALL-1)."""
        is_fresh = repeatable or time.monotonic() - self._idle_since < _IDLE_SECONDS
        return is_fresh and not self.stream.has_news()


class Courier:
    """Sends requests to the first of several controllers that answers.

    Args:
        addresses: the controllers, all of one cluster.
        headers: those that every request has.
        ca_file: authorities to trust instead of the machine's.
        timeout_seconds: the longest wait for a connection (`CONNECT_SECONDS` at most), and for a
            controller to take more of a request.

    Raises ValidationError for a CA file or a proxy that cannot be used.
    """

    def __init__(
        self,
        addresses: tuple[HttpAddress, ...],
        dialer: Dialer,
        headers: Mapping[str, str] | None,
        ca_file: str | None,
        timeout_seconds: float,
    ) -> None:
        self._addresses, self._dialer = addresses, dialer
        self._headers, self._timeout_seconds = headers or {}, timeout_seconds
        self._proxies = [find_proxy(address) for address in addresses]
        self._tls = make_tls(ca_file) if any(a.is_secure for a in addresses) else None
        self._idle: list[HttpExchange] = []
        self._at = self._connects = 0
        self._is_closed = False

    @property
    def urls(self) -> str:
        """Return the addresses of the controllers, to be named in messages."""
        return " or ".join(address.url for address in self._addresses)

    def learn(self, addresses: Iterable[HttpAddress]) -> None:
        """Add controllers of the same cluster, behind those that are known."""
        for address in addresses:
            if address.url not in {known.url for known in self._addresses}:
                self._proxies.append(find_proxy(address))
                self._addresses = (*self._addresses, address)

    async def open(self, request: HttpRequest) -> HttpExchange:
        """Send a request; return once the head of its answer has come (CALL-3). Raises
        ConnectionLost; NeverConnected if no controller has got the request."""
        if self._is_closed:
            raise RuntimeError("the client is closed")
        losses: list[tuple[HttpAddress, ConnectionLost]] = []
        first = self._at
        for step in range(len(self._addresses)):
            at = (first + step) % len(self._addresses)
            try:
                exchange = await self._send(at, request)
            except ConnectionLost as error:
                self._leave(at)
                losses.append((self._addresses[at], error))
                if not (request.repeatable or isinstance(error, NeverConnected)):
                    break
                continue
            if exchange.answer.status in _AWAY:
                self._leave(at)
            return exchange
        raise _sum_up(losses)

    async def connect(self) -> tuple[ByteStream, HttpAddress]:
        """Connect to a controller, for a protocol other than HTTP (CALL-3). Raises
        NeverConnected."""
        losses: list[tuple[HttpAddress, ConnectionLost]] = []
        first = self._at
        for step in range(len(self._addresses)):
            at = (first + step) % len(self._addresses)
            try:
                return await self._connect(at, dig=True), self._addresses[at]
            except NeverConnected as error:
                self._leave(at)
                losses.append((self._addresses[at], error))
        raise _sum_up(losses)

    def finish(self, exchange: HttpExchange) -> None:
        """Keep the connection of an answer for another request, or close it."""
        if exchange.was_lost:
            self._leave(exchange.at)
        if exchange.keep() and not self._is_closed and len(self._idle) < _IDLE_CONNECTIONS:
            self._idle.append(exchange)
        else:
            exchange.stream.close()

    def close(self) -> None:
        """Close the connections."""
        self._is_closed = True
        while self._idle:
            self._idle.pop().stream.close()

    def _leave(self, at: int) -> None:
        """Send the next request to the controller behind the one of number `at`."""
        if self._at == at:
            self._at = (at + 1) % len(self._addresses)

    async def _send(self, at: int, request: HttpRequest) -> HttpExchange:
        kept = self._take(at, request.repeatable)
        if kept is not None:
            try:
                return await self._ask(kept, request)
            except ConnectionLost:
                if not (request.repeatable and kept.hung_up):  # CALL-1
                    raise
        is_secure = self._addresses[at].is_secure
        stream = await self._connect(at, dig=is_secure)
        return await self._ask(HttpExchange(stream, at, tells_early=not is_secure), request)

    def _take(self, at: int, repeatable: bool) -> HttpExchange | None:
        while self._idle:
            try:
                kept = self._idle.pop()
            except IndexError:  # another thread took the last one
                break
            if kept.at == at and kept.is_usable(repeatable):
                return kept
            kept.stream.close()
        return None

    async def _ask(self, exchange: HttpExchange, request: HttpRequest) -> HttpExchange:
        headers = dict(self._headers)
        if request.headers is not None:
            headers |= request.headers
        if isinstance(request.body, bytes):
            headers["Content-Length"] = str(len(request.body))
        head = self._write_head(exchange.at, request, headers)
        length = int(headers.get("Content-Length", 0))
        is_asked = False
        try:
            if request.opened is not None:
                request.opened(exchange.stream)
            await exchange.ask(head, request, length, self._timeout_seconds)
            is_asked = True
        finally:
            if not is_asked:
                exchange.stream.close()
        return exchange

    def _write_head(self, at: int, request: HttpRequest, headers: dict[str, str]) -> bytes:
        address, proxy = self._addresses[at], self._proxies[at]
        query = f"?{urlencode(request.query)}" if request.query else ""
        target = f"{address.prefix}{request.path}{query}"
        if address.login:
            headers.setdefault("Authorization", write_login(address.login))
        if proxy is not None and not address.is_secure:
            target = f"http://{address.authority}{target}"
            if proxy.login:
                headers["Proxy-Authorization"] = write_login(proxy.login)
        return write_head(request.method, target, [("Host", address.authority), *headers.items()])

    async def _connect(self, at: int, *, dig: bool) -> ByteStream:
        """Connect to the controller of number `at`. dig: True to have a proxy on the way connect
        through, instead of reading the bytes that are sent. Raises NeverConnected."""
        address, proxy = self._addresses[at], self._proxies[at]
        seconds = min(self._timeout_seconds, CONNECT_SECONDS)
        try:
            stream = await self._dial(proxy or address, seconds)
        except OSError as error:
            where = f"the proxy {proxy.authority}: " if proxy is not None else ""
            raise NeverConnected(f"{where}{_say(error)}") from error
        is_open = False
        try:
            if proxy is not None and dig:
                await _dig(stream, address, proxy, seconds)
            if address.is_secure:
                assert self._tls is not None, "the constructor made it"
                await stream.secure(self._tls, address.host, seconds)
            is_open = True
        except OSError as error:  # ssl.SSLError is an OSError
            raise NeverConnected(_say(error)) from error
        finally:
            if not is_open:
                stream.close()
        return stream

    async def _dial(self, address: HttpAddress, seconds: float) -> ByteStream:
        """Connect to the next of a name's addresses (CALL-2). Raises OSError."""
        found = await self._dialer.find(address.host, address.port)
        first = self._connects % len(found)
        self._connects += 1
        refused: OSError = ConnectionError("the name has no address")
        for number, place in enumerate((*found[first:], *found[:first]), 1):
            is_last = number == len(found) and len(self._addresses) == 1
            limit = seconds if is_last else min(seconds, _CONNECT_SOON_SECONDS)
            try:
                return await self._dialer.open(place, address.port, limit)
            except OSError as error:
                refused = error
        raise refused


async def _dig(
    stream: ByteStream, address: HttpAddress, proxy: HttpAddress, seconds: float
) -> None:
    """Have a proxy connect the stream with an address. Raises OSError."""
    host = f"[{address.host}]" if ":" in address.host else address.host
    target = f"{host}:{address.port}"
    headers = [("Host", target)]
    if proxy.login:
        headers.append(("Proxy-Authorization", write_login(proxy.login)))
    await stream.send(write_head("CONNECT", target, headers), seconds)
    answer = AnswerReader()
    try:
        while not answer.status:
            answer.feed(await stream.receive(seconds))
    except BadAnswer as error:
        raise ConnectionError(f"the proxy {proxy.authority}: {error}") from error
    if answer.status // 100 != 2:
        raise ConnectionError(
            f"the proxy {proxy.authority} answered {answer.status} when it was asked for {target}"
        )


def _say(error: OSError) -> str:
    if isinstance(error, TimeoutError):
        return "timed out"
    if isinstance(error, ConnectionError) and error.errno:
        return os.strerror(error.errno)  # asyncio's own text is longer
    text = error.strerror or str(error) or type(error).__name__
    if "CERTIFICATE_VERIFY_FAILED" in text:
        text += "; --ca-file FILE of `holdfast login` (or HOLDFAST_CA_FILE) names its authority"
    return text


def _sum_up(losses: list[tuple[HttpAddress, ConnectionLost]]) -> ConnectionLost:
    if len(losses) == 1:
        return losses[0][1]
    is_unsent = all(isinstance(error, NeverConnected) for _, error in losses)
    text = "; ".join(f"{address.url}: {error.message}" for address, error in losses)
    return (NeverConnected if is_unsent else ConnectionLost)(text)
