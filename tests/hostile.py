"""Messages made up from the types of the wire: whole ones, and ones in which a few leaves are what no
sender means: numbers over every column and clock, NaN, NUL characters, lone surrogates, twins.

A message is built from its type alone, so that a new field is tried without a word here.
"""

from __future__ import annotations

import copy
import enum
import functools
import random
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import inspect

INTS = [-1, 0, 1, -(2**31) - 1, 2**31 - 1, 2**31, 2**32, 2**53, 2**62, 2**63 - 1, 2**63, 2**64 - 1, -(2**63)]  # fmt: skip
FLOATS = [-1.0, -0.0, 1e-320, 1e15, 9e15, 3e9, 1e18, 1e308, -1e308, 253402300800.0]
TEXTS = [
    "", "\x00", "a\x00b", "💥", "é" * 130, "x" * 300, "x" * 5000, "x" * 70_000, "../../etc/passwd", "'; drop table jobs; --",
    "%s%n%x", "\u202eabc", "null", "NaN", "-1", "\r\nX: y", "a:b:c", "[" * 5000, "{}", "\ufffe", "1" * 4400, " ", "@last",
]  # fmt: skip
PLAIN = ["a", "word", "module:name", "/a/path", "x" * 20, "2", "0 4 * * *", "key=value", "0" * 64]
ODDS: list[Any] = [None, True, [], {}, [[]], {"": None}, "odd", -7, 0.5]
# What only the bytes of a format can say.
JSON_RAW = [b"1e999", b"-1e999", b"NaN", b"Infinity", b"1" + b"0" * 400, b'"\\ud800"', b'"\xed\xa0\x80"', b"[" * 9000 + b"]" * 9000, b"-0", b"1.0", b'"\xff"']  # fmt: skip
PACK_RAW = [
    msgspec.msgpack.encode(float("nan")), msgspec.msgpack.encode(float("inf")), msgspec.msgpack.encode(float("-inf")),
    b"\xa3\xed\xa0\x80", b"\xa1\xff", b"\xc1", b"\xc7\x00\x05", b"\xd4\x01\x00", b"\xdd\xff\xff\xff\xff", b"\xcf" + b"\xff" * 8,
    b"\xd3\x80" + b"\x00" * 7, b"\x91" * 9000 + b"\xc0",
]  # fmt: skip


class Maker:
    """Makes values of one kind of message. known: values by a field's name, which are mostly taken
    where a field has that name, so that messages reach what is there. always: fields that are mostly
    given, though they need not be. `name[]` in `known` is for a whole list, `name` for its items."""

    def __init__(
        self,
        seed: int,
        known: Mapping[str, Sequence[Any]] | None = None,
        always: Collection[str] = (),
    ) -> None:
        self._always = always
        self.random = random.Random(seed)
        self._known = known or {}
        self.packed = False

    def encode_json(self, kind: Any) -> bytes:
        """Return a message of `kind` as JSON, mostly with a few hostile leaves."""
        self.packed = False
        return msgspec.json.encode(self._spoil(self.make(kind)))

    def encode_packed(self, kind: Any) -> bytes:
        """Return the same as msgpack."""
        self.packed = True
        return msgspec.msgpack.encode(self._spoil(self.make(kind)))

    def pick(self, items: Sequence[Any]) -> Any:
        return items[self.random.randrange(len(items))]

    def make(self, kind: Any, name: str = "", depth: int = 0) -> Any:
        """Return builtins that fit `kind` (a type, or one of msgspec's)."""
        if not isinstance(kind, inspect.Type):
            kind = _inspect(kind)
        listed = isinstance(kind, inspect.ListType | inspect.VarTupleType)
        known = self._known.get(f"{name}[]" if listed else name)
        if known and self.random.random() < 0.9:
            return copy.deepcopy(self.pick(known))  # it may be spoiled
        return self._make(kind, name, depth)

    def _make(self, kind: Any, name: str, depth: int) -> Any:
        rare = depth > 6
        match kind:
            case inspect.StructType():
                return self._make_struct(kind, depth)
            case inspect.UnionType():
                kinds = [k for k in kind.types if not (rare and isinstance(k, inspect.StructType))]
                return self._make(self.pick(kinds or list(kind.types)), name, depth)
            case inspect.ListType() | inspect.VarTupleType() | inspect.SetType() | inspect.FrozenSetType():  # fmt: skip
                low, high = kind.min_length or 0, kind.max_length
                count = low if rare else max(low, self.pick([0, 1, 1, 2, 3]))
                count = count if high is None else min(count, high)
                return [self.make(kind.item_type, name, depth + 1) for _ in range(count)]
            case inspect.TupleType():
                return [self.make(each, name, depth + 1) for each in kind.item_types]
            case inspect.DictType():
                count = 0 if rare else self.pick([0, 1, 2])
                return {
                    str(self.make(kind.key_type, "", depth + 1)): self.make(
                        kind.value_type, "", depth + 1
                    )
                    for _ in range(count)
                }
            case inspect.IntType():
                return self._make_int(kind)
            case inspect.FloatType():
                low = kind.ge if kind.ge is not None else kind.gt
                high = kind.le if kind.le is not None else kind.lt
                edges = [e for e in (kind.ge, kind.le, 1.0, 0.5, 30.0) if e is not None]
                fits = [
                    e for e in edges if (low is None or e > low) and (high is None or e <= high)
                ]
                return float(self.pick(fits or [0.0]))
            case inspect.StrType():
                return self._make_text(kind)
            case inspect.BytesType():
                data = self.pick([b"", b"x", b"a line\n", b"\x00\xff" * 50])
                return data if self.packed else ""
            case inspect.BoolType():
                return self.pick([True, False])
            case inspect.NoneType():
                return None
            case inspect.LiteralType():
                return self.pick(kind.values)
            case inspect.EnumType():
                word: enum.Enum = self.pick(list(kind.cls))
                return word.value
            case inspect.DateTimeType():
                return self.pick(["2026-01-01T00:00:00Z", "0001-01-01T00:00:00Z"])
            case inspect.RawType():
                return self.pick([1, "x", None])
            case _:
                return self.pick([1, "x", None, {"a": 1}, [1.5]])

    def _make_struct(self, kind: inspect.StructType, depth: int) -> Any:
        # Few fields make most messages whole, because fields that rule each other out are refused.
        share = self.pick([0.0, 0.05, 0.1, 0.3, 0.6]) if depth < 3 else 0.1
        fields = [
            (f.encode_name, f)
            for f in kind.fields
            if kind.array_like
            or f.required
            or self.random.random() < share
            or f.encode_name in self._always
        ]
        if kind.array_like:
            tag = [] if kind.tag is None else [kind.tag]
            return tag + [self.make(f.type, name, depth + 1) for name, f in fields]
        made = {name: self.make(f.type, name, depth + 1) for name, f in fields}
        if kind.tag_field is not None:
            made[kind.tag_field] = kind.tag
        return made

    def _make_int(self, kind: inspect.IntType) -> int:
        low = kind.ge if kind.ge is not None else -(2**63) if kind.gt is None else kind.gt + 1
        high = kind.le if kind.le is not None else 2**63 - 1 if kind.lt is None else kind.lt - 1
        edges = [n for n in (0, 1, 2, 3, low, high) if low <= n <= high]
        return int(self.pick(edges))

    def _make_text(self, kind: inspect.StrType) -> str:
        low, high = kind.min_length or 0, kind.max_length or 64
        fits = [
            text
            for text in (*PLAIN, "a" * low, "a" * min(high, 300))
            if low <= len(text) <= high and re.search(kind.pattern or "", text)
        ]
        found: str = self.pick(fits or ["a"])
        return found

    # ---- spoiling

    def _spoil(self, value: Any) -> Any:
        spots = list(_list_spots(value))
        for _ in range(self.pick([0, 0, 1, 1, 1, 2])):
            if not spots or self.random.random() < 0.02:
                return self._make_hostile(value)
            holder, key = self.pick(spots)
            if isinstance(holder, list) and key >= len(holder):
                continue
            if isinstance(holder, dict) and key not in holder:
                continue
            self._spoil_at(holder, key)
        return value

    def _spoil_at(self, holder: Any, key: Any) -> None:
        chance = self.random.random()
        if chance < 0.70:
            holder[key] = self._make_hostile(holder[key])
        elif chance < 0.80:
            del holder[key]
        elif isinstance(holder, list):
            holder.append(holder[key])
        elif chance < 0.9:
            holder[self.pick(TEXTS)[:5000]] = holder.pop(key)
        else:
            holder["unknown"] = holder[key]

    def _make_hostile(self, value: Any) -> Any:
        if self.random.random() < 0.12:
            return msgspec.Raw(self.pick(PACK_RAW if self.packed else JSON_RAW))
        if isinstance(value, bool) or self.random.random() < 0.15:
            return self.pick(ODDS)
        if isinstance(value, int):
            return self.pick(INTS)
        if isinstance(value, float):
            return self.pick(FLOATS)
        if isinstance(value, str):
            return self.pick(TEXTS)
        return self.pick([*ODDS, *INTS, *FLOATS, *TEXTS])


def _list_spots(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield every place of a value that can be changed: its holder and its key there."""
    if isinstance(value, dict):
        pairs: Any = list(value.items())
    elif isinstance(value, list):
        pairs = list(enumerate(value))
    else:
        return
    for key, inner in pairs:
        yield value, key
        yield from _list_spots(inner)


@functools.cache
def _inspect_cached(kind: Any) -> inspect.Type:
    return inspect.type_info(kind)


def _inspect(kind: Any) -> inspect.Type:
    return _inspect_cached(kind)
