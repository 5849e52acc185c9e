"""Measures how far behind the reading of the bus is, by a frame that the bus sends to itself.

Frames of hosts may wait in the kernel while ZeroMQ's own thread waits for a core. The ROUTER then
has nothing to read, which looks like silence of the whole fleet at once. So before a peer is judged
silent, the bus sends itself a frame over the same port, the same encryption and the same thread.
When that frame arrives, everything that came before it was sent has been read, however long that
took. An idle fleet pays for one such frame a second, which also shows the lag in the status.
"""

import contextlib
import os
import struct

import zmq

from holdfast.supervisor.line.keys import RunKeys

_STAMP = struct.Struct("!Qd")
_INTERVAL_SECONDS = 1.0
# A frame that takes longer is lost, or its connection is closed: it proves nothing, and losses
# must still be noticed.
LONGEST_LAG_SECONDS = 30.0
_ANYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}
_INF = float("inf")


class LagProbe:
    """One ZeroMQ socket (DEALER) that talks to the bus's own socket (ROUTER), in the bus's
    thread."""

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], bind: str, port: int, keys: RunKeys
    ) -> None:
        self.identity = os.urandom(16)
        self.seconds = 0.0  # the last frame's time, or that of the frame under way if longer
        self._number = 0
        self._asked_at: float | None = None  # when the frame under way was sent
        self._read_until = -_INF
        self._trusted = False  # a frame has come back, so the next will too
        self._next_at = 0.0
        self._dealer = context.socket(zmq.DEALER)
        self._dealer.routing_id = self.identity
        self._dealer.linger = 0
        self._dealer.setsockopt(zmq.IPV6, int(":" in bind))
        if keys.server_public:
            self._dealer.curve_serverkey = keys.server_public.encode()
            self._dealer.curve_publickey = keys.client_public.encode()
            self._dealer.curve_secretkey = keys.client_secret.encode()
        where = _ANYWHERE.get(bind, bind)
        self._dealer.connect(f"tcp://[{where}]:{port}" if ":" in where else f"tcp://{where}:{port}")

    def ask(self, now: float) -> None:
        """Send the bus its own frame, unless one is on its way."""
        if self._asked_at is not None:
            return
        self._number += 1
        with contextlib.suppress(zmq.Again):  # the next turn tries again
            self._dealer.send(_STAMP.pack(self._number, now), zmq.NOBLOCK)
            self._asked_at = now

    def note_frame(self, frame: bytes, now: float) -> None:
        """Note a frame that came back. Only the frame on its way counts, because any other may be
        forged."""
        if self._asked_at is None or frame != _STAMP.pack(self._number, self._asked_at):
            return
        self.seconds = now - self._asked_at
        self._read_until = self._asked_at
        self._trusted = True
        self._asked_at = None

    def turn(self, now: float, doubtful: bool) -> None:
        """Send a frame where one is due. doubtful: True when a peer seems silent."""
        asked = self._asked_at
        if asked is not None:
            self.seconds = max(self.seconds, now - asked)
            if now - asked > LONGEST_LAG_SECONDS:
                self._asked_at, self._trusted = None, False
        if doubtful or now >= self._next_at:
            self._next_at = now + _INTERVAL_SECONDS
            self.ask(now)

    def read_until(self, now: float) -> float:
        """Return the time before which every frame that came is known to have been read."""
        return self._read_until if self._trusted else now

    @property
    def next_at(self) -> float:
        """Return when `turn` has something to do at the latest."""
        return self._next_at

    def close(self) -> None:
        """Close the socket."""
        self._dealer.close()
