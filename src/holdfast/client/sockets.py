"""The blocking client's HTTP/1.1: sockets, without a library that costs more than Python.

Importing httpx takes ten times what starting Python takes, http.client and h11 each about as much
as Python, httptools a tenth. What this module does not do is left to httpx: see `can_reach`.

A kept connection that has something to read, or that lay idle for long, is closed and not used: the
server has hung up, or is about to. A call that is lost on it all the same is an ordinary lost call.
"""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode, urlsplit

from holdfast.client.answers import AnswerReader, BadAnswer, write_head
from holdfast.client.locate import ControllerPlace
from holdfast.client.transport import (
    CONNECT_SECONDS,
    AnswerWatch,
    ConnectionLost,
    NeverConnected,
    SentRequest,
    common_headers,
)
from holdfast.errors import ValidationError

if TYPE_CHECKING:
    import ssl

_READ_BYTES = 1 << 16
_IDLE_SECONDS, _IDLE_CONNECTIONS = 5.0, 20
PROXIES = ("http_proxy", "https_proxy", "all_proxy")


def can_reach(place: ControllerPlace, environ: Mapping[str, str]) -> bool:
    """Return whether sockets are enough to reach the controller.

    httpx is needed for a proxy of the environment, which loopback does not use, for a name and
    password in the address, and for a host's name in another alphabet.
    """
    proxied = any(name.lower() in PROXIES and value for name, value in environ.items())
    address = urlsplit(place.url).netloc
    return (
        (not proxied or passes_proxies(place, environ)) and "@" not in address and address.isascii()
    )


def passes_proxies(place: ControllerPlace, environ: Mapping[str, str]) -> bool:
    """Return whether the environment's proxies do not apply to this controller, because it is on
    loopback or in NO_PROXY."""
    host = (urlsplit(place.url).hostname or "").lower()
    named = environ.get("no_proxy") or environ.get("NO_PROXY") or ""
    words = [word.strip().lower().lstrip(".") for word in named.split(",") if word.strip()]
    return place.is_local or any(
        word in ("*", host) or (word and host.endswith(f".{word}")) for word in words
    )


class _KeptSocket:
    """One connection, for one exchange after the other."""

    def __init__(self, wire: socket.socket) -> None:
        self._wire = wire
        self._reader = AnswerReader()
        self._is_sent = False
        self._idle_since = 0.0

    def send(self, head: bytes, length: int, body: Iterable[bytes], seconds: float) -> None:
        """Send a request. Where the server hangs up meanwhile, the answer is still read, because it
        may name the reason."""
        self._reader, self._is_sent = AnswerReader(), False
        self._wire.settimeout(seconds)
        unsent = head
        for piece in body:
            length -= len(piece)
            if length < 0:
                break
            if not self._write(unsent + piece):
                return
            unsent = b""
        if length:  # a file that grows during the sending must not exceed it
            raise ConnectionLost("what is sent is not as long as it was said to be")
        self._is_sent = not unsent or self._write(unsent)

    def _write(self, data: bytes) -> bool:
        """Write all of the data. Returns False when the server has hung up."""
        left = memoryview(data)
        try:
            while left:
                left = left[self._wire.send(left) :]
        except TimeoutError as error:
            raise ConnectionLost("timed out") from error
        except OSError:
            return False
        return True

    def _read(self) -> None:
        """Read more of the answer. Raises ConnectionLost."""
        try:
            data = self._wire.recv(_READ_BYTES)
            if not data and not self._reader.status:
                raise ConnectionLost("the server hung up without an answer")
            self._reader.feed(data)
        except (OSError, BadAnswer) as error:
            raise ConnectionLost(str(error) or type(error).__name__) from error

    def read_head(self, silence_seconds: float) -> AnswerReader:
        """Return the answer once its head has come."""
        self._wire.settimeout(silence_seconds)
        while not self._reader.status:
            self._read()
        return self._reader

    def pieces(self) -> Iterator[bytes]:
        """Yield the bytes of the answer's body as they come."""
        yield from self._reader.take()
        while not self._reader.done:
            self._read()
            yield from self._reader.take()

    def keep(self) -> bool:
        """Prepare the connection for another exchange. Returns False when it is used up."""
        self._idle_since = time.monotonic()
        return self._is_sent and self._reader.is_reusable

    @property
    def is_usable(self) -> bool:
        """Return whether another request may be sent."""
        look = select.poll()
        look.register(self._wire, select.POLLIN)
        return time.monotonic() - self._idle_since < _IDLE_SECONDS and not look.poll(0)

    def close(self) -> None:
        self._wire.close()


class _SocketReply:
    """The answer that a connection is reading."""

    def __init__(self, connection: _KeptSocket, head: AnswerReader) -> None:
        self.status, self.headers = head.status, head.headers
        self.pieces = connection.pieces


class BlockingSockets:
    """An exchanger over sockets of its own."""

    def __init__(
        self,
        place: ControllerPlace,
        timeout_seconds: float,
        ca_file: str | None,
        watch: AnswerWatch,
        environ: Mapping[str, str],
    ) -> None:
        parts = urlsplit(place.url)
        self._host, self._prefix = parts.hostname or "", parts.path
        self._port = parts.port or (443 if parts.scheme == "https" else 80)
        self._timeout_seconds, self._watch = timeout_seconds, watch
        self._tls: ssl.SSLContext | None = None
        if parts.scheme == "https":
            self._tls = make_tls(ca_file, environ)
        self._headers = {"Host": parts.netloc, **common_headers(place)}
        self._idle: list[_KeptSocket] = []
        self._closed = False

    @contextmanager
    def send(self, request: SentRequest) -> Iterator[_SocketReply]:
        """Send a request; the answer can be read in the block. Raises ConnectionLost."""
        if self._closed:
            raise RuntimeError("the client is closed")
        self._watch.ask(request.held_seconds)
        connection, kept = self._take(), False
        try:
            connection.send(*self._write(request), self._timeout_seconds)
            head = connection.read_head(request.silence_seconds)
            self._watch.hear()
            yield _SocketReply(connection, head)
            kept = connection.keep() and not self._closed
        finally:
            if kept and len(self._idle) < _IDLE_CONNECTIONS:
                self._idle.append(connection)
            else:
                connection.close()

    def _write(self, request: SentRequest) -> tuple[bytes, int, Iterable[bytes]]:
        """Return the request's head, the length of its body, and the body."""
        headers = self._headers | dict(request.headers or {})
        body: Iterable[bytes] = ()
        if isinstance(request.body, bytes):
            headers["Content-Length"], body = str(len(request.body)), (request.body,)
        elif request.body is not None:
            body = request.body
        query = f"?{urlencode(request.query)}" if request.query else ""
        head = write_head(request.method, f"{self._prefix}{request.path}{query}", headers.items())
        return head, int(headers.get("Content-Length", 0)), body

    def _take(self) -> _KeptSocket:
        while self._idle:
            try:
                connection = self._idle.pop()
            except IndexError:  # another thread took the last one
                break
            if connection.is_usable:
                return connection
            connection.close()
        return self._connect()

    def _connect(self) -> _KeptSocket:
        seconds = min(self._timeout_seconds, CONNECT_SECONDS)
        try:
            # As bytes: for text the resolver loads the codec of other alphabets.
            where: Any = (self._host.encode(), self._port)
            wire = socket.create_connection(where, seconds)
        except OSError as error:
            raise NeverConnected(str(error)) from error
        try:
            wire.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._tls is not None:
                wire = self._tls.wrap_socket(wire, server_hostname=self._host)
        except OSError as error:  # ssl.SSLError is an OSError
            wire.close()
            raise NeverConnected(str(error)) from error
        return _KeptSocket(wire)

    def close(self) -> None:
        """Close the connections."""
        self._closed = True
        while self._idle:
            self._idle.pop().close()


def make_tls(ca_file: str | None, environ: Mapping[str, str]) -> ssl.SSLContext:
    """Return the context with the certificates to trust: the file given, the file that the
    environment names, or certifi's list. Raises ValidationError for a file that cannot be used."""
    import ssl

    named_file, named_folder = environ.get("SSL_CERT_FILE"), environ.get("SSL_CERT_DIR")
    try:
        if ca_file or named_file:
            tls = ssl.create_default_context(cafile=ca_file or named_file)
        elif named_folder:
            tls = ssl.create_default_context(capath=named_folder)
        else:
            import certifi

            tls = ssl.create_default_context(cafile=certifi.where())
    except OSError as error:  # ssl.SSLError is an OSError
        where = f"{ca_file}" if ca_file else f"{named_file or named_folder} (SSL_CERT_FILE or _DIR)"
        raise ValidationError(
            f"the file of authorities {where} cannot be used: {error}", field="ca_file"
        ) from error
    tls.set_alpn_protocols(["http/1.1"])
    return tls
