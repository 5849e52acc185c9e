"""Large results inside the arguments of a call: passed by reference, and put in place where the
call runs. Pure.

Arguments with large results are written as `{"$args": …, "$large": […]}`: the arguments with null
in place of each large result, and the list of places with the blob, or the part of a blob, that
belongs there. No parameter is called `$args`, so a user's own arguments are never mistaken for
this.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec

from holdfast.core.calls.texts import check_blob, read_blob
from holdfast.errors import ValidationError

_PREFIX = '{"$args":'
Place = tuple[str | int, ...]


class LargeValue(msgspec.Struct, frozen=True):
    """A node's result in the blob store, or the part of it at `path`. size: bytes of the blob."""

    node: str
    sha256: str
    size: int
    path: Place = ()


class LargePlace(msgspec.Struct, frozen=True, array_like=True):
    """A large value, with its place `at` in the arguments."""

    at: Place
    value: LargeValue


class ShortArguments(msgspec.Struct, frozen=True):
    """Arguments with null in place of their large values, and these values by reference."""

    args: dict[str, Any] = msgspec.field(name="$args")
    large: list[LargePlace] = msgspec.field(name="$large")


def read_result(node: str, text: str) -> Any:
    """Return a node's result: its value, or a reference where it is in the blob store."""
    blob = read_blob(text)
    if blob is None:
        return msgspec.json.decode(text)
    return LargeValue(node, blob.sha256, blob.size)


def follow_path(result: Any, node: str, path: Place) -> Any:
    """Return the part of a node's result that `path` names. Raises ValidationError."""
    found = result
    for number, key in enumerate(path):
        if isinstance(found, LargeValue):
            return msgspec.structs.replace(found, path=(*found.path, *path[number:]))
        try:
            found = _take(found, key)
        except LookupError:
            way = "".join(f"[{part!r}]" for part in path[: number + 1])
            raise ValidationError(
                f"the result of node {node} has no {way}: it is {describe_value(found)} there"
            ) from None
    return found


def _take(value: Any, key: str | int) -> Any:
    if isinstance(key, str) and isinstance(value, dict):
        return value[key]
    if isinstance(key, int) and isinstance(value, list):
        return value[key]
    raise LookupError


def describe_value(value: Any) -> str:
    """Say what a JSON value is, without its contents."""
    if isinstance(value, dict):
        keys = ", ".join(sorted(map(str, value))[:8])
        return f"an object with the keys {keys}" if value else "an empty object"
    if isinstance(value, list):
        return f"a list of {len(value)}"
    words = {str: "a text", bool: "a truth value", int: "a number", float: "a number"}
    return "null" if value is None else words.get(type(value), "another value")


def walk_large(value: Any, at: Place = ()) -> Iterator[LargePlace]:
    """Yield every large value in a JSON value, with its place."""
    if isinstance(value, LargeValue):
        yield LargePlace(at, value)
    elif isinstance(value, dict):
        for key, part in value.items():
            yield from walk_large(part, (*at, key))
    elif isinstance(value, list):
        for index, part in enumerate(value):
            yield from walk_large(part, (*at, index))


def put_values(value: Any, places: Sequence[LargePlace], find: Callable[[LargeValue], Any]) -> Any:
    """Return a copy of `value` in which `find(large)` stands at each of `places`."""
    if not places:
        return value
    if not places[0].at:
        return find(places[0].value)
    inside: dict[str | int, list[LargePlace]] = {}
    for place in places:
        inside.setdefault(place.at[0], []).append(LargePlace(place.at[1:], place.value))
    found = value.copy()
    for key, below in inside.items():
        found[key] = put_values(found[key], below, find)
    return found


def write_arguments(args: dict[str, Any]) -> str:
    """Return arguments as a JSON text, their large values by reference."""
    places = list(walk_large(args))
    whole: Any = args
    if places:
        whole = ShortArguments(put_values(args, places, lambda value: None), places)
    return msgspec.json.encode(whole).decode()


def fill_arguments(text: str, fetch: Callable[[str], bytes]) -> str:
    """Return the arguments that `write_arguments` wrote, large values included, as a JSON text.

    fetch: returns the bytes of a blob by its SHA-256.

    Raises:
        ValidationError: a path does not exist in its blob, or a blob's bytes do not match its name.
    """
    if not text.startswith(_PREFIX):
        return text
    short = msgspec.json.decode(text, type=ShortArguments)
    blobs: dict[str, bytes] = {}
    values: dict[str, Any] = {}

    def find(large: LargeValue) -> Any:
        sha256 = large.sha256
        if sha256 not in blobs:
            blobs[sha256] = check_blob(sha256, fetch)
        if not large.path:
            return msgspec.Raw(blobs[sha256])  # put in unparsed, as it was written
        if sha256 not in values:
            values[sha256] = msgspec.json.decode(blobs[sha256])
        return follow_path(values[sha256], large.node, large.path)

    return msgspec.json.encode(put_values(short.args, short.large, find)).decode()
