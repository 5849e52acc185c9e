"""Lists as arrays of PostgreSQL, written at once: most of what the hot path sends is columns."""

from collections.abc import Callable
from typing import Any

from psycopg.abc import Buffer
from psycopg.adapt import PyFormat
from psycopg.types.array import ListDumper

_NOTHING = type(None)
_SPOKEN_ALIKE = [{kind, *other} for kind in (int, float, bool) for other in ((), (_NOTHING,))]
_SPOKEN_ALIKE.append({_NOTHING})
"""Elements that Python writes as PostgreSQL reads them, but for None."""
_NUL = "\x00"  # stands between texts, because no text of PostgreSQL holds it
_FEW = 8


class ColumnDumper(ListDumper):
    """Writes a list of texts or numbers by one join; the driver's own goes element by element, in
    five to ten times the time. What is not plain is left to that.

    Its type is the statement's to say, as it is for an empty list anyway: the driver would look
    through every list, twice, and prepare a statement anew for small numbers and for large ones.
    """

    def get_key(self, obj: list[Any], format: PyFormat) -> type:
        """Return the same for all lists."""
        return self.cls

    def upgrade(self, obj: list[Any], format: PyFormat) -> "ColumnDumper":
        """Return this one, for all lists."""
        return self

    def dump(self, obj: list[Any]) -> Buffer | None:
        """Return the array's text."""
        if len(obj) > _FEW and obj.count(obj[0]) == len(obj):  # a host's name, for all its tasks
            word = self.dump(obj[:1])
            return word and b"{%b}" % b",".join([bytes(word)[1:-1]] * len(obj))
        kinds = set(map(type, obj))
        write = _write_texts if kinds == {str} else _write_plain if kinds in _SPOKEN_ALIKE else None
        if write is None:
            return super().dump(obj)
        text = _write_repeated(obj, write) or write(obj)
        return super().dump(obj) if text is None else f"{{{text}}}".encode()


def _write_repeated(obj: list[Any], write: Callable[[list[Any]], str | None]) -> str | None:
    """Return the elements of an array that repeats a few; None for another."""
    if len(obj) <= _FEW:
        return None
    if len(set(obj[: _FEW + 1])) > _FEW or len(few := set(obj)) > _FEW:
        return None
    words = {value: write([value]) for value in few}
    return None if None in words.values() else ",".join([words[value] for value in obj])  # type: ignore[misc]  # no word is None


def _write_plain(values: list[Any]) -> str | None:
    return str(values)[1:-1].replace("None", "NULL")


def _write_texts(texts: list[str]) -> str | None:
    """Return the elements of an array; None where one cannot be written so."""
    if '"' not in texts[0]:  # as in names and ids
        text = '","'.join(texts)
        plain = text.count('"') == 2 * (len(texts) - 1) and "\\" not in text
        if plain and _NUL not in text:
            return f'"{text}"'
    text = _NUL.join(texts)
    if text.count(_NUL) >= len(texts):  # a NUL in a text is refused
        return None
    text = text.replace("\\", "\\\\").replace('"', '\\"').replace(_NUL, '","')
    return f'"{text}"'
