"""Types of the schema that mirror records: a field of a record is a field of its type."""

from collections.abc import Callable
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import strawberry
from strawberry import ID

from holdfast.controller.graphql.scalars import BigInt

T = TypeVar("T")
_OWN_TYPES: dict[str, Any] = {
    "id": ID,
    **dict.fromkeys(("epoch", "step", "total", "best_step", "revision"), BigInt),
    **dict.fromkeys(("memory_bytes", "busy_memory_bytes"), BigInt),
}
"""Field name → GraphQL type, where the field's Python type says too little: ids, and numbers that
may not fit 32 bits."""


def mirrors(record: type, description: str, *, but: str = "") -> Callable[[type[T]], type[T]]:
    """Make a type of the schema from a class: the record's fields except `but`, and the class's own
    fields, which replace the record's of the same name."""

    def make(shape: type[T]) -> type[T]:
        own = shape.__annotations__
        hints = get_type_hints(record)
        copied = [n for n in record.__struct_fields__ if n not in but.split()]  # type: ignore[attr-defined]  # a struct's
        shape.__annotations__ = {
            **{name: own.get(name) or _translate(name, hints[name]) for name in copied},
            **own,
        }
        name = shape.__name__.removesuffix("Type")
        return strawberry.type(shape, name=name, description=description)

    return make


def _translate(name: str, hint: Any) -> Any:
    parts = get_args(hint)
    if get_origin(hint) in (Union, UnionType):
        (inner,) = (part for part in parts if part is not NoneType)
        return _translate(name, inner) | None
    if get_origin(hint) is tuple:
        return list.__class_getitem__(parts[0])
    return str if get_origin(hint) is Literal else _OWN_TYPES.get(name, hint)
