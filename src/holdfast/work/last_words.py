"""Standard streams that cannot stop a program which is saving its work.

At a drain the reader of a program's output may be gone before it (`train.py | head`), its disk may
be full, and the signal may have come in the middle of a print. A print that raises then would end
the function that was promised its turn, and the save behind it.
"""

from __future__ import annotations

import os
import select
import sys

TYPE_CHECKING = False  # as in `beats`
if TYPE_CHECKING:
    from typing import Any


class Forgiving:
    """A stream whose writes raise nothing. Text that the stream itself does not accept is written
    to its descriptor, because a print that the signal interrupted holds the stream's lock."""

    def __init__(self, stream: Any, number: int) -> None:
        self._stream = stream
        self._number = number

    def write(self, text: Any) -> int:
        """Write the text, and ignore a failure."""
        try:
            return int(self._stream.write(text))
        except Exception:  # a stream of the user's own may raise anything
            try:
                os.write(self._number, str(text).encode("utf-8", "replace"))
            except OSError:
                pass
        return len(text)

    def writelines(self, lines: Any) -> None:
        """Write each line, and ignore a failure."""
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        """Flush the stream, and ignore a failure."""
        try:
            self._stream.flush()
        except Exception:
            pass

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class LastWords:
    """Replaces standard output and error within the block by streams that never raise."""

    def __enter__(self) -> LastWords:
        self._before = sys.stdout, sys.stderr
        for number in (1, 2):
            _mend(number)
        sys.stdout = Forgiving(sys.stdout, 1)
        sys.stderr = Forgiving(sys.stderr, 2)
        return self

    def __exit__(self, *exception: object) -> None:
        for forgiving in (sys.stdout, sys.stderr):
            if isinstance(forgiving, Forgiving):
                forgiving.flush()
        sys.stdout, sys.stderr = self._before


def _mend(number: int) -> None:
    """Discard the output to a pipe that no process reads, so that it never fails: also the output
    of code that holds the stream itself (a logging handler), and below Python."""
    try:
        poll = select.poll()
        poll.register(number, 0)
        if not any(events & select.POLLERR for _, events in poll.poll(0)):
            return
        fd = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.dup2(fd, number)
        finally:
            os.close(fd)
    except (OSError, ValueError):
        pass
