"""Carry a session between its task and this terminal, or this program's pipes."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import struct
import sys
import termios
import threading
from collections.abc import Iterator
from types import FrameType
from typing import TYPE_CHECKING

from holdfast.errors import HoldfastError

if TYPE_CHECKING:
    from holdfast.client.sessions.session import TaskSession

_READ_BYTES = 64 << 10
_PASSED = (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT, signal.SIGHUP)


def read_size() -> tuple[int, int]:
    """Return the rows and columns of this terminal; 0 and 0 where there is none."""
    for fd in (1, 0, 2):
        with contextlib.suppress(OSError):
            rows, cols, _, _ = struct.unpack("HHHH", fcntl.ioctl(fd, termios.TIOCGWINSZ, b"\0" * 8))
            return int(rows), int(cols)
    return 0, 0


def tell_lost(sentence: str) -> None:
    """Tell the person at the terminal that the link broke, or works again."""
    tell(f"lost the line ({sentence}); trying again" if sentence else "the line is back")


def tell(sentence: str) -> None:
    """Tell the person at the terminal."""
    end = "\r\n" if sys.stderr.isatty() else "\n"
    sys.stderr.write(f"{end}holdfast: {sentence}{end}")
    sys.stderr.flush()


DETACH_KEYS = b"\x10\x11"
"""Ctrl-P Ctrl-Q, as in container engines."""


class Detached(Exception):
    """Says that the person at the terminal has left the session to itself."""


def carry(session: TaskSession, *, reads: bool = True, detaches: bool = False) -> int:
    """Copy a session's output to this terminal, and this program's input to the session; return the
    exit code.

    detaches: raise Detached where the person types `DETACH_KEYS`.
    """
    session.on_notice = tell
    wake, waker = os.pipe()
    os.set_blocking(wake, False)
    os.set_blocking(waker, False)
    raw = session.tty and reads and os.isatty(0)
    try:
        with _raw_mode() if raw else contextlib.nullcontext(), _signals(session, waker, raw):
            if reads:
                left = threading.Event()
                keys = DETACH_KEYS if detaches else b""
                given = (session, wake, keys, left)
                threading.Thread(target=_copy_input, args=given, daemon=True, name="input").start()
                if session.tty:
                    session.resize(*read_size())
            _copy_output(session, left if reads else threading.Event())
    finally:
        os.set_blocking(waker, False)
    return session.exit_code or 0


def _copy_output(session: TaskSession, left: threading.Event) -> None:
    try:
        for stream, data in session:
            _write_all(2 if stream == "stderr" else 1, data)
    except HoldfastError:
        if not left.is_set():
            raise
    except OSError:  # its reader left, or its disk is full
        session.close()
        raise
    if left.is_set():
        raise Detached


def _write_all(fd: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        try:
            left = left[os.write(fd, left) :]
        except BlockingIOError:
            select.select([], [fd], [])


def _copy_input(session: TaskSession, wake: int, keys: bytes, left: threading.Event) -> None:
    """Send the input of this program to the session until its end, and the terminal's size whenever
    it changes. Leave the session where the person types `keys`."""
    inputs, last = [0, wake], b""
    while not session.over:
        try:
            ready, _, _ = select.select(inputs, [], [])
        except (OSError, ValueError):
            return
        if wake in ready:
            for number in os.read(wake, 256):
                _pass_on(session, number)
        if 0 in ready:
            try:
                data = os.read(0, _READ_BYTES)
            except OSError:
                data = b""
            if data:
                if keys and keys in last + data:
                    left.set()
                    session.close()
                    return
                last = data[-1:]
                session.write(data)
            else:
                session.close_stdin()
                inputs.remove(0)


def _pass_on(session: TaskSession, number: int) -> None:
    if number == signal.SIGWINCH:
        session.resize(*read_size())
    else:
        session.signal(signal.Signals(number).name.removeprefix("SIG"))


@contextlib.contextmanager
def _signals(session: TaskSession, waker: int, raw: bool) -> Iterator[None]:
    """Pass signals on to the command: those that this program gets, and changes of the terminal's
    size."""

    def take(number: int, frame: FrameType | None) -> None:
        with contextlib.suppress(OSError):
            os.write(waker, bytes((number,)))

    taken = [signal.SIGWINCH] if session.tty else []
    taken += [number for number in _PASSED if not (raw and number == signal.SIGHUP)]
    old = {number: signal.signal(number, take) for number in taken}
    try:
        yield
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _raw_mode() -> Iterator[None]:
    """Pass every key to the task as it is: the task's terminal echoes keys, and makes signals of
    Ctrl-C and Ctrl-Z."""
    import tty

    before = termios.tcgetattr(0)
    try:
        tty.setraw(0, termios.TCSANOW)
        yield
    finally:
        termios.tcsetattr(0, termios.TCSADRAIN, before)
