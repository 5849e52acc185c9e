"""One line at the end of stderr that is drawn anew in place, where a terminal shows it."""

from __future__ import annotations

import shutil
import sys

from holdfast.cli.output import DEFAULT_COLUMNS, printable, shorten


class LiveLine:
    """A line that changes in place. Other output is written after `clear`. Without a terminal
    nothing is written. is_shown: whether there is one."""

    def __init__(self, *, wanted: bool = True) -> None:
        self.is_shown = wanted and sys.stderr.isatty()
        self._text = ""

    def show(self, text: str) -> None:
        """Put `text` in the place of what the line showed."""
        width = shutil.get_terminal_size((DEFAULT_COLUMNS, 24)).columns
        text = shorten(printable(" ".join(text.split())), width - 1)
        if self.is_shown and text != self._text:
            self._text = text
            self._write(f"\r\x1b[K{text}")

    def clear(self) -> None:
        """Take the line away."""
        if self._text:
            self._text = ""
            self._write("\r\x1b[K")

    def _write(self, text: str) -> None:
        sys.stderr.write(text)
        sys.stderr.flush()
