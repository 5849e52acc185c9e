"""Reading request bodies: bounded in bytes and in time, then decoded into the shared structs."""

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

import msgspec
from starlette.types import Receive, Scope

from holdfast.bounds import UNREADABLE
from holdfast.controller.http.problems import BadSyntax, SlowRequest, explain_bad_value
from holdfast.controller.runtime.wakes import Wake, wait_any
from holdfast.errors import TooLarge, ValidationError

BODY_SECONDS = 30.0
T = TypeVar("T")


class Gone(Exception):
    """The client hung up while its request was read, so there is no answer to send."""


def header(scope: Scope, name: bytes) -> str | None:
    """Return the first header called `name` (lower case), or None."""
    for key, value in scope["headers"]:
        if key == name:
            text: str = value.decode("latin-1")
            return text
    return None


async def read_body(scope: Scope, receive: Receive, limit_bytes: int) -> bytes:
    """Return the whole body.

    Raises:
        TooLarge: the body is over `limit_bytes`; no byte is read where Content-Length says so.
        SlowRequest: the body took longer than `BODY_SECONDS`.
        Gone: the client hung up.
    """
    declared = header(scope, b"content-length")
    if declared is not None and declared.isdigit() and int(declared) > limit_bytes:
        raise too_large(limit_bytes)
    pieces: list[bytes] = []
    size, more = 0, True
    try:
        async with asyncio.timeout(BODY_SECONDS):  # one for all pieces, of which there are hundreds
            while more:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise Gone
                more = message.get("more_body", False)
                pieces.append(message.get("body", b""))
                size += len(pieces[-1])
                if size > limit_bytes:
                    raise too_large(limit_bytes)
    except TimeoutError:
        raise SlowRequest(f"the request's body did not arrive within {BODY_SECONDS:g} s") from None
    return b"".join(pieces)


async def wait_unless_gone(seen: Mapping[Wake, int], seconds: float, receive: Receive) -> bool:
    """Wait as `wait_any` does. Raises Gone when the client hangs up meanwhile. Call this only once
    the request's body has been read."""
    hang_up = asyncio.ensure_future(receive())
    try:
        woken = await wait_any(seen, seconds, hang_up)
        if hang_up.done() and not woken:
            raise Gone
        return woken
    finally:
        hang_up.cancel()


def too_large(limit_bytes: int) -> TooLarge:
    """Return the error for a body over its limit."""
    return TooLarge(f"the body is over the limit of {limit_bytes} bytes; send less at once")


def decode_body(body: bytes, decoder: msgspec.json.Decoder[T]) -> T:
    """Decode JSON into the struct of `decoder`.

    Raises:
        BadSyntax: the body is not JSON or not UTF-8 (400).
        ValidationError: a field does not fit, or has text that cannot be stored; names the
        field (422).
    """
    try:
        value = decoder.decode(body)
    except msgspec.ValidationError as error:
        whole = _read_whole(body)
        raise explain_bad_value(error, kind=decoder.type, value=whole) from None
    except UNREADABLE as error:
        raise BadSyntax(_say_syntax(body, error)) from None
    refuse_nul(body, value)
    return value


def _read_whole(body: bytes) -> object:
    """Return a body as plain values, None where it cannot be decoded."""
    try:
        return msgspec.json.decode(body)
    except UNREADABLE:
        return None


def _say_syntax(body: bytes, error: Exception) -> str:
    if not body:
        return "the body is empty; this call takes a JSON object"
    if isinstance(error, RecursionError):
        return "the body is nested too deeply"
    return f"the body is not JSON: {error}"


def refuse_nul(body: bytes, value: object) -> None:
    """Refuse U+0000 anywhere in the text of `value`: program arguments and the database cannot hold
    it."""
    if b"\\u0000" not in body:
        return
    field = _find_nul(msgspec.to_builtins(value), "")
    if field is not None:
        raise ValidationError(
            f"{field or 'the body'}: a NUL character cannot be stored", field=field or None
        )


def _find_nul(value: Any, path: str) -> str | None:
    if isinstance(value, str):
        return path if "\x00" in value else None
    inner: Iterable[tuple[str, Any]] = ()
    if isinstance(value, dict):
        if any("\x00" in str(key) for key in value):
            return path
        inner = ((f"{path}.{key}" if path else str(key), item) for key, item in value.items())
    elif isinstance(value, (list, tuple)):
        inner = ((f"{path}[{number}]", item) for number, item in enumerate(value))
    return next((bad for at, item in inner if (bad := _find_nul(item, at)) is not None), None)


def decode_report(body: bytes, decoder: msgspec.json.Decoder[T]) -> T:
    """Decode what an agent reports. Unlike a person's input, it is never refused for a NUL: a job
    whose last output was binary must still end. NULs become U+FFFD, because the database cannot
    hold them."""
    try:
        value = decoder.decode(body)
        if b"\\u0000" in body:
            value = msgspec.convert(replace_nul(msgspec.to_builtins(value)), decoder.type)
        return value
    except msgspec.ValidationError as error:
        raise explain_bad_value(error) from None
    except UNREADABLE as error:
        raise BadSyntax(_say_syntax(body, error)) from None


def decode_packed(body: bytes, decoder: msgspec.msgpack.Decoder[T]) -> T:
    """Decode a msgpack body, raising as `decode_body` does."""
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise explain_bad_value(error) from None
    except UNREADABLE as error:
        raise BadSyntax(f"the body is not msgpack: {error}", code="malformed_msgpack") from None


def replace_nul(value: Any) -> Any:
    """Return `value` with U+FFFD for every NUL in its text."""
    if isinstance(value, str):
        return value.replace("\x00", "�")
    if isinstance(value, dict):
        return {replace_nul(key): replace_nul(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [replace_nul(inner) for inner in value]
    return value
