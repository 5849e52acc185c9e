"""Stdout and stderr of an executor. Before the first output of each call stands a line that names
it, so that the log of the executor can be told apart; a call that prints nothing costs nothing."""

import io
import sys

from holdfast.core.calls.marks import make_mark


class MarkedStream(io.TextIOWrapper):
    """A stream of text, flushed at the end of each line of its user's. A mark alone flushes nothing,
    so that it costs no system call."""

    _call: tuple[str, int, int] | None = None
    _midline = False

    def begin_call(self, set_id: str, index: int, attempt: int) -> None:
        """Name this call before its first output."""
        self._call = (set_id, index, attempt)

    def write(self, text: str) -> int:
        """Write; the number of characters does not count the line that names the call."""
        if not text:
            return 0
        if self._call is not None:
            (set_id, index, attempt), self._call = self._call, None
            gap = "\n" if self._midline else ""
            super().write(f"{gap}{make_mark(set_id, index, attempt)}{text}")
        else:
            super().write(text)
        self._midline = text[-1] != "\n"
        if not self._midline or "\n" in text:
            self.flush()
        return len(text)


def mark_streams() -> tuple[MarkedStream, MarkedStream]:
    """Put marked streams in the places of stdout and stderr, and return them."""
    marked = []
    for fd in (1, 2):
        file = open(fd, "wb", closefd=False)  # noqa: SIM115 - it lives as long as the process
        marked.append(MarkedStream(file, encoding="utf-8", errors="backslashreplace"))
    sys.stdout, sys.stderr = marked
    return marked[0], marked[1]
