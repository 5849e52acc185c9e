"""The parts of sending that need no I/O: requests and their answers, the errors of a network."""

import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol

import msgspec

from holdfast.client.follow import STREAM_SILENCE_SECONDS
from holdfast.client.locate import ControllerPlace, token_hint
from holdfast.client.rest import RestCall, read_problem
from holdfast.errors import HoldfastError, HoldfastWarning, Unavailable
from holdfast.version import VERSION

CONNECT_SECONDS = 10.0


class ConnectionLost(Exception):
    """The connection broke, or was silent for too long, before the answer was whole."""


class NeverConnected(ConnectionLost):
    """No connection was made, so the call has changed nothing and may be sent again."""


class SentRequest(msgspec.Struct, frozen=True):
    """One request. silence_seconds: the longest wait for more of the answer."""

    method: str
    path: str
    silence_seconds: float
    query: tuple[tuple[str, str], ...] = ()
    headers: Mapping[str, str] | None = None
    body: bytes | Iterable[bytes] | None = None

    @property
    def held_seconds(self) -> float:
        """Return for how many seconds the request lets the controller hold the answer back until
        something comes."""
        return float(dict(self.query).get("wait", 0.0))


class Reply(Protocol):
    """The head of an answer, and its body as it comes. Reading raises ConnectionLost."""

    @property
    def status(self) -> int:
        """Return the status."""

    @property
    def headers(self) -> Mapping[str, str]:
        """Return the headers, with names in lower case."""

    def pieces(self) -> Iterator[bytes]:
        """Yield the body's bytes as they come."""


class Exchanger(Protocol):
    """Sends requests to one controller. Threads may share it."""

    def send(self, request: SentRequest) -> AbstractContextManager[Reply]:
        """Send a request; the answer can be read in the block. Raises ConnectionLost."""

    def close(self) -> None:
        """Close the connections."""


class AnswerWatch(msgspec.Struct, frozen=True):
    """Functions called at each request. ask: called when the request is sent, with the seconds for
    which the controller may hold the answer back. hear: called when the head of the answer has
    come."""

    ask: Callable[[float], None]
    hear: Callable[[], None]


NO_WATCH = AnswerWatch(lambda _: None, lambda: None)


def common_headers(place: ControllerPlace) -> dict[str, str]:
    """Return the headers that every request has."""
    headers = {
        "User-Agent": f"holdfast/{VERSION}",
        "Accept": "application/json, application/problem+json",
    }
    if place.token:
        headers["Authorization"] = f"Bearer {place.token}"
    return headers


def request_of(call: RestCall[Any], timeout_seconds: float) -> SentRequest:
    """Return the request of a call that has one answer."""
    headers = None if call.body is None else {"Content-Type": "application/json"}
    return SentRequest(call.method, call.path, timeout_seconds, call.query, headers, call.body)


def stream_request(call: RestCall[Any], headers: Mapping[str, str]) -> SentRequest:
    """Return the request of a stream, which may be silent for longer than an answer."""
    return SentRequest(call.method, call.path, STREAM_SILENCE_SECONDS, call.query, headers)


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


def unreachable(place: ControllerPlace, error: Exception) -> Unavailable:
    """Return the error of a network that does not answer."""
    what = re.sub(r"^\[Errno -?\d+\] ", "", str(error)) or type(error).__name__
    return Unavailable(
        f"the controller at {place.url} (from {place.source}) cannot be reached: {what}. "
        "Is `holdfast up` or `holdfast server` running there?",
        code="unreachable",
    )
