"""Parameters in the place of `{name}` in a command. Pure.

WORD-1  A value is one word of a shell's line, and never a command: where it holds more than letters,
        digits and a few signs it is quoted for its place. Where no quoting is sure (inside single
        quotes, which may hold another program's text, and after `$(`, a backquote or `<<`) it is
        refused, and its variable does the same. `${name}` is the shell's own.
"""

import re
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from holdfast.errors import ValidationError

_PLACEHOLDER = re.compile(r"(?<!\$)\{(\w+)\}", re.ASCII)
_PLAIN = re.compile(r"[\w./:,@%+=-]+", re.ASCII)
_SHELLS = re.compile(r"(?:.*/)?(?:sh|bash|dash|zsh|ksh)")
_SHELL_FLAG = re.compile(r"-[a-z]*c")
_NESTED = re.compile(r"`|\$\(|<<")
BARE, DOUBLE, SURE = "", '"', ("", '"')


class NamePlace(msgspec.Struct, frozen=True):
    """The place of a parameter's `{name}` in a line. start, end: its offsets in characters.
    quote: the quotes around it: empty, `"`, `'`, or "nested" (inside `$(`, a backquote or `<<`)."""

    start: int
    end: int
    name: str
    quote: str


def name_variable(param: str) -> str:
    """Return the variable that holds a parameter: `lr` is in HOLDFAST_PARAM_LR."""
    return "HOLDFAST_PARAM_" + re.sub(r"\W", "_", param, flags=re.ASCII).upper()


def fill_words(argv: Sequence[str], values: Mapping[str, str]) -> tuple[str, ...]:
    """Return the words of a command with their parameters; the line that a shell is given after `-c`
    is filled as a line. Raises ValidationError."""
    line = find_line(argv)
    return tuple(
        fill_line(word, values) if at == line else _fill(word, values)
        for at, word in enumerate(argv)
    )


def find_line(argv: Sequence[str]) -> int | None:
    """Return the position of the word that a shell runs as a line (the one after `-c`), None where
    the program is no shell."""
    if not argv or not _SHELLS.fullmatch(argv[0]):
        return None
    for at, word in enumerate(argv[1:-1], 1):
        if _SHELL_FLAG.fullmatch(word):
            return at + 1
        if not word.startswith("-"):
            return None
    return None


def _fill(text: str, values: Mapping[str, str]) -> str:
    """Put parameters in the place of their names in braces; other braces stay as they are."""
    if not values or "{" not in text:
        return text
    return _PLACEHOLDER.sub(lambda match: values.get(match[1], match[0]), text)


def fill_line(line: str, values: Mapping[str, str]) -> str:
    """Return a shell's line with its parameters (WORD-1). Raises ValidationError."""
    parts, at = [], 0
    for place in find_places(line):
        if place.name in values:
            parts += [line[at : place.start], quote_value(place, values[place.name])]
            at = place.end
    return "".join([*parts, line[at:]])


def quote_value(place: NamePlace, value: str) -> str:
    """Return a value as it stands in a line. Raises ValidationError where no quoting is sure."""
    if _PLAIN.fullmatch(value):
        return value
    if place.quote not in SURE:
        where = "inside single quotes" if place.quote == "'" else "after `$(`, a backquote or `<<`"
        raise ValidationError(
            f"the value {value[:60]!r} of {place.name} cannot be put into the shell line for sure, "
            f"because {{{place.name}}} stands {where}: write ${name_variable(place.name)} there, the "
            "variable that holds it",
            field="shell",
        )
    if place.quote == DOUBLE:
        return re.sub(r'([\\$`"])', r"\\\1", value)
    return "'" + value.replace("'", "'\"'\"'") + "'"


def find_places(line: str) -> Iterator[NamePlace]:
    """Yield the place of each name in braces in a line, with the quotes around it."""
    quote, at, nested = BARE, 0, False
    while at < len(line):
        found = _PLACEHOLDER.match(line, at)
        if found is not None:
            yield NamePlace(at, found.end(), found[1], "nested" if nested else quote)
            at = found.end()
            continue
        char = line[at]
        if quote != "'" and _NESTED.match(line, at):
            nested = True
        if char == "\\" and quote != "'":
            at += 1
        elif char == quote:
            quote = BARE
        elif quote == BARE and char in "'\"":
            quote = char
        elif quote == BARE and char == "#" and (at == 0 or line[at - 1] in " \t\n;&|()"):
            end = line.find("\n", at)
            at = len(line) if end < 0 else end
        at += 1
