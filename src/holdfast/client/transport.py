"""The parts of sending that need no I/O: headers, time limits, the errors of a network."""

from __future__ import annotations

import re
import ssl
from collections.abc import Mapping
from typing import Any

from holdfast.client.calls import RestCall, read_problem
from holdfast.client.follow import STREAM_SILENCE_SECONDS
from holdfast.client.http_library import httpx
from holdfast.client.locate import ControllerPlace, token_hint
from holdfast.errors import HoldfastError, Unavailable

# A call whose connection was never made has changed nothing, so any call may be sent again.
NEVER_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)
LOST = (httpx.TransportError,)


def client_options(
    place: ControllerPlace, timeout_seconds: float, ca_file: str | None
) -> dict[str, Any]:
    """Return the arguments of httpx's client. Loopback does not use the environment's proxies."""
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


def request_options(call: RestCall[Any]) -> dict[str, Any]:
    """Return the arguments of one request."""
    options: dict[str, Any] = {"params": call.query}
    if call.body is not None:
        options["content"] = call.body
        options["headers"] = {"Content-Type": "application/json"}
    return options


def stream_options(
    call: RestCall[Any], headers: Mapping[str, str], timeout_seconds: float
) -> dict[str, Any]:
    """Return the arguments of a stream, whose silence is allowed for longer than an answer's."""
    timeout = httpx.Timeout(timeout_seconds, read=STREAM_SILENCE_SECONDS)
    return {"params": call.query, "headers": dict(headers), "timeout": timeout}


def refuse(place: ControllerPlace, status: int, data: bytes) -> HoldfastError:
    """Return the error of an answer of 300 and above."""
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


def unreachable(place: ControllerPlace, error: Exception) -> Unavailable:
    """Return the error of a network that does not answer."""
    what = re.sub(r"^\[Errno -?\d+\] ", "", str(error)) or type(error).__name__
    return Unavailable(
        f"the controller at {place.url} (from {place.source}) cannot be reached: {what}. "
        "Is `holdfast up` or `holdfast server` running there?",
        code="unreachable",
    )


def is_worth_retrying(call: RestCall[Any], error: Exception) -> bool:
    """Say whether the call may be sent again after `error`."""
    if isinstance(error, NEVER_SENT):
        return True
    return isinstance(error, (*LOST, Unavailable)) and call.repeatable
