"""What commands share: the connection, JSON or a table, ages, colours."""

from __future__ import annotations

import functools
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from holdfast.errors import ValidationError

if TYPE_CHECKING:
    from holdfast.client import Client

PIPED_COLUMNS = 80
# A person waits at the terminal: long enough for a controller that restarts, short enough to be
# told.
RETRY_SECONDS = 3.0

# All but tabs, ends of lines and our own colours; those that turn the direction of writing round,
# too.
_CONTROL = re.compile(
    r"(?!\x1b\[(?:0|1|3[1-6])m)[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]"
)

_COLOURS = {
    "succeeded": "green",
    "running": "cyan",
    "active": "green",
    "failed": "red",
    "error": "red",
    "dead": "red",
    "quarantined": "yellow",
    "draining": "yellow",
    "cancelled": "yellow",
    "waiting": "blue",
}


@dataclass(frozen=True)
class Face:
    """How one command talks: to which controller, and to whom it answers."""

    as_json: bool
    url: str | None = None
    token_file: str | None = None

    def client(self, retry_seconds: float = RETRY_SECONDS) -> Client:
        """A connected client. Raises NoController and ValidationError with what to do."""
        from holdfast.client.synchronous.client import Client

        token = None
        if self.token_file is not None:
            try:
                token = Path(self.token_file).read_text().strip()
            except (OSError, ValueError) as error:
                why = error.strerror if isinstance(error, OSError) else "it is no text"
                raise ValidationError(
                    f"the token file {self.token_file} cannot be read: {why}"
                ) from error
            if not token:
                raise ValidationError(f"the token file {self.token_file} is empty")
        return Client(self.url, token, retry_seconds=retry_seconds)

    def show_json(self, value: Any) -> None:
        """One JSON document on stdout."""
        import msgspec

        text = msgspec.json.format(msgspec.json.encode(value), indent=2)
        click.echo(text.decode())

    def show_json_line(self, value: Any) -> None:
        """One line of JSON on stdout, for streams."""
        import msgspec

        click.echo(msgspec.json.encode(value).decode())

    def show(self, value: Any, text: str) -> None:
        """`value` with `--json`, else the text."""
        if self.as_json:
            self.show_json(value)
        elif text:
            print_text(text)


def talks(function: Callable[..., Any]) -> Callable[..., Any]:
    """Options of a command that talks to a controller; the command gets a `Face` as its first
    argument."""

    @click.option("--json", "as_json", is_flag=True, help="Print JSON.")
    @click.option(
        "--url", metavar="URL", help="The controller; else HOLDFAST_URL, else the nearest `up`."
    )
    @click.option(
        "--token-file", metavar="FILE", help="A file with the token; else HOLDFAST_TOKEN."
    )
    @functools.wraps(function)
    def command(
        *args: Any, as_json: bool, url: str | None, token_file: str | None, **options: Any
    ) -> Any:
        return function(Face(as_json, url, token_file), *args, **options)

    return command


def print_text(text: str, *, err: bool = False) -> None:
    """Text for a person. Control characters in it are other people's (a job's name, the last line
    of its log), and a
    terminal would obey them: only the colours of `paint` go through."""
    click.echo(_CONTROL.sub("\ufffd", text), err=err)


def note(message: str) -> None:
    """A notice on stderr, apart from any output."""
    print_text(f"holdfast: {message}", err=True)


def colourful(stream: Any = None) -> bool:
    """Colours only on a terminal, and not where NO_COLOR forbids them."""
    where = stream or sys.stdout
    return (
        bool(where.isatty()) and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    )


def paint(word: str) -> str:
    """A state's word in its colour."""
    colour = _COLOURS.get(word.strip())
    return click.style(word, fg=colour) if colour and colourful() else word


def age(moment: datetime | None, now: datetime | None = None) -> str:
    """How long ago, in the two characters or so that a table has."""
    if moment is None:
        return "-"
    return span(((now or datetime.now(UTC)) - moment).total_seconds())


def span(seconds: float) -> str:
    """A length of time for people: `850ms`, `12s`, `5m03s`, `2h07m`, `3d04h`."""
    if seconds < 0:
        return f"in {span(-seconds)}"
    if 0 < seconds < 1:
        return f"{seconds * 1000:.0f}ms"
    whole = int(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    if whole < 86_400:
        return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
    return f"{whole // 86_400}d{whole % 86_400 // 3600:02d}h"


def size(count: int) -> str:
    """Bytes for people, in powers of 1024."""
    value = float(count)
    for unit in ("B", "K", "M", "G"):
        if value < 1024:
            return f"{value:.0f}{unit}" if value >= 10 or unit == "B" else f"{value:.1f}{unit}"
        value /= 1024
    return f"{value:.1f}T"


def columns() -> int:
    """How wide the output may be."""
    return (
        shutil.get_terminal_size((PIPED_COLUMNS, 24)).columns
        if sys.stdout.isatty()
        else PIPED_COLUMNS
    )


def table(
    headers: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    elastic: int = -1,
    width: int | None = None,
) -> str:
    """Rows in columns. The `elastic` column gives way first when the line is too long; ids never
    do."""
    cells = [[" ".join(cell.split()) for cell in row] for row in rows]
    lines = [list(headers), *cells]
    widths = [max(count_columns(line[i]) for line in lines) for i in range(len(headers))]
    _squeeze(widths, headers, elastic % len(headers), (width or columns()) - 2 * (len(headers) - 1))
    out = []
    for number, line in enumerate(lines):
        words = [_fit(cell, widths[i]) for i, cell in enumerate(line)]
        if number:
            words = [
                paint(word) if headers[i] in ("STATE", "OUTCOME") else word
                for i, word in enumerate(words)
            ]
        elif colourful():
            words = [click.style(word, bold=True) for word in words]
        out.append("  ".join(words).rstrip())
    return "\n".join(out)


def _squeeze(widths: list[int], headers: Sequence[str], elastic: int, room: int) -> None:
    """Bring `widths` down to `room` in all: the elastic column first, then whichever is widest, but
    never the first."""
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
    """`text` in at most `width` columns, with … for what does not fit."""
    if count_columns(text) <= width:
        return text
    while count_columns(text) > width - 1:
        text = text[: width - 1] if text.isascii() else text[:-1]
    return text + "…"


def count_columns(text: str) -> int:
    """How many columns a terminal gives it: two for the wide characters of East Asia, none for what
    is put on another."""
    if text.isascii():
        return len(text)
    from unicodedata import combining, east_asian_width

    return sum(0 if combining(c) else 2 if east_asian_width(c) in "WF" else 1 for c in text)


def facts(pairs: Iterable[tuple[str, str]]) -> str:
    """Named values, one a line; empty ones are left out."""
    kept = [(name, value) for name, value in pairs if value]
    width = max((len(name) for name, _ in kept), default=0)
    return "\n".join(f"{name.ljust(width)}  {value}" for name, value in kept)
