"""Carry the bytes of one session between its process and the links of its users.

- The output of a session's process is kept until the session's user has acknowledged it, so a link
  that is made anew goes on where the old one broke. A process with pipes is held up where
  `WINDOW_BYTES` are not acknowledged. A process with a terminal is held up only while its user is
  linked; of its output without a user, the last `SCROLL_BYTES` are kept.
- A session whose user lost the connection is kept for `LINGER_SECONDS`; a session whose user left
  or may not stay is stopped at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import signal
import struct
import termios
from collections import deque
from collections.abc import Callable
from pathlib import Path

import msgspec

from holdfast.agent.sessions.dial import Dialled
from holdfast.agent.sessions.guardian_line import GuardianSessionLine
from holdfast.bounds import UNREADABLE
from holdfast.core.ids import TaskKey
from holdfast.wire.sessions.frames import (
    ACK_BYTES,
    BEGUN,
    CLOSE,
    LEFT,
    LOST,
    NOTICE,
    PIECE_BYTES,
    REFUSED,
    REPLACED,
    RESIZE,
    SIGNAL,
    STATUS,
    STDERR,
    STDIN,
    STDOUT,
    TAKEN,
    WINDOW_BYTES,
    TakenBytes,
    TerminalSize,
    frame,
    frame_json,
)
from holdfast.wire.sessions.guardian import CloseInput, SessionOver, SignalSession
from holdfast.wire.sessions.messages import SessionBegun, SessionStatus

SCROLL_BYTES = 1 << 20
TERMINAL_WINDOW_BYTES = 256 << 10
"""The number of bytes that a terminal may send ahead of its user, few because Ctrl-C waits behind them."""
_READ_BYTES = 64 << 10
_JOINED_BYTES = 4 << 10
_LAST_SECONDS = 0.2  # for output that children of a process that ended still write
_TOLD_SECONDS = 2.0
_SIGNALS = frozenset(
    ("HUP", "INT", "QUIT", "TERM", "KILL", "USR1", "USR2", "CONT", "WINCH", "TSTP")
)


class UserLink:
    """One user's link to a session. user: the id of the session that the user opened, which differs
    from the id of this session where the user is attached to it. sent, acked: offsets in the
    output."""

    def __init__(self, wire: Dialled, user: str, *, watch: bool, at: int) -> None:
        self.wire = wire
        self.user = user
        self.watch = watch
        self.sent = self.acked = at
        self.told = False  # its status was sent


class LiveSession:
    """One session at work.

    life: a word that changes where another agent begins to count the bytes anew. gone: called once,
    when the session may be forgotten. keyed: called at each key. stop: has the guardian end the
    session's process. log_path: for the terminal of a task itself, the log to which the terminal's
    output is appended, also where no user is linked.
    """

    def __init__(
        self,
        session_id: str,
        key: TaskKey,
        life: str,
        guardian: GuardianSessionLine,
        *,
        stop: Callable[[], None],
        keyed: Callable[[], None],
        gone: Callable[[], None],
        linger_seconds: float,
        log_path: Path | None = None,
    ) -> None:
        self.id = session_id
        self.key = key
        self.life = life
        self.over: SessionOver | None = None
        self.refusal: SessionStatus | None = None
        self.tty = False
        self.begun = asyncio.Event()
        self._guardian = guardian
        self._stop = stop
        self._keyed = keyed
        self._gone = gone
        self._linger_seconds = linger_seconds
        self._log_path = log_path
        self._log_fd = -1
        self._links: list[UserLink] = []
        self._outputs: dict[int, int] = {}  # descriptor → channel
        self._paused = False
        self._input = -1
        self._input_ends = False
        self._unwritten: deque[bytes] = deque()
        self._received = self._taken = self._taken_told = 0
        self._kept: deque[tuple[int, int, bytes]] = deque()  # offset, channel, bytes
        self._made = 0
        self._acked = 0
        self._lingering: asyncio.TimerHandle | None = None
        self._last: asyncio.TimerHandle | None = None

    # ---- the process

    def take_ends(self, fds: list[int], *, tty: bool, input_open: bool) -> None:
        """Begin to carry bytes between the descriptors of the process and the links."""
        if self.begun.is_set():
            for fd in fds:
                os.close(fd)
            return
        self.tty = tty
        if tty:
            self._input, self._outputs = fds[0], {fds[0]: STDOUT}
        else:
            outputs = fds[1:] if input_open else fds
            self._input = fds[0] if input_open else -1
            self._outputs = dict(zip(outputs, (STDOUT, STDERR), strict=False))
        for fd in fds:
            os.set_blocking(fd, False)
        if self._log_path is not None:
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
            with contextlib.suppress(OSError):  # its users see what it prints all the same
                self._log_fd = os.open(self._log_path, flags, 0o600)
        self._read_on()
        self.begun.set()
        if not self._links:
            self._linger()

    def take_over(self, over: SessionOver) -> None:
        """Note that the session's first process ended, or never began. over: how it ended."""
        self.over = over
        self.begun.set()
        if over.error and over.exit_code is not None:  # as a shell says it
            self._keep_output(STDERR, f"holdfast: {over.error}\n".encode())
        if not self._outputs:
            self._finish()
        else:  # what it printed is read to the end; what its children still print, for a moment
            loop = asyncio.get_running_loop()
            self._last = loop.call_later(_LAST_SECONDS, self._drop_outputs)

    def refuse(self, status: SessionStatus) -> None:
        """End the session with a problem, because it cannot begin or go on."""
        self.refusal = status
        self.begun.set()
        self._finish()

    # ---- its output

    def _read_on(self) -> None:
        loop = asyncio.get_running_loop()
        wanted = self._has_room()
        if wanted == (not self._paused) and self.begun.is_set():
            return
        self._paused = not wanted
        for fd in self._outputs:
            if wanted:
                loop.add_reader(fd, self._read, fd)
            else:
                loop.remove_reader(fd)

    def _has_room(self) -> bool:
        main = [link for link in self._links if not link.watch]
        if self.tty:
            return all(self._made - link.acked < TERMINAL_WINDOW_BYTES for link in main)
        return self._made - self._acked < WINDOW_BYTES

    def _read(self, fd: int) -> None:
        try:
            data = os.read(fd, _READ_BYTES)
        except BlockingIOError:
            return
        except OSError:  # EIO: the last process has closed the terminal
            data = b""
        if not data:
            self._drop_output(fd)
            return
        if self._log_fd >= 0:
            with contextlib.suppress(OSError):  # a full disk
                os.write(self._log_fd, data)
        self._keep_output(self._outputs[fd], data)
        while self._kept and self._made - self._kept[0][0] - len(self._kept[0][2]) > self._keep():
            self._kept.popleft()
        self._pump()
        self._read_on()

    def _keep_output(self, channel: int, data: bytes) -> None:
        """Keep output; small pieces are joined, because each look for what to send passes them."""
        self._made += len(data)
        at = self._made - len(data)
        if self._kept and self._kept[-1][1] == channel:
            start, _, last = self._kept[-1]
            if len(last) + len(data) <= _JOINED_BYTES:
                self._kept.pop()
                at, data = start, last + data
        self._kept.append((at, channel, data))

    def _keep(self) -> int:
        """Return how many of the last bytes of output must be kept."""
        return max(SCROLL_BYTES if self.tty else 0, 0 if self.tty else self._made - self._acked)

    def _drop_output(self, fd: int) -> None:
        asyncio.get_running_loop().remove_reader(fd)
        del self._outputs[fd]
        if fd == self._input:
            self._close_input()
        else:
            os.close(fd)
        if not self._outputs and self.over is not None:
            self._finish()

    def _drop_outputs(self) -> None:
        """Close the descriptors of the process's output once the bytes that have come were read."""
        if self._paused:  # its user reads slowly
            self._last = asyncio.get_running_loop().call_later(_LAST_SECONDS, self._drop_outputs)
            return
        for fd in list(self._outputs):
            self._drop_output(fd)

    def _pump(self) -> None:
        """Send each link as much output as its window allows."""
        for link in self._links:
            self._pump_link(link)

    def _pump_link(self, link: UserLink) -> None:
        window = TERMINAL_WINDOW_BYTES if self.tty else WINDOW_BYTES
        if link.sent < self._made and self._kept and not link.wire.full:
            for offset, channel, data in self._kept:
                if offset + len(data) <= link.sent:
                    continue
                if link.sent - link.acked >= window and not link.watch:
                    break
                if link.wire.full:
                    break
                skipped = max(0, link.sent - offset)
                for at in range(skipped, len(data), PIECE_BYTES):
                    link.wire.send(frame(channel, data[at : at + PIECE_BYTES]))
                link.sent = offset + len(data)
        if self.is_done and link.sent >= self._made and not link.told:
            link.told = True
            link.wire.send(frame_json(STATUS, self._make_status()))

    def _make_status(self) -> SessionStatus:
        if self.refusal is not None:
            return self.refusal
        assert self.over is not None
        if self.over.error and self.over.exit_code is None:
            return SessionStatus(code="start_failed", detail=self.over.error, status=409)
        return SessionStatus(exit_code=self.over.exit_code, signal=self.over.signal)

    # ---- its input

    def _write_input(self) -> None:
        loop = asyncio.get_running_loop()
        if self._input < 0:
            self._unwritten.clear()
            self._taken = self._received
        try:
            while self._unwritten:
                piece = self._unwritten[0]
                count = os.write(self._input, piece)
                self._taken += count
                if count < len(piece):
                    self._unwritten[0] = piece[count:]
                else:
                    self._unwritten.popleft()
        except BlockingIOError:
            loop.add_writer(self._input, self._write_input)
            self._tell_taken()
            return
        except OSError:  # it is not read any more
            self._taken = self._received
            self._unwritten.clear()
            if not self.tty:
                self._close_input()
        if self._input >= 0:
            loop.remove_writer(self._input)
        self._tell_taken()
        if self._input_ends and not self._unwritten and not self.tty:
            self._close_input()

    def _queue_input(self, data: bytes) -> None:
        self._unwritten.append(data)
        self._received += len(data)

    def _tell_taken(self) -> None:
        if self._taken - self._taken_told >= ACK_BYTES // 4:
            self._taken_told = self._taken
            for link in self._links:
                if not link.watch:
                    link.wire.send(frame_json(TAKEN, TakenBytes(self._taken)))

    def _close_input(self) -> None:
        if self._input < 0:
            return
        fd, self._input = self._input, -1
        asyncio.get_running_loop().remove_writer(fd)
        if fd not in self._outputs:  # of a terminal, what is written to is read as well
            os.close(fd)
        self._taken = self._received
        self._unwritten.clear()
        self._guardian.send(CloseInput(id=self.id))

    # ---- its links

    def add_link(self, wire: Dialled, user: str, *, seen: int, watch: bool) -> None:
        """Begin to serve a link of the user's session `user`. The link takes the place of an
        earlier link of that session; where a link of another session is served already, the new one
        reads along."""
        main = [link for link in self._links if not link.watch and link.user != user]
        watch = watch or bool(main)
        first = self._kept[0][0] if self._kept else self._made
        start = min(max(seen, first), self._made)
        if watch or seen > self._made:
            start = first
        link = UserLink(wire, user, watch=watch, at=start)
        if not watch:
            for old in [link for link in self._links if not link.watch]:
                self._links.remove(old)
                old.wire.over = lambda code: None
                old.wire.close(REPLACED)
            self._acked = max(self._acked, start)
        self._links.append(link)
        wire.hear = lambda data: self._hear(link, data)
        wire.over = lambda code: self._lose(link, code)
        wire.ready = lambda: self._pump_link(link)
        if self._lingering is not None and not watch:
            self._lingering.cancel()
            self._lingering = None
        told = SessionBegun(
            session=user,
            start=start,
            taken=self._received,
            tty=self.tty,
            life=self.life,
            watch=watch,
        )
        wire.send(frame_json(BEGUN, told))
        self._pump_link(link)
        self._read_on()

    def tell_users(self, sentence: str) -> None:
        """Send a message to every linked user of the session."""
        for link in self._links:
            link.wire.send(frame(NOTICE, sentence.encode()))

    @property
    def is_done(self) -> bool:
        """Return whether nothing more will come: the session was refused, or it is over and its
        output was read to the end."""
        return self.refusal is not None or (self.over is not None and not self._outputs)

    def _hear(self, link: UserLink, data: bytes) -> None:
        channel, payload = data[:1], data[1:]
        try:
            self._take_frame(link, channel[0] if channel else -1, payload)
        except UNREADABLE:
            link.wire.close(LOST)

    def _take_frame(self, link: UserLink, channel: int, payload: bytes) -> None:
        if channel == TAKEN:
            link.acked = max(link.acked, min(link.sent, _decode_taken(payload).bytes))
            if not link.watch:
                self._acked = max(self._acked, link.acked)
            self._pump_link(link)
            self._read_on()
        elif link.watch:
            return
        elif channel == STDIN:
            self._keyed()
            if self._received - self._taken > WINDOW_BYTES:  # no client of ours sends so much
                link.wire.close(LOST)
                return
            self._queue_input(payload)
            if len(self._unwritten) == 1:
                self._write_input()
        elif channel == CLOSE and payload[:1] == bytes((STDIN,)):
            self._input_ends = True
            if self.tty:  # a terminal has no end: what its programs read as one is sent
                self._queue_input(b"\x04")
            self._write_input()
        elif channel == RESIZE and self.tty and self._input >= 0:
            size = _decode_size(payload)
            with contextlib.suppress(OSError):
                words = struct.pack("HHHH", size.rows & 0xFFFF, size.cols & 0xFFFF, 0, 0)
                fcntl.ioctl(self._input, termios.TIOCSWINSZ, words)
        elif channel == SIGNAL:
            name = _decode_signal(payload).removeprefix("SIG")
            if name in _SIGNALS:
                number = int(signal.Signals[f"SIG{name}"])
                self._guardian.send(SignalSession(id=self.id, signal=number))

    def _lose(self, link: UserLink, code: int) -> None:
        """Note that a link has ended."""
        if link not in self._links:
            return
        self._links.remove(link)
        if link.watch:
            return
        if self.is_done and link.told and link.acked >= self._made:
            self._end()
        elif code in (LEFT, REFUSED):
            self._stop()
            if self.is_done:
                self._end()
        else:
            self._linger()
        self._read_on()

    def _linger(self) -> None:
        loop = asyncio.get_running_loop()
        if self._lingering is None and (self._log_path is None or self.is_done):
            self._lingering = loop.call_later(self._linger_seconds, self._give_up)

    def _give_up(self) -> None:
        self._lingering = None
        self._stop()
        if self.is_done:
            self._end()

    def bar(self) -> None:
        """End the session, because its user may not stay: at once where no link is there, else after
        a moment in which the controller tells the user why, and closes the link."""
        self._linger_seconds = 0.0
        if self._lingering is not None:
            self._lingering.cancel()
        seconds = _TOLD_SECONDS if self._links else 0.0
        self._lingering = asyncio.get_running_loop().call_later(seconds, self._give_up)

    def _finish(self) -> None:
        """Tell every link how the session ended."""
        self._close_input()
        self._pump()
        if not self._links:
            self._linger()

    def _end(self) -> None:
        """Forget the session."""
        for timer in (self._lingering, self._last):
            if timer is not None:
                timer.cancel()
        for fd in list(self._outputs):
            self._drop_output(fd)
        self._close_input()
        if self._log_fd >= 0:
            os.close(self._log_fd)
        for link in self._links:
            link.wire.over = lambda code: None
            link.wire.close(LEFT)
        self._links.clear()
        self._gone()


_decode_taken = msgspec.json.Decoder(TakenBytes).decode
_decode_size = msgspec.json.Decoder(TerminalSize).decode
_decode_signal = msgspec.json.Decoder(str).decode
