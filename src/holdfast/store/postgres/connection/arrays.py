"""Lists as arrays of PostgreSQL, written at once: most of what the hot path sends is columns."""

from typing import Any

from psycopg.abc import Buffer
from psycopg.adapt import PyFormat
from psycopg.types.array import ListDumper

_NOTHING = type(None)
_SPOKEN_ALIKE = [{kind, *other} for kind in (int, float, bool) for other in ((), (_NOTHING,))]
_SPOKEN_ALIKE.append({_NOTHING})
"""Elements that Python writes as PostgreSQL reads them, but for None."""
_NUL = "\x00"  # stands between texts, because no text of PostgreSQL holds it


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
        kinds = set(map(type, obj))
        if kinds == {str}:
            text = _NUL.join(obj)
            if text.count(_NUL) == len(obj) - 1:  # a NUL in a text is refused
                text = text.replace("\\", "\\\\").replace('"', '\\"').replace(_NUL, '","')
                return f'{{"{text}"}}'.encode()
        elif kinds in _SPOKEN_ALIKE:
            return f"{{{str(obj)[1:-1].replace('None', 'NULL')}}}".encode()
        return super().dump(obj)
