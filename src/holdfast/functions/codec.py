"""The arguments and the result of a function as JSON texts, checked against its annotations.

Arguments are an object of parameters by name; `*args` is an array under its name, `**kwargs` an
object. Both sides make the same checks: the caller, so that a wrong argument is refused before
anything is sent; the host, because its version of the function may differ.

CODEC-1  A value arrives as it was given, or as its annotation says, or it is refused. So without an
         annotation only what JSON itself tells apart goes: bytes would arrive as text, a tuple as a
         list, a key of a dict as text.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Iterator
from pathlib import Path, PurePath
from typing import Any

import msgspec

from holdfast.core.calls.floats import read_value, write_value
from holdfast.errors import ValidationError
from holdfast.wire.mismatch import say_mismatch, split_path

CONTEXT = "ctx"
"""The name of the parameter that gets the context of the running call."""
_Kind = inspect.Parameter
_TRUE = (str, int, float, bool, type(None))
"""The types that JSON tells apart."""
_PLAIN = (_Kind.POSITIONAL_ONLY, _Kind.POSITIONAL_OR_KEYWORD)


class CallCodec:
    """Reads and writes the calls of one function. Its methods raise ValidationError naming the
    parameter."""

    def __init__(self, function: Callable[..., Any], name: str) -> None:
        self._name = name
        self._signature = read_signature(function)
        self.takes_context = CONTEXT in inspect.signature(function).parameters
        try:
            hints = typing.get_type_hints(function, include_extras=True)
        except Exception as error:
            raise ValidationError(f"the annotations of {name} cannot be read: {error}") from error
        self._parameters = list(self._signature.parameters.values())
        fields, self._unsure = [], dict[str, Any]()
        for parameter in self._parameters:
            hint = hints.get(parameter.name, Any)
            _check_kind(hint, f"parameter {parameter.name!r} of {name}")
            if _is_unsure(hint):
                self._unsure[parameter.name] = _gather(parameter, hint)
            fields.append(_make_field(parameter, hint))
        self._result = result = hints.get("return", Any)
        _check_kind(result, f"the result of {name}")
        arguments = msgspec.defstruct("Arguments", fields, kw_only=True, forbid_unknown_fields=True)
        self._read_args = _make_reader(arguments)
        self._read_result = _make_reader(result)
        self._checks_result = result is not Any
        self._plain = tuple(p.name for p in self._parameters if p.kind in _PLAIN)
        self._is_plain = len(self._plain) == len(self._parameters)

    def encode_args(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        """Return the arguments of one call, checked as the host will check them."""
        try:
            bound = self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise ValidationError(f"{self._name}: {error}") from None
        for field, hint in self._unsure.items():
            lost = _find_lost(bound.arguments.get(field), hint)
            if lost:
                raise ValidationError(
                    f"argument {field!r} of {self._name}: {lost}; annotate the parameter with its "
                    f"type, as `{field}: bytes` or `{field}: dict[int, str]`",
                    field=field,
                )
        text = self._write(bound.arguments)
        self.decode_args(text)
        return text

    def _write(self, arguments: dict[str, Any]) -> str:
        try:
            return write_value(arguments, _write_hook)
        except (TypeError, ValueError, UnicodeEncodeError, OverflowError, RecursionError):
            pass
        for name, value in arguments.items():  # find the argument at fault
            try:
                write_value(value, _write_hook)
            except (TypeError, ValueError, OverflowError, RecursionError) as error:
                raise ValidationError(
                    f"argument {name!r} of {self._name} cannot be sent: {error}", field=name
                ) from None
        raise ValidationError(f"the arguments of {self._name} cannot be sent")

    def decode_args(self, text: str) -> tuple[list[Any], dict[str, Any]]:
        """Return the arguments to call the function with."""
        try:
            found = self._read_args(text)
        except msgspec.DecodeError as error:
            said, field = split_path(str(error))
            what = f"argument {field!r}" if field else "the arguments"
            raise ValidationError(
                f"{what} of {self._name}: {say_mismatch(said)}", field=field or None
            ) from None
        if self._is_plain:
            return [getattr(found, name) for name in self._plain], {}
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        for parameter in self._parameters:
            value = getattr(found, parameter.name)
            if parameter.kind in _PLAIN:
                args.append(value)
            elif parameter.kind is _Kind.VAR_POSITIONAL:
                args.extend(value)
            elif parameter.kind is _Kind.VAR_KEYWORD:
                kwargs |= value
            else:
                kwargs[parameter.name] = value
        return args, kwargs

    def encode_result(self, value: Any) -> str:
        """Return a result, checked against the annotation."""
        lost = _find_lost(value, self._result) if _is_unsure(self._result) else ""
        if lost:
            raise ValidationError(
                f"the result of {self._name}: {lost}; annotate the function with the type of its "
                "result, as `-> bytes` or `-> tuple[int, int]`"
            )
        try:
            text = write_value(value, _write_hook)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise ValidationError(f"the result of {self._name} cannot be kept: {error}") from None
        if self._checks_result:
            self.decode_result(text)
        return text

    def decode_result(self, text: str) -> Any:
        """Return a result of the annotated type."""
        try:
            return self._read_result(text)
        except msgspec.DecodeError as error:
            said, field = split_path(str(error))
            where = f" at {field}" if field else ""
            sentence = f"the result of {self._name}{where}: {say_mismatch(said)}"
            raise ValidationError(sentence) from None


def _make_reader(kind: Any) -> Callable[[str], Any]:
    decode = msgspec.json.Decoder(kind, dec_hook=_read_hook).decode
    return lambda text: read_value(text, kind, decode, _read_hook)


def read_signature(function: Callable[..., Any]) -> inspect.Signature:
    """Return the signature as callers see it: without the parameter `ctx`, which is filled in."""
    signature = inspect.signature(function)
    shown = [each for each in signature.parameters.values() if each.name != CONTEXT]
    return signature.replace(parameters=shown)


def _make_field(parameter: inspect.Parameter, hint: Any) -> tuple[str, Any, Any]:
    if parameter.kind is _Kind.VAR_POSITIONAL:
        return parameter.name, list[hint], msgspec.field(default_factory=list)
    if parameter.kind is _Kind.VAR_KEYWORD:
        return parameter.name, dict[str, hint], msgspec.field(default_factory=dict)
    if parameter.default is parameter.empty:
        return parameter.name, hint, msgspec.field()
    default = parameter.default
    return parameter.name, hint, msgspec.field(default_factory=lambda: default)


def _gather(parameter: inspect.Parameter, hint: Any) -> Any:
    """Return the type of a parameter's value as it is bound."""
    if parameter.kind is _Kind.VAR_POSITIONAL:
        return list[hint]
    return dict[str, hint] if parameter.kind is _Kind.VAR_KEYWORD else hint


def _is_unsure(hint: Any) -> bool:
    """Return whether an annotation leaves open what type a value has, somewhere in it."""
    if hint is Any or hint in (list, tuple, set, frozenset, dict):
        return True
    return any(map(_is_unsure, typing.get_args(hint)))


def _find_lost(value: Any, hint: Any) -> str:
    """Return why a value would arrive as another than it is, because an annotation leaves its type
    open; "" where it arrives as it is (CODEC-1)."""
    origin, of = typing.get_origin(hint) or hint, typing.get_args(hint)
    if origin in (list, set, frozenset, tuple) and isinstance(value, (list, set, frozenset, tuple)):
        each_own = origin is tuple and of and of[-1] is not ...
        inner = of if each_own else (of[:1] or (Any,)) * len(value)
        return _say_first(_find_lost(*pair) for pair in zip(value, inner, strict=False))
    if origin is dict and isinstance(value, dict):
        key, each = of or (Any, Any)
        if key is Any and (lost := _find_lost_key(value)):
            return lost
        return _say_first(_find_lost(one, each) for one in value.values())
    if hint is not Any or type(value) in _TRUE:
        return ""
    if type(value) is list:
        return _say_first(_find_lost(one, Any) for one in value)
    if type(value) is dict:
        return _find_lost_key(value) or _say_first(_find_lost(one, Any) for one in value.values())
    return f"a {type(value).__qualname__} would not arrive as one, because no annotation names it"


def _find_lost_key(value: dict[Any, Any]) -> str:
    kinds = (type(key).__qualname__ for key in value if type(key) is not str)
    kind = next(kinds, "")
    return f"a dict's key of type {kind} would arrive as text" if kind else ""


def _say_first(found: Iterator[str]) -> str:
    return next(filter(None, found), "")


def _check_kind(hint: Any, what: str) -> None:
    """Refuse an annotation that no JSON value fits."""
    try:
        info = msgspec.inspect.type_info(hint)
    except Exception as error:
        raise ValidationError(f"{what} has an annotation that cannot be used: {error}") from error
    for kind in _walk(info, set()):
        if isinstance(kind, msgspec.inspect.CustomType) and not _is_path(kind.cls):
            name = f"{kind.cls.__module__}.{kind.cls.__qualname__}"
            raise ValidationError(
                f"{what} is annotated {name}, which has no JSON form; use numbers, text, bytes, "
                "lists, dicts, dataclasses or structs, and hand large data on as a file or bytes"
            )


def _walk(info: Any, seen: set[int]) -> Iterator[Any]:
    """Yield every type inside a type."""
    if id(info) in seen:
        return
    seen.add(id(info))
    yield info
    for name in getattr(info, "__struct_fields__", ()):
        value = getattr(info, name)
        for part in value if isinstance(value, tuple) else (value,):
            if isinstance(part, (msgspec.inspect.Type, msgspec.inspect.Field)):
                yield from _walk(part, seen)


def _is_path(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, PurePath)


def _write_hook(value: Any) -> Any:
    if isinstance(value, PurePath):
        return str(value)
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    raise TypeError(f"{kind} has no JSON form; hand it on as a file, or as bytes")


def _read_hook(kind: type[Any], value: Any) -> Any:
    if _is_path(kind) and isinstance(value, str):
        return kind(value) if kind is not PurePath else Path(value)
    raise TypeError(f"a {kind.__qualname__} cannot be made of {type(value).__qualname__}")
