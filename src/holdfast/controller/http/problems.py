"""Errors as RFC 9457 problems, and values as JSON answers."""

from collections.abc import Mapping
from http import HTTPStatus

import msgspec
from starlette.responses import Response

from holdfast.errors import HoldfastError, ValidationError
from holdfast.wire.api import Problem
from holdfast.wire.mismatch import locate, say_mismatch, split_path

PROBLEM_TYPE = "application/problem+json"
RETRY_AFTER_SECONDS = 2

encode = msgspec.json.Encoder().encode


class BadSyntax(HoldfastError, code="malformed_json", status=400):
    """The bytes cannot be read at all: they are not JSON, or not UTF-8."""


class MethodNotAllowed(HoldfastError, code="method_not_allowed", status=405):
    """The path does not support this method. allowed: the methods that it supports, as in the Allow
    header."""

    def __init__(self, message: str, allowed: str) -> None:
        super().__init__(message)
        self.allowed = allowed


class UpgradeRequired(HoldfastError, code="upgrade_required", status=426):
    """The path is opened as a WebSocket, not called."""


class SlowRequest(HoldfastError, code="request_timeout", status=408):
    """The body did not arrive in time."""


def answer_json(
    value: object, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """Encode `value` as a JSON response."""
    return Response(encode(value), status, headers, "application/json")


def problem_of(error: HoldfastError, instance: str | None = None) -> Problem:
    """Return the problem that describes `error`."""
    return Problem(
        title=HTTPStatus(error.status).phrase,
        status=error.status,
        detail=error.message,
        code=error.code,
        field=error.field,
        instance=instance,
    )


def answer_problem(error: HoldfastError, instance: str | None = None) -> Response:
    """Return the response that describes `error`, with the headers that its status requires."""
    headers: dict[str, str] = {}
    if error.status == 401:
        headers["WWW-Authenticate"] = 'Bearer realm="holdfast"'
    if error.status == 503:
        headers["Retry-After"] = str(RETRY_AFTER_SECONDS)
    if isinstance(error, MethodNotAllowed):
        headers["Allow"] = error.allowed
    return Response(encode(problem_of(error, instance)), error.status, headers, PROBLEM_TYPE)


def explain_bad_value(
    error: msgspec.ValidationError, where: str = "", kind: object = None, value: object = None
) -> ValidationError:
    """Turn msgspec's error about a value into ours, with the field's path. kind: the type that the
    value should have, where known. value: the whole value, needed to name an entry of a table."""
    said, path = split_path(str(error)) if value is None else locate(error, value, kind)
    sentence = say_mismatch(said, kind, path)
    field = ".".join(part for part in (where, path) if part) or None
    return ValidationError(f"{field}: {sentence}" if field else sentence, field=field)
