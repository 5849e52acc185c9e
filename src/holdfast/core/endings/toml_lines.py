"""Find the line of each rule and field in a TOML text, because `tomllib` gives lines only with
syntax errors."""

import re
from collections.abc import Iterator, Mapping

import msgspec

_HEADER = re.compile(r"""\s*\[\[\s*(?:rule|"rule"|'rule')\s*\]\]""")
_OTHER_HEADER = re.compile(r"\s*\[")
_KEY = re.compile(r"""\s*(?:([A-Za-z0-9_-]+)|"([^"\\]*)"|'([^']*)')\s*[.=]""")
_TABLE_KEY = re.compile(r"""\s*\[\[?\s*(?:([A-Za-z0-9_-]+)|"([^"\\]*)"|'([^']*)')""")


class LineMap(msgspec.Struct, frozen=True):
    """Line numbers in a TOML text. top: key → line, for keys outside any rule. tables: for each
    rule, its first line and the lines of its fields."""

    top: Mapping[str, int]
    tables: tuple[tuple[int, Mapping[str, int]], ...]

    def line_of(self, table: int, field: str | None = None) -> int:
        """Return the line of a field, or of its rule where the field stands in an inline table."""
        if table >= len(self.tables):
            return self.top.get("rule", 1)
        begin, fields = self.tables[table]
        return fields.get(field or "", begin)


def find_lines(text: str) -> LineMap:
    """Read the lines of a text that `tomllib` could read."""
    top: dict[str, int] = {}
    tables: list[tuple[int, dict[str, int]]] = []
    inside: dict[str, int] | None = top
    for number, line in _outer_lines(text):
        if _HEADER.match(line):
            inside = {}
            tables.append((number, inside))
        elif _OTHER_HEADER.match(line):
            inside = None
            named = _TABLE_KEY.match(line)
            if named is not None:
                top.setdefault(next(filter(None, named.groups()), ""), number)
        elif inside is not None and (found := _KEY.match(line)) is not None:
            inside.setdefault(next(filter(None, found.groups()), ""), number)
    return LineMap(top, tuple(tables))


def _outer_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield the lines, numbered from 1, that do not begin within a string or list of several lines."""
    quote, depth = "", 0
    for number, line in enumerate(text.split("\n"), 1):
        if not quote and not depth:
            yield number, line
            if _OTHER_HEADER.match(line):
                continue  # its brackets are no list's
        quote, depth = _scan(line, quote, depth)


def _scan(line: str, quote: str, depth: int) -> tuple[str, int]:
    """Return which string and how many brackets are open at the end of the line."""
    at = 0
    while at < len(line):
        if quote:
            if line[at] == "\\" and quote[0] == '"':
                at += 2
            elif line.startswith(quote, at):
                at += len(quote)
                # Up to two more belong to the string.
                while len(quote) == 3 and line.startswith(quote[0], at):
                    at += 1
                quote = ""
            else:
                at += 1
        elif line[at] == "#":
            break
        elif line[at] in "\"'":
            quote = line[at] * 3 if line.startswith(line[at] * 3, at) else line[at]
            at += len(quote)
        else:
            depth += {"[": 1, "{": 1, "]": -1, "}": -1}.get(line[at], 0)
            at += 1
    return (quote if len(quote) == 3 else ""), depth
