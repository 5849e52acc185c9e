"""Values as JSON texts, with the numbers that JSON has no form for: NaN and the infinities. Pure.

JSON encoders write null for them, which is another value. Here such a number is the object
`{"$float": "nan"}`, and an object of the user's own that has only the key `$float` is
`{"$float": {"$float": …}}`. Other texts are as any encoder writes them, and are not looked through.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import msgspec

from holdfast.errors import ValidationError

KEY = "$float"
_MARK = f'"{KEY}"'
_NUMBERS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
T = TypeVar("T")
Hook = Callable[[Any], Any]
DecodeHook = Callable[[type[Any], Any], Any]


def write_value(value: Any, enc_hook: Hook | None = None) -> str:
    """Return a value as JSON text. Raises TypeError, ValueError … as msgspec does."""
    text = msgspec.json.encode(value, enc_hook=enc_hook).decode()
    if "null" not in text and _MARK not in text:
        return text
    plain = msgspec.to_builtins(value, enc_hook=enc_hook, str_keys=True)
    return msgspec.json.encode(mark_floats(plain)).decode()


def mark_floats(value: Any) -> Any:
    """Replace NaN and the infinities in a plain value with their `$float` objects."""
    if isinstance(value, float):
        return value if math.isfinite(value) else {KEY: _name(value)}
    if isinstance(value, dict):
        inside = {key: mark_floats(part) for key, part in value.items()}
        return {KEY: inside} if inside.keys() == {KEY} else inside
    if isinstance(value, (list, tuple)):
        return [mark_floats(part) for part in value]
    return value


def read_value(
    text: str | bytes,
    kind: type[T] | Any,
    decode: Callable[[str | bytes], T],
    dec_hook: DecodeHook | None = None,
) -> T:
    """Read a value of the type `kind` from a text that `write_value` wrote. `decode` reads texts
    without `$float` objects, which is quicker. Raises msgspec.DecodeError."""
    whole = text if isinstance(text, str) else text.decode()
    if _MARK not in whole:
        return decode(text)
    plain = _unmark(msgspec.json.decode(whole))
    return msgspec.convert(plain, kind, str_keys=True, dec_hook=dec_hook)


def decode_value(text: str | bytes) -> Any:
    """Read a plain value from a text that `write_value` wrote."""
    return read_value(text, Any, msgspec.json.decode)


def _unmark(value: Any) -> Any:
    if isinstance(value, dict):
        if value.keys() == {KEY}:
            inside = value[KEY]
            if isinstance(inside, str) and inside in _NUMBERS:
                return _NUMBERS[inside]
            if isinstance(inside, dict):
                return {key: _unmark(part) for key, part in inside.items()}
        return {key: _unmark(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_unmark(part) for part in value]
    return value


def holds_floats(text: str) -> bool:
    """Return whether a text that `write_value` wrote may hold `$float` objects."""
    return _MARK in text


def refuse_floats(value: Any) -> None:
    """Raise ValidationError for NaN or an infinity in a request, where only values of calls may
    hold them."""
    for place, number in _find_floats(msgspec.to_builtins(value, str_keys=True), ""):
        where = place.lstrip(".") or "it"
        raise ValidationError(
            f"{where} is {_name(number)}, which has no form in JSON: give a finite number, or none",
            field=where,
        )


def _find_floats(value: Any, place: str) -> Iterator[tuple[str, float]]:
    if isinstance(value, float) and not math.isfinite(value):
        yield place, value
    elif isinstance(value, dict):
        for key, part in value.items():
            yield from _find_floats(part, f"{place}.{key}")
    elif isinstance(value, (list, tuple)):
        for number, part in enumerate(value):
            yield from _find_floats(part, f"{place}[{number}]")


def _name(value: float) -> str:
    return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
