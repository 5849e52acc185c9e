"""A text that is made and drawn anew every two seconds, until q or Ctrl-C."""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING

from holdfast.cli.command_io import CommandIO
from holdfast.cli.live.screen import Screen, ScreenEnded
from holdfast.cli.output import count_columns, printable, shorten, unstyle
from holdfast.errors import HoldfastError

if TYPE_CHECKING:
    from holdfast.client import Client

LOOK_SECONDS = 2.0


def watch(io: CommandIO, make: Callable[[Client], str]) -> None:
    """Show the text that `make` returns, and make it again and again; an error is shown below the
    last text."""
    text = "looking…"
    try:
        with Screen() as screen, io.client() as client:
            while True:
                said = f"{datetime.now():%H:%M:%S}, every {LOOK_SECONDS:g} s; q leaves"
                try:
                    text = make(client)
                except HoldfastError as error:
                    said = f"! {error}"
                columns, lines = screen.size
                screen.draw(fit_lines(text, said, columns, lines))
                if screen.read_key(LOOK_SECONDS) in ("q", "escape"):
                    return
    except ScreenEnded as end:
        sys.exit(128 + end.number)


def fit_lines(text: str, said: str, columns: int, lines: int) -> list[str]:
    """Return the beginning of a text that fits on a screen, with the message `said` on the last
    line."""
    found = text.splitlines()
    room = max(0, lines - 1)
    if len(found) > room:
        more = len(found) - room + 1
        found = [*found[: max(0, room - 1)], f"… and {more} more lines"][:room]
    found += [""] * (room - len(found))
    return [_cut(line, columns) for line in (*found, said)]


def _cut(line: str, columns: int) -> str:
    line = printable(line)
    whole = count_columns(unstyle(line)) <= columns
    return line if whole else shorten(unstyle(line), columns)
