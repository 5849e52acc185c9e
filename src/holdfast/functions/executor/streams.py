"""Stdout and stderr of an executor. A line that names the call stands before the first output of
each call, so that the calls can be told apart in the executor's log; a call that prints nothing
costs nothing.

PRINT-1  The output of a call has left the process when the write returns, whole lines or not,
         because the process may end in the next instruction, and a program that the call starts
         writes to the same log.
"""

import _posixsubprocess
import functools
import io
import os
import sys
from collections.abc import Callable
from typing import Any

from holdfast.core.calls.marks import make_mark

# The functions, besides fork, that start a child which may write. Each is wrapped, because a hook
# of the interpreter's audit events would make every call of `id` slower.
_STARTS: tuple[tuple[Any, str], ...] = (
    (os, "system"),
    (os, "posix_spawn"),
    (os, "posix_spawnp"),
    (_posixsubprocess, "fork_exec"),  # of `subprocess` and `multiprocessing`
)
_hear_start: Callable[[], None] | None = None


class MarkedStream(io.TextIOWrapper):
    """A stream of text, flushed with each write (PRINT-1). A mark alone flushes nothing, so that it
    costs no system call."""

    _call: tuple[str, int, int] | None = None
    _midline = False

    def begin_call(self, set_id: str, index: int, attempt: int) -> None:
        """Write a line that names this call before the call's first output."""
        self._call = (set_id, index, attempt)

    def write(self, text: str) -> int:
        """Write text, after the line that names the call where it is due. The returned number of
        characters leaves that line out."""
        if not text:
            return 0
        if self._call is not None:
            (set_id, index, attempt), self._call = self._call, None
            gap = "\n" if self._midline else ""
            super().write(f"{gap}{make_mark(set_id, index, attempt)}{text}")
        else:
            super().write(text)
        self._midline = text[-1] != "\n"
        self.flush()
        return len(text)

    def announce(self) -> None:
        """Name the running call in the log now, because another program is about to write output
        for it."""
        if self._call is not None:
            (set_id, index, attempt), self._call = self._call, None
            gap = "\n" if self._midline else ""
            super().write(f"{gap}{make_mark(set_id, index, attempt)}")
            self._midline = False
            self.flush()

    @property
    def buffer(self) -> Any:
        """Return the binary stream below, for a call that writes bytes itself."""
        self.announce()
        return super().buffer


def mark_streams() -> tuple[MarkedStream, MarkedStream]:
    """Put marked streams in the places of stdout and stderr, and return them."""
    marked = []
    for fd in (1, 2):
        file = open(fd, "wb", closefd=False)  # noqa: SIM115 - it lives as long as the process
        marked.append(MarkedStream(file, encoding="utf-8", errors="backslashreplace"))
    sys.stdout, sys.stderr = marked
    _announce_at_starts(marked)
    return marked[0], marked[1]


def _announce_at_starts(marked: list[MarkedStream]) -> None:
    """Name the running call in both streams before each child that it starts."""
    global _hear_start

    def announce() -> None:
        for stream in marked:
            stream.announce()

    if _hear_start is None:
        os.register_at_fork(before=_hear)
        for module, name in _STARTS:
            start = _announcing(getattr(module, name))
            setattr(module, name, start)
            there = sys.modules.get("subprocess")
            if name == "fork_exec" and hasattr(there, "_fork_exec"):
                setattr(there, "_fork_exec", start)  # noqa: B010  mypy knows no such name
    _hear_start = announce


def _announcing(start: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(start)
    def announced(*args: Any, **kwargs: Any) -> Any:
        _hear()
        return start(*args, **kwargs)

    return announced


def _hear() -> None:
    if _hear_start is not None:
        try:
            _hear_start()
        except (OSError, ValueError):
            pass  # closed by the call, which writes to it no more
