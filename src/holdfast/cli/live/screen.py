"""A terminal's screen for a while: drawn in place, keys read one by one, and given back as it was.

SCREEN-1  At every ending (a return, an error, Ctrl-C, TERM, HUP) and at every stop (Ctrl-Z) the terminal
          has its own modes, cursor and text again, before anything else is written to it.
"""

from __future__ import annotations

import os
import re
import select
import shutil
import signal
import sys
import termios
import tty
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

from holdfast.cli.output import DEFAULT_COLUMNS

_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
_NAMES = {
    b"\x1b[A": "up", b"\x1b[B": "down", b"\x1bOA": "up", b"\x1bOB": "down", b"\x1b[5~": "pageup",
    b"\x1b[6~": "pagedown", b"\x1b": "escape", b"\r": "enter", b"\n": "enter", b"\x03": "q", b"\x1a": "suspend",
}  # fmt: skip
_ENDS = (signal.SIGTERM, signal.SIGHUP)


class ScreenEnded(BaseException):
    """A signal ends the program; `number` says which. No handler of errors catches it."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


_KEYS = re.compile(rb"\x1b\[[0-9;]*[A-Za-z~]|\x1bO[A-Z]|.", re.DOTALL)


def name_keys(data: bytes) -> list[str]:
    """Return the names of the keys that were pressed, read from their bytes: a letter is its own
    name, an arrow is `up` or the like. Keys without a name are left out."""
    found = []
    for key in _KEYS.findall(data):
        name = _NAMES.get(
            key, key.decode("ascii", "ignore") if len(key) == 1 and key.isalnum() else ""
        )
        if name:
            found.append(name)
    return found


class Screen:
    """The terminal, while this program draws on all of it; a context manager."""

    def __init__(self) -> None:
        self._in, self._out = sys.stdin.fileno(), sys.stdout.fileno()
        self._waker, self._wakes = os.pipe()
        os.set_blocking(self._waker, False)
        os.set_blocking(self._wakes, False)
        self._before: list[Any] = []
        self._handlers: dict[int, Any] = {}
        self._drawn: Sequence[str] = ()
        self._is_lent = False
        self._keys: list[str] = []

    def __enter__(self) -> Screen:
        self._before = termios.tcgetattr(self._in)
        self._handlers = {number: signal.signal(number, _end) for number in _ENDS}
        self._handlers[signal.SIGWINCH] = signal.signal(signal.SIGWINCH, self._resized)
        self._handlers[signal.SIGTSTP] = signal.signal(signal.SIGTSTP, self._stop)
        try:
            self._take()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        self._give_back()
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        os.close(self._waker)
        os.close(self._wakes)

    @property
    def size(self) -> os.terminal_size:
        """Return the columns and the lines of the terminal now."""
        return shutil.get_terminal_size((DEFAULT_COLUMNS, 24))

    def draw(self, lines: Sequence[str]) -> None:
        """Show the lines; nothing is written where they are shown already. The caller gives no more
        lines than the terminal has, and no wider ones."""
        if list(lines) == list(self._drawn):
            return
        self._drawn = list(lines)
        text = "\x1b[H" + "\r\n".join(f"{line}\x1b[K" for line in lines) + "\x1b[J"
        self._write(text)

    def read_key(self, seconds: float) -> str:
        """Return the next key; "" after `seconds`, after `wake`, and after a change of the size."""
        if self._keys:
            return self._keys.pop(0)
        ready, _, _ = select.select([self._in, self._waker], [], [], seconds)
        if self._waker in ready:
            os.read(self._waker, 4096)
        if self._in not in ready:
            return ""
        data = os.read(self._in, 1024)
        if not data:  # the terminal is gone
            raise ScreenEnded(signal.SIGHUP)
        self._keys = name_keys(data)
        if "suspend" in self._keys:
            self._keys = []
            os.kill(0, signal.SIGTSTP)  # the whole group, as a terminal does it
        return self._keys.pop(0) if self._keys else ""

    def wake(self) -> None:
        """Make `read_key` return at once; any thread may call this."""
        try:
            os.write(self._wakes, b"x")
        except OSError:
            pass  # the pipe is full, so it wakes anyhow; or the screen is over

    @contextmanager
    def lent(self) -> Iterator[None]:
        """Give the terminal back for a while to another program, whose Ctrl-C does not end this
        one."""
        self._is_lent = True
        self._give_back()
        before = signal.signal(signal.SIGINT, lambda *_: None)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)
            self._is_lent = False
            self._take()

    def _take(self) -> None:
        tty.setraw(self._in, termios.TCSADRAIN)
        self._drawn = ()
        self._write(_ENTER)

    def _give_back(self) -> None:
        try:
            self._write(_LEAVE)
            termios.tcsetattr(self._in, termios.TCSADRAIN, self._before)
        except (OSError, termios.error):
            pass  # the terminal is gone

    def _stop(self, number: int, frame: FrameType | None) -> None:
        """Stop this program as Ctrl-Z stops any other, with the terminal given back, until it is
        continued (`fg`)."""
        if not self._is_lent:
            self._give_back()
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, self._stop)
        if not self._is_lent:
            self._take()
            self.wake()

    def _resized(self, number: int, frame: FrameType | None) -> None:
        self._drawn = ()
        self.wake()

    def _write(self, text: str) -> None:
        data = text.encode(errors="replace")
        while data:
            data = data[os.write(self._out, data) :]


def _end(number: int, frame: FrameType | None) -> None:
    raise ScreenEnded(number)
