"""What the script and the nodes of a tree say to each other, as values of `line.values`."""

from typing import Any, TypeVar

import msgspec

from holdfast.bounds import UNREADABLE
from holdfast.errors import ValidationError

Message = TypeVar("Message", bound=msgspec.Struct)


class Meeting(msgspec.Struct, frozen=True):
    """The script's first word: the key of this tree, and the address to listen at."""

    key: str
    address: str


class NodeOrder(msgspec.Struct, frozen=True, kw_only=True):
    """One node's part. parent: address and port, None at the root. children: how many report here.
    folders: where the functions import from.

    seconds: the time for the node's own work; merge_seconds: for its children's, from the start.
    """

    number: int
    map: str
    reduce: str
    folders: list[str]
    input: Any
    parent: tuple[str, int] | None
    children: int
    seconds: float
    merge_seconds: float


class Partial(msgspec.Struct, kw_only=True):
    """What is known of a part of the tree: a value (where one of its nodes had one), the numbers of
    the nodes in it, and why others have none."""

    numbers: list[int] = []
    value: Any = None
    failed: dict[int, str] = {}


def plain(message: msgspec.Struct) -> dict[str, Any]:
    """Put a message in plain values. What a function was given or returned stays as it is."""
    return {name: getattr(message, name) for name in message.__struct_fields__}


def read_message(value: Any, kind: type[Message]) -> Message:
    """Read a message from plain values. Raises ValidationError."""
    try:
        return msgspec.convert(value, kind)
    except UNREADABLE as error:
        raise ValidationError(f"this is no {kind.__name__} of a tree: {error}") from error
