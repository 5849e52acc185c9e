"""Turn msgspec's sentence about a value of the wrong type into plain words."""

import ast
import enum
import re
import types
import typing
from collections.abc import Callable
from typing import Any

import msgspec

from holdfast.errors import ValidationError

_KINDS = {
    "str": "text", "int": "a whole number", "float": "a number", "bool": "true or false",
    "array": "a list", "object": "a table of fields", "null": "nothing",
}  # fmt: skip
_PATTERNS = {
    r"^[A-Za-z0-9][A-Za-z0-9._/-]*$(?!\n)": "letters, digits, `.`, `_`, `/` and `-`, a letter or digit first",
    r"^[A-Za-z_][A-Za-z0-9_]*$(?!\n)": "letters, digits and `_`, no digit first",
    r"^[A-Za-z_][\w.-]*:[A-Za-z_][\w.]*$(?!\n)": "a module and a function in it, as `pages:edit`; a module's file "
    "is named with letters, digits, `_` and `-`, no digit first",
    r"^[^\x00-\x1f\x7f]+$(?!\n)": "one line of text without control characters",
    r"^/[^\x00]*$": "an absolute path",
    r"^[A-Za-z0-9][A-Za-z0-9._/:@+-]*$(?!\n)": "an image reference, as docker.io/library/busybox:1.36",
    r"^[\x21-\x7e]+$(?!\n)": "plain characters without spaces",
    r"^[^=]+=": "NAME=VALUE",
}
_STEP = re.compile(r"\[\d+\]|\[\.\.\.\]|[^.\[\]]+")
_PATH = re.compile(r" - at `(?:key` in `)?\$\.?([^`]*)`$")
_WORD_CHARS = 60


def say_mismatch(sentence: str, kind: Any = None, path: str = "") -> str:
    """Return `sentence`, msgspec's without its path, in plain words where its form is known.

    kind, path: the type that was decoded and the field's path in it, to name the words it may be.
    """
    if found := re.fullmatch(r"Expected `str` matching regex (.+)", sentence, re.S):
        return f"must be {_PATTERNS.get(_literal(found[1]), 'written in another way')}"
    if found := re.fullmatch(r"Expected `(\w+)` of length ([<>]=) (\d+)", sentence):
        what = "characters" if found[1] == "str" else "of them"
        many = f"must have at {'most' if found[2] == '<=' else 'least'} {found[3]} {what}"
        return many if found[3] != "1" else "must not be empty"
    if found := re.fullmatch(r"Expected `(?:int|float)` (<=|>=|<|>) (\S+)", sentence):
        number = found[2].removesuffix(".0")
        bounds = {"<=": "at most", ">=": "at least", "<": "less than", ">": "more than"}
        return f"must be {bounds[found[1]]} {number}"
    if found := re.fullmatch(r"Expected `([\w |]+)`, got `(\w+)`", sentence):
        wanted = [_KINDS.get(word, word) for word in found[1].split(" | ") if word != "null"]
        return f"must be {' or '.join(wanted)}, not {_KINDS.get(found[2], found[2])}"
    if found := re.fullmatch(r"Invalid enum value (.+)", sentence, re.S):
        words = words_of(kind, path) if kind is not None else ()
        may = f"must be {' or '.join(words)}, not" if words else "must be another word than"
        return f"{may} {clip(found[1])}"
    if found := re.fullmatch(r"Object contains unknown field `(.*)`", sentence, re.S):
        return f"there is no field {clip(repr(found[1]))}"
    return clip(sentence, 300)


def split_path(text: str) -> tuple[str, str]:
    """Split off the path of the field (`retry.jitter`); for a key, that of its table."""
    found = _PATH.search(text)
    return (text[: found.start()], found[1]) if found else (text, "")


def locate(error: msgspec.ValidationError, value: Any, kind: Any) -> tuple[str, str]:
    """Split an error into its sentence and the path of the wrong value, with the key of a table's
    entry, which msgspec leaves out: `labels["run 7"]`. value: the whole value, as lists, dicts and
    plain values; kind: its type."""
    text = str(error)
    said, path = split_path(text)
    parts = _STEP.findall(path.removesuffix("[...]"))
    if not (path.endswith("[...]") or " - at `key` in `" in text) or "[...]" in "".join(parts):
        return said, path
    table = value
    try:
        for part in parts:
            table = table[int(part[1:-1])] if part.startswith("[") else table[part]
        key = _find_key(table, lambda: str(_refusal(value, kind)) == text)
    except (LookupError, TypeError, ValueError):
        key = None
    return (said, path) if key is None else (said, f'{path.removesuffix("[...]")}["{clip(key)}"]')


def refuse(
    error: msgspec.ValidationError, value: Any, kind: Any, where: str = ""
) -> ValidationError:
    """Return the ValidationError for a wrong value, in plain words and with its path. where: the
    name of the whole value, put in front of the sentence."""
    said, field = locate(error, value, kind)
    sentence = ": ".join(part for part in (where, field, say_mismatch(said, kind, field)) if part)
    return ValidationError(sentence, field=field or None)


def _find_key(table: dict[str, Any], still_refused: Callable[[], bool]) -> str | None:
    """Return the first key of a table that is refused, by halves; the table is left as it was."""
    whole = dict(table)
    suspects = list(whole)
    try:
        while len(suspects) > 1:
            half = suspects[: len(suspects) // 2]
            table.clear()
            table.update((key, whole[key]) for key in half)
            suspects = half if still_refused() else suspects[len(half) :]
    finally:
        table.clear()
        table.update(whole)
    return suspects[0] if suspects else None


def _refusal(value: Any, kind: Any) -> msgspec.ValidationError | None:
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        return error
    return None


def clip(text: str, chars: int = _WORD_CHARS) -> str:
    """Return the beginning of a long text: enough to recognise it."""
    return text if len(text) <= chars else text[: chars - 1] + "…"


def words_of(kind: Any, path: str) -> tuple[str, ...]:
    """Return the words that the field at `path` (`retry.jitter`, `jobs[3].pull`) of `kind` may be."""
    for name in re.findall(r"[A-Za-z_]\w*", path):
        classes = [one for one in _arms(kind) if isinstance(one, type)]
        holder = next((one for one in classes if issubclass(one, msgspec.Struct)), None)
        hints = {} if holder is None else typing.get_type_hints(holder, include_extras=False)
        kind = hints.get(name)
    words: list[str] = []
    for one in _arms(kind):
        if typing.get_origin(one) is typing.Literal:
            words += [str(word) for word in typing.get_args(one)]
        elif isinstance(one, type) and issubclass(one, enum.Enum):
            words += [str(member.value) for member in one]
    return tuple(words)


def _arms(kind: Any) -> list[Any]:
    """Return the types a value may have: those of a union, and a list's items' types."""
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        return [arm for one in typing.get_args(kind) for arm in _arms(one)]
    if typing.get_origin(kind) in (list, tuple):
        return [arm for one in typing.get_args(kind) if one is not Ellipsis for arm in _arms(one)]
    return [kind]


def _literal(text: str) -> str:
    try:
        return str(ast.literal_eval(text))
    except (ValueError, SyntaxError):
        return ""
