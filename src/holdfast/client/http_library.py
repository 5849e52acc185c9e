"""httpx, without the command line that it imports with itself, and Holdfast's use of it.

The asyncio client is built on httpx, and so is the blocking client where `sockets.can_reach`
returns False.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from holdfast.client.locate import ControllerPlace
from holdfast.client.sockets import PROXIES, make_tls, passes_proxies
from holdfast.client.transport import (
    CONNECT_SECONDS,
    AnswerWatch,
    ConnectionLost,
    NeverConnected,
    SentRequest,
    common_headers,
)
from holdfast.errors import ValidationError

if "httpx" not in sys.modules and "httpx._main" not in sys.modules:
    # httpx tries to import its own command line, and with it rich and pygments: 40 ms, half of its
    # import. It works without them (they are its extra); an import of a module that is None fails.
    sys.modules["httpx._main"] = None  # type: ignore[assignment]  # the documented way to make an import fail
    try:
        import httpx
    finally:
        del sys.modules["httpx._main"]
else:
    import httpx

__all__ = [
    "BlockingHttpx", "client_options", "explain_proxies", "httpx", "name_loss", "request_options",
]  # fmt: skip


def client_options(
    place: ControllerPlace, timeout_seconds: float, ca_file: str | None
) -> dict[str, Any]:
    """Return the arguments of httpx's client. Loopback does not use the environment's proxies."""
    import ssl

    verify: bool | ssl.SSLContext = False  # loading the authorities costs 20 ms; http uses none
    if place.url.startswith("https:"):
        verify = make_tls(ca_file, os.environ)
    return {
        "base_url": place.url,
        "headers": common_headers(place),
        "timeout": _limits(timeout_seconds, timeout_seconds),
        "verify": verify,
        "trust_env": not passes_proxies(place, os.environ),
        "follow_redirects": False,
    }


@contextmanager
def explain_proxies() -> Iterator[None]:
    """Raise ValidationError where httpx cannot use a proxy that the environment names."""
    try:
        yield
    except (ImportError, ValueError, httpx.InvalidURL) as error:
        named = sorted(n for n, value in os.environ.items() if n.lower() in PROXIES and value)
        raise ValidationError(
            f"the proxy of {' or '.join(named) or 'the environment'} cannot be used: {error}. Unset the "
            "variable, name the controller's host in NO_PROXY, or, for a SOCKS proxy, install socksio"
        ) from error


def request_options(request: SentRequest, timeout_seconds: float) -> dict[str, Any]:
    """Return the arguments of one request."""
    return {
        "method": request.method,
        "url": request.path,
        "params": request.query,
        "headers": request.headers,
        "content": request.body,
        "timeout": _limits(timeout_seconds, request.silence_seconds),
    }


def name_loss(error: httpx.TransportError) -> ConnectionLost:
    """Return Holdfast's connection error for httpx's."""
    never = isinstance(error, (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout))
    kind = NeverConnected if never else ConnectionLost
    return kind(str(error) or type(error).__name__)


def _limits(timeout_seconds: float, silence_seconds: float) -> httpx.Timeout:
    connect_seconds = min(timeout_seconds, CONNECT_SECONDS)
    return httpx.Timeout(timeout_seconds, connect=connect_seconds, read=silence_seconds)


class _HttpxReply:
    """An answer of httpx."""

    def __init__(self, answer: httpx.Response) -> None:
        self._answer = answer
        self.status = answer.status_code
        self.headers: Mapping[str, str] = answer.headers

    def pieces(self) -> Iterator[bytes]:
        """Yield the body's bytes as they come."""
        return self._answer.iter_bytes()


class BlockingHttpx:
    """An exchanger that is httpx's blocking client."""

    def __init__(
        self,
        place: ControllerPlace,
        timeout_seconds: float,
        ca_file: str | None,
        watch: AnswerWatch,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self._timeout_seconds, self._watch = timeout_seconds, watch
        options = client_options(place, timeout_seconds, ca_file)
        with explain_proxies():
            self._http = httpx.Client(transport=transport, **options)

    @contextmanager
    def send(self, request: SentRequest) -> Iterator[_HttpxReply]:
        """Send a request; the answer can be read in the block. Raises ConnectionLost."""
        self._watch.ask(request.held_seconds)
        try:
            with self._http.stream(**request_options(request, self._timeout_seconds)) as answer:
                self._watch.hear()
                yield _HttpxReply(answer)
        except httpx.TransportError as error:
            raise name_loss(error) from error

    def close(self) -> None:
        """Close the connections."""
        self._http.close()
