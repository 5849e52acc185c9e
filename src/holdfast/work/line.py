"""The line to the agent: a Unix datagram socket that never waits, never raises, and reconnects."""

from __future__ import annotations

import errno
import time

TYPE_CHECKING = False  # `typing` takes longer to import than all of this
if TYPE_CHECKING:
    from socket import socket

RECONNECT_SECONDS = 1.0
"""The shortest time between two attempts to reach an agent that is away."""
_FULL = frozenset({errno.EAGAIN, errno.EWOULDBLOCK, errno.ENOBUFS})


class Line:
    """One non-blocking, connected datagram socket to `address`, opened at the first send."""

    __slots__ = ("_address", "_retry_at", "_socket")

    def __init__(self, address: str) -> None:
        self._address = address
        self._socket: socket | None = None
        self._retry_at = 0.0

    def send(self, datagram: bytes, now: float) -> bool:
        """Send a datagram, or drop it; return whether the kernel accepted it. `now` is of
        `time.monotonic()`.

        A full buffer means that the agent is slow, and the next datagram carries newer facts. A
        dead agent's socket refuses, and the line is opened anew, at most once in
        `RECONNECT_SECONDS`.
        """
        sock = self._socket
        if sock is None:
            sock = self._connect(now)
            if sock is None:
                return False
        try:
            sock.send(datagram)
            return True
        except OSError as error:
            if error.errno in _FULL:
                return False
        self.close()
        # The agent may have been replaced, with a new socket at the same address: try that one now.
        sock = self._connect(now)
        try:
            return sock is not None and sock.send(datagram) > 0
        except OSError:
            self.close()
            return False

    def send_patiently(self, datagram: bytes, seconds: float) -> bool:
        """Send a datagram, and while the buffer is full try again for at most `seconds`."""
        until = time.monotonic() + seconds
        while True:
            now = time.monotonic()
            if self.send(datagram, now):
                return True
            if self._socket is None or now >= until:
                return False
            time.sleep(0.001)

    def _connect(self, now: float) -> socket | None:
        if now < self._retry_at:
            return None
        self._retry_at = now + RECONNECT_SECONDS
        import socket  # here, so that a script outside Holdfast does not pay for it

        try:
            kind = socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
            sock = socket.socket(socket.AF_UNIX, kind)
        except OSError:
            return None
        try:
            sock.connect(self._address)
        except (OSError, ValueError):  # ValueError: a NUL in the address
            sock.close()
            return None
        self._socket = sock
        return sock

    def close(self) -> None:
        """Close the socket; the next send opens it again."""
        sock, self._socket = self._socket, None
        if sock is not None:
            try:
                sock.close()
            except OSError:
                pass

    def reopen(self) -> None:
        """Close the socket and let the next send open it at once, in the child of a fork."""
        self.close()
        self._retry_at = 0.0
