"""The messages between the script and the nodes of a tree, as values of `line.values`."""

from typing import Any, TypeVar

import msgspec

from holdfast.bounds import UNREADABLE
from holdfast.errors import ValidationError

Message = TypeVar("Message", bound=msgspec.Struct)


class Meeting(msgspec.Struct, frozen=True):
    """The script's first message to a node. key: the key of this tree. address: the address to
    listen at."""

    key: str
    address: str


class NodeOrder(msgspec.Struct, frozen=True, kw_only=True):
    """One node's part. parent: address and port of its parent, None at the root. children: the
    number of nodes that report to this one. folders: the folders that the functions import from.

    seconds: the time for the node's own work. merge_seconds: the time for its children's reports,
    from the start.
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
    """The results of a part of the tree. numbers: the nodes whose results are merged in it. value:
    the merged value, where one of these nodes had one. failed: node → why its result is missing."""

    numbers: list[int] = []
    value: Any = None
    failed: dict[int, str] = {}


def plain(message: msgspec.Struct) -> dict[str, Any]:
    """Return a message as dicts, lists and plain values. Arguments and results of functions stay as
    they are."""
    return {name: getattr(message, name) for name in message.__struct_fields__}


def read_message(value: Any, kind: type[Message]) -> Message:
    """Decode a message from plain values. Raises ValidationError."""
    try:
        return msgspec.convert(value, kind)
    except UNREADABLE as error:
        raise ValidationError(f"this is no {kind.__name__} of a tree: {error}") from error
