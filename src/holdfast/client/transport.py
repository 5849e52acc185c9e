"""What both transports share: headers, time limits, and how a failure of the network reads."""

from __future__ import annotations

import re
import ssl
from collections.abc import Mapping
from typing import Any

from holdfast.client.calls import Call, read_problem
from holdfast.client.follow import STREAM_SILENCE_SECONDS
from holdfast.client.http_library import httpx
from holdfast.client.locate import Place, token_hint
from holdfast.errors import HoldfastError, Unavailable

# A connection that was never made has changed nothing, whatever was to be sent.
NEVER_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)
LOST = (httpx.TransportError,)


def client_options(place: Place, timeout_seconds: float, ca_file: str | None) -> dict[str, Any]:
    """Arguments for the HTTP library's client. Proxies of the environment are not used for
    loopback."""
    from holdfast import __version__

    headers = {
        "User-Agent": f"holdfast/{__version__}",
        "Accept": "application/json, application/problem+json",
    }
    if place.token:
        headers["Authorization"] = f"Bearer {place.token}"
    verify: bool | ssl.SSLContext = ssl.create_default_context(cafile=ca_file) if ca_file else True
    if place.url.startswith("http:"):
        verify = False  # loading the certificate store costs 20 ms, and nothing here would use it
    return {
        "base_url": place.url,
        "headers": headers,
        "timeout": httpx.Timeout(timeout_seconds, connect=min(timeout_seconds, 10.0)),
        "verify": verify,
        "trust_env": not place.is_local,
        "follow_redirects": False,
    }


def request_options(call: Call[Any]) -> dict[str, Any]:
    """Arguments for one request."""
    options: dict[str, Any] = {"params": call.query}
    if call.body is not None:
        options["content"] = call.body
        options["headers"] = {"Content-Type": "application/json"}
    return options


def stream_options(
    call: Call[Any], headers: Mapping[str, str], timeout_seconds: float
) -> dict[str, Any]:
    """Arguments for a stream: silent for a while is fine, silent for longer is a dead
    connection."""
    timeout = httpx.Timeout(timeout_seconds, read=STREAM_SILENCE_SECONDS)
    return {"params": call.query, "headers": dict(headers), "timeout": timeout}


def refuse(place: Place, status: int, data: bytes) -> HoldfastError:
    """The error of an answer of 300 and above."""
    if status < 400:
        return HoldfastError(
            f"{place.url} answered with a redirect (HTTP {status}); is it the controller's own "
            "address?"
        )
    error = read_problem(status, data)
    hint = token_hint(error, place)
    if hint:
        error.message += hint
        error.args = (error.message,)
    return error


def unreachable(place: Place, error: Exception) -> Unavailable:
    """The error of a network that does not answer."""
    what = re.sub(r"^\[Errno -?\d+\] ", "", str(error)) or type(error).__name__
    return Unavailable(
        f"the controller at {place.url} (from {place.source}) cannot be reached: {what}. "
        "Is `holdfast up` or `holdfast server` running there?",
        code="unreachable",
    )


def is_worth_retrying(call: Call[Any], error: Exception) -> bool:
    """Whether the call may be sent again after `error`."""
    if isinstance(error, NEVER_SENT):
        return True
    if isinstance(error, (*LOST, Unavailable)):
        return call.repeatable
    return False
