"""Reading request bodies: bounded in bytes and in time, then decoded into the shared structs."""

from __future__ import annotations

import asyncio
from typing import Any, TypeVar

import msgspec
from starlette.types import Message, Receive, Scope

from holdfast.controller.http.problems import BadSyntax, SlowRequest, explain_bad_value
from holdfast.errors import TooLarge, ValidationError

BODY_SECONDS = 30.0
T = TypeVar("T")


class Gone(Exception):
    """The client hung up while its request was read. There is nobody to answer."""


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
        TooLarge: over `limit_bytes`, seen from its length before a byte is read where the client
        tells it.
        SlowRequest: it took longer than `BODY_SECONDS`.
        Gone: the client hung up.
    """
    declared = header(scope, b"content-length")
    if declared is not None and declared.isdigit() and int(declared) > limit_bytes:
        raise too_large(limit_bytes)
    message = await _receive(receive, BODY_SECONDS)
    if not message.get("more_body", False):
        return _checked(message.get("body", b""), limit_bytes)
    loop = asyncio.get_running_loop()
    until = loop.time() + BODY_SECONDS
    whole = bytearray(message.get("body", b""))
    while message.get("more_body", False):
        if len(whole) > limit_bytes:
            raise too_large(limit_bytes)
        message = await _receive(receive, until - loop.time())
        whole += message.get("body", b"")
    return _checked(bytes(whole), limit_bytes)


async def _receive(receive: Receive, seconds: float) -> Message:
    try:
        async with asyncio.timeout(seconds):
            message = await receive()
    except TimeoutError:
        raise SlowRequest(f"the request's body did not arrive within {BODY_SECONDS:g} s") from None
    if message["type"] == "http.disconnect":
        raise Gone
    return message


def _checked(body: bytes, limit_bytes: int) -> bytes:
    if len(body) > limit_bytes:
        raise too_large(limit_bytes)
    return body


def too_large(limit_bytes: int) -> TooLarge:
    """The error for a body over its limit."""
    return TooLarge(f"the body is over the limit of {limit_bytes} bytes; send less at once")


def decode_body(body: bytes, decoder: msgspec.json.Decoder[T]) -> T:
    """Decode JSON into the struct of `decoder`.

    Raises:
        BadSyntax: not JSON or not UTF-8 (400).
        ValidationError: JSON that does not fit, or text that cannot be stored, with the field's
        path (422).
    """
    try:
        value = decoder.decode(body)
    except msgspec.ValidationError as error:
        raise explain_bad_value(error, kind=decoder.type) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadSyntax(_say_syntax(body, error)) from None
    refuse_nul(body, value)
    return value


def _say_syntax(body: bytes, error: Exception) -> str:
    if not body:
        return "the body is empty; this call takes a JSON object"
    if isinstance(error, RecursionError):
        return "the body is nested too deeply"
    return f"the body is not JSON: {error}"


def refuse_nul(body: bytes, value: object) -> None:
    """Refuse U+0000 anywhere in the text of `value`: neither a program nor the database can hold
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
    if isinstance(value, dict):
        for key, inner in value.items():
            found = (
                path
                if "\x00" in str(key)
                else _find_nul(inner, f"{path}.{key}" if path else str(key))
            )
            if found is not None:
                return found
    if isinstance(value, (list, tuple)):
        for number, inner in enumerate(value):
            found = _find_nul(inner, f"{path}[{number}]")
            if found is not None:
                return found
    return None


def decode_report(body: bytes, decoder: msgspec.json.Decoder[T]) -> T:
    """Decode what an agent reports.

    Unlike a person's input, a report is never refused for a NUL in some program's output: a job
    whose last words were binary must still end. NULs become U+FFFD, as the database cannot hold
    them.
    """
    try:
        value = decoder.decode(body)
        if b"\\u0000" in body:
            value = msgspec.convert(replace_nul(msgspec.to_builtins(value)), decoder.type)
        return value
    except msgspec.ValidationError as error:
        raise explain_bad_value(error) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadSyntax(_say_syntax(body, error)) from None


def decode_packed(body: bytes, decoder: msgspec.msgpack.Decoder[T]) -> T:
    """Decode a msgpack body, raising as `decode_body` does."""
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise explain_bad_value(error) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadSyntax(f"the body is not msgpack: {error}", code="malformed_msgpack") from None


def replace_nul(value: Any) -> Any:
    """`value` with U+FFFD for every NUL in its text."""
    if isinstance(value, str):
        return value.replace("\x00", "�")
    if isinstance(value, dict):
        return {replace_nul(key): replace_nul(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [replace_nul(inner) for inner in value]
    return value
