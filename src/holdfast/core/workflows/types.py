"""Compare the result of one function with the parameter of another, by their annotations. Pure."""

import types
from typing import Any, Union, get_args, get_origin

_NUMBERS = {(int, float), (bool, int), (bool, float)}
_PLAIN = (str, int, float, bool, bytes, list, dict, tuple, type(None))


def is_mismatch(gives: Any, takes: Any) -> bool:
    """Return whether a value annotated `gives` certainly does not fit `takes`.

    An unknown type, or one that is not a plain type of JSON, is no mismatch.
    """
    if get_origin(gives) in (Union, types.UnionType):
        return all(is_mismatch(one, takes) for one in get_args(gives))
    if get_origin(takes) in (Union, types.UnionType):
        return all(is_mismatch(gives, one) for one in get_args(takes))
    given, taken = _plain(gives), _plain(takes)
    if given is None or taken is None:
        return False
    if given is not taken:
        lists = {list, tuple}
        return (given, taken) not in _NUMBERS and not ({given, taken} <= lists)
    inside, wanted = get_args(gives), get_args(takes)
    if given in (list, dict) and len(inside) == len(wanted) and inside:
        return any(is_mismatch(one, other) for one, other in zip(inside, wanted, strict=True))
    return False


def item_of(annotation: Any) -> Any:
    """Return the annotation of a list's items, or Any where it does not say."""
    inside = get_args(annotation)
    return inside[0] if get_origin(annotation) is list and inside else Any


def _plain(annotation: Any) -> type | None:
    kind = get_origin(annotation) or annotation
    if annotation is None:
        return type(None)
    return kind if kind in _PLAIN else None
