"""One line at the end of stderr that is drawn anew in place, where a terminal shows it."""

from __future__ import annotations

import shutil
import sys

from holdfast.cli.output import DEFAULT_COLUMNS, printable, shorten


class LiveLine:
    """A line that changes in place. Other output is written after `clear`. Without a terminal
    nothing is written. is_shown: True where there is a terminal for the line."""

    def __init__(self, *, wanted: bool = True) -> None:
        self.is_shown = wanted and sys.stderr.isatty()
        self._text = ""

    def show(self, text: str) -> None:
        """Show `text` in place of the line's earlier text."""
        width = shutil.get_terminal_size((DEFAULT_COLUMNS, 24)).columns
        text = shorten(printable(" ".join(text.split())), width - 1)
        if self.is_shown and text != self._text:
            self._text = text
            self._write(f"\r\x1b[K{text}")

    def clear(self) -> None:
        """Remove the line from the terminal."""
        if self._text:
            self._text = ""
            self._write("\r\x1b[K")

    def _write(self, text: str) -> None:
        sys.stderr.write(text)
        sys.stderr.flush()
