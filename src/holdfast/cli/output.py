"""Draw what a person reads: tables, facts, ages and colours."""

from __future__ import annotations

import os
import re
import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any
from unicodedata import combining, east_asian_width

from holdfast.core.states import HUES, Hue
from holdfast.core.words import split_span

DEFAULT_COLUMNS = 80

# Control characters, except tabs, line ends and our colours; also those that reverse the writing.
_CONTROL = re.compile(
    r"(?!\x1b\[(?:0|1|2|2;32|3[1-6])m)[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]"
)

_BOLD, _RED, _GREEN, _YELLOW, _BLUE, _CYAN = 1, 31, 32, 33, 34, 36
_CODES = {
    Hue.WAITING: "",  # grey on the pages; plain here, where some terminals cannot show a readable grey
    Hue.STARTING: str(_BLUE),
    Hue.RUNNING: str(_GREEN),
    Hue.DRAINING: str(_YELLOW),
    Hue.FAILED: str(_RED),
    Hue.DONE: f"2;{_GREEN}",
    Hue.GONE: "2",
}


def print_line(text: str, *, err: bool = False) -> None:
    """Print text and a line end at once, without its colours where no terminal shows them."""
    stream = sys.stderr if err else sys.stdout
    stream.write((text if stream.isatty() else unstyle(text)) + "\n")
    stream.flush()


def unstyle(text: str) -> str:
    """Return text without its colours."""
    return re.sub(r"\x1b\[[;?0-9]*[a-zA-Z]", "", text) if "\x1b" in text else text


def style(text: str, code: int | str) -> str:
    """Return text in a colour, or bold, where the output shows colours."""
    return _style(text, code) if colourful() else text


def _style(text: str, code: int | str) -> str:
    return f"\x1b[{code}m{text}\x1b[0m"


def print_text(text: str, *, err: bool = False) -> None:
    """Print text for a person.

    Its control characters are replaced, except the colours of `paint`: they come from a job's name
    or log, and the terminal would obey them.
    """
    print_line(printable(text), err=err)


def printable(text: str) -> str:
    """Replace control characters that a terminal would obey, except the colours of `paint`."""
    return _CONTROL.sub("\ufffd", text)


def note(message: str) -> None:
    """Print a notice on stderr."""
    print_text(f"holdfast: {message}", err=True)


def colourful(stream: Any = None) -> bool:
    """Say whether to use colours: on a terminal, unless NO_COLOR forbids them."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return bool((stream or sys.stdout).isatty())


def paint(word: str) -> str:
    """Return a state's word in its colour, which is the pages' (`core.states.HUES`)."""
    hue = HUES.get(word.strip())
    code = "" if hue is None else _CODES[hue]
    return style(word, code) if code else word


def age(moment: datetime | None, now: datetime | None = None) -> str:
    """Return the age of a moment as `span` writes it; - for None."""
    if moment is None:
        return "-"
    return split_span(((now or datetime.now(UTC)) - moment).total_seconds())


def say_state(state: str, text: str) -> str:
    """Write a state and a sentence about it; the state's word is not repeated."""
    for said in (state, f"it {state}", f"it was {state}"):
        if text == said or text.startswith((f"{said} ", f"{said}:")):
            return paint(state) + text[len(said) :]
    return f"{paint(state)}: {text}" if text else paint(state)


def columns() -> int:
    """Return the width of the output. A pipe or a file has none and gets every text whole, unless
    COLUMNS is set, as `watch` does."""
    if not sys.stdout.isatty() and not os.environ.get("COLUMNS"):
        return sys.maxsize
    return shutil.get_terminal_size((DEFAULT_COLUMNS, 24)).columns


def table(
    headers: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    elastic: int = -1,
    width: int | None = None,
) -> str:
    """Draw rows in columns. A line that is too long narrows its `elastic` column first, ids never."""
    cells = [[" ".join(cell.split()) for cell in row] for row in rows]
    lines = [list(headers), *cells]
    widths = [max(count_columns(line[i]) for line in lines) for i in range(len(headers))]
    _squeeze(widths, headers, elastic % len(headers), (width or columns()) - 2 * (len(headers) - 1))
    out = []
    for number, line in enumerate(lines):
        words = [_fit(cell, widths[i]) for i, cell in enumerate(line)]
        if number:
            states = [header in ("STATE", "OUTCOME") for header in headers]
            words = [paint(w) if state else w for w, state in zip(words, states, strict=True)]
        elif colourful():
            words = [_style(word, _BOLD) for word in words]
        out.append("  ".join(words).rstrip())
    return "\n".join(out)


def table_and_texts(
    headers: Sequence[str], rows: Iterable[tuple[Sequence[str], str]], heading: str
) -> str:
    """Draw rows in columns, and the text of each, which is never cut: beside its row where there is
    room for all of them, as in a pipe, or under it."""
    found = [(row, " ".join(text.split())) for row, text in rows]
    head, *lines = table(headers, [row for row, _ in found], width=sys.maxsize).splitlines()
    used = max(count_columns(unstyle(line)) for line in (head, *lines)) + 2
    if used + max((count_columns(text) for _, text in found), default=0) <= columns():
        return table((*headers, heading), [(*row, text or "-") for row, text in found])
    head, *lines = table(headers, [row for row, _ in found]).splitlines()
    wraps = textwrap.TextWrapper(columns(), initial_indent="  ", subsequent_indent="  ")
    out = [head]
    for line, (_, text) in zip(lines, found, strict=True):
        out += [line, *wraps.wrap(text)]
    return "\n".join(out)


def _squeeze(widths: list[int], headers: Sequence[str], elastic: int, room: int) -> None:
    """Bring `widths` down to `room`: the elastic column first, then the widest, never the first."""
    least = [max(len(header), 8) for header in headers]
    over = sum(widths) - room
    if over > 0:
        widths[elastic] -= min(over, max(0, widths[elastic] - least[elastic] - 4))
    while sum(widths) > room:
        spare = [i for i in range(1, len(widths)) if widths[i] > least[i]]
        if not spare:
            return
        widths[max(spare, key=lambda i: widths[i] - least[i])] -= 1


def _fit(text: str, width: int) -> str:
    text = shorten(text, width)
    return text + " " * (width - count_columns(text))


def shorten(text: str, width: int) -> str:
    """Return `text` in at most `width` columns, with … in place of the rest."""
    if count_columns(text) <= width:
        return text
    while count_columns(text) > width - 1:
        text = text[: width - 1] if text.isascii() else text[:-1]
    return text + "…"


def count_columns(text: str) -> int:
    """Count a text's columns: two for a wide East Asian character, none for a combining mark."""
    if text.isascii():
        return len(text)
    return sum(0 if combining(c) else 2 if east_asian_width(c) in "WF" else 1 for c in text)


def facts(pairs: Iterable[tuple[str, str]]) -> str:
    """Write named values, one a line, without the empty ones."""
    kept = [(name, value) for name, value in pairs if value]
    width = max((len(name) for name, _ in kept), default=0)
    return "\n".join(f"{name.ljust(width)}  {value}" for name, value in kept)


def write_stream(stream: str, data: bytes) -> None:
    """Write bytes of a log to stderr, or else to stdout."""
    sink = (sys.stderr if stream == "stderr" else sys.stdout).buffer
    sink.write(data)
    sink.flush()
