"""Types of the schema that mirror records: a field of a record is a field of its type."""

from collections.abc import Callable
from datetime import datetime
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import strawberry
from msgspec import UnsetType
from strawberry import ID

from holdfast.controller.graphql.scalars import ENUMS, BigInt

T = TypeVar("T")
_OWN_TYPES: dict[str, Any] = {
    "id": ID,
    **dict.fromkeys(("epoch", "step", "total", "best_step", "revision"), BigInt),
    **dict.fromkeys(("memory_bytes", "busy_memory_bytes"), BigInt),
}
"""Field name → GraphQL type, where the field's Python type says too little: ids, and numbers that
may not fit 32 bits."""


MIRRORS: dict[type, Any] = {}
"""Record → the type of the schema that mirrors it."""


def mirrors(
    record: type, description: str, *, but: str = "", whole: Any = int
) -> Callable[[type[T]], type[T]]:
    """Make a type of the schema from a class: the record's fields except `but`, and the class's own
    fields, which replace the record's of the same name. whole: the type of whole numbers."""

    def make(shape: type[T]) -> type[T]:
        own = shape.__annotations__
        hints = get_type_hints(record)
        copied = [n for n in record.__struct_fields__ if n not in but.split()]  # type: ignore[attr-defined]  # a struct's
        shape.__annotations__ = {
            **{name: own.get(name) or translate(name, hints[name], whole) for name in copied},
            **own,
        }
        name = shape.__name__.removesuffix("Type")
        made = MIRRORS[record] = strawberry.type(shape, name=name, description=description)
        return made

    return make


def translate(name: str, hint: Any, whole: Any = int) -> Any:
    """Return the GraphQL type of a field or a parameter; None for what only JSON can hold. whole: the
    type of whole numbers."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        kinds = [translate(name, p, whole) for p in parts if p not in (NoneType, UnsetType)]
        return None if len(kinds) != 1 or kinds[0] is None else kinds[0] | None
    if origin in (tuple, list):
        kind = translate("", parts[0], whole)
        return None if kind is None else list.__class_getitem__(kind)
    if origin is Literal:
        return str
    if hint in ENUMS:
        return hint
    if origin is not None or not isinstance(hint, type):
        return None
    if issubclass(hint, bool | float | datetime):
        return hint
    if issubclass(hint, int | str):
        return _OWN_TYPES.get(name, whole if issubclass(hint, int) else str)
    return None
