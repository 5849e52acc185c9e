"""The parts of sending that need no I/O: requests, what an answer says, and errors in sentences."""

import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypedDict

import msgspec

from holdfast.client.locate import ControllerPlace, token_hint
from holdfast.client.rest import RestCall, read_problem
from holdfast.errors import ConnectionLost, HoldfastError, HoldfastWarning, Unavailable
from holdfast.http.addresses import HttpAddress, read_addresses
from holdfast.http.courier import HttpRequest
from holdfast.version import VERSION

# A server sends a comment every few seconds, so a connection that is silent for this long is dead.
STREAM_SILENCE_SECONDS = 45.0


class AnswerWatch(msgspec.Struct, frozen=True):
    """Functions called at each request. ask: called when the request is sent, with the seconds for
    which the controller may hold the answer back. hear: called when the head of the answer has
    come."""

    ask: Callable[[float], None]
    hear: Callable[[], None]


NO_WATCH = AnswerWatch(lambda _: None, lambda: None)


class HttpOptions(TypedDict):
    """The arguments of `BlockingHttp` and `AsyncHttp`."""

    addresses: tuple[HttpAddress, ...]
    headers: Mapping[str, str]
    ca_file: str | None
    timeout_seconds: float


def common_headers(place: ControllerPlace) -> dict[str, str]:
    """Return the headers that every request has."""
    headers = {
        "User-Agent": f"holdfast/{VERSION}",
        "Accept": "application/json, application/problem+json",
    }
    if place.token:
        headers["Authorization"] = f"Bearer {place.token}"
    return headers


def http_options(place: ControllerPlace, timeout_seconds: float) -> HttpOptions:
    """Return the arguments of the HTTP client of a place."""
    return HttpOptions(
        addresses=read_addresses(",".join(place.urls), place.source),
        headers=common_headers(place),
        ca_file=place.ca_file,
        timeout_seconds=timeout_seconds,
    )


def request_of(call: RestCall[Any], timeout_seconds: float) -> HttpRequest:
    """Return the request of a call that has one answer."""
    headers = None if call.body is None else {"Content-Type": "application/json"}
    return HttpRequest(
        call.method, call.path, timeout_seconds, call.query, headers, call.body, call.repeatable
    )


def held_seconds(request: HttpRequest) -> float:
    """Return the seconds for which a request lets the controller hold the answer back until there
    is news."""
    return float(dict(request.query).get("wait", 0.0))


def stream_request(call: RestCall[Any], headers: Mapping[str, str]) -> HttpRequest:
    """Return the request of a stream, which may be silent for longer than an answer."""
    silence = STREAM_SILENCE_SECONDS
    return HttpRequest(call.method, call.path, silence, call.query, headers, repeatable=True)


def file_request(
    path: str, query: tuple[tuple[str, str], ...], file: Path, timeout_seconds: float
) -> HttpRequest:
    """Return the request that sends a file. Raises OSError."""
    from holdfast.client.download import describe_file, read_pieces

    headers, pieces = describe_file(file), read_pieces(file)
    return HttpRequest("PUT", path, timeout_seconds, query, headers, pieces)


def warn(note: str) -> None:
    """Warn of the controller's note about a call that it accepted."""
    warnings.warn(note, HoldfastWarning, stacklevel=2)


def tell_note(headers: Mapping[str, str], on_note: Callable[[str], None]) -> None:
    """Pass the controller's note about a call that it accepted to `on_note`, if there is one."""
    note = headers.get("holdfast-note")
    if note:
        on_note(note)


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


def explain_loss(place: ControllerPlace, error: Unavailable) -> Unavailable:
    """Return the error to raise: a lost connection with the controller's address and the way out,
    another one as it is."""
    if not isinstance(error, ConnectionLost):
        return error
    where = " or ".join(place.urls)
    return Unavailable(
        f"the controller at {where} (from {place.source}) cannot be reached: {error.message}. "
        "Is `holdfast up` or `holdfast server` running there?",
        code=error.code,
    )
