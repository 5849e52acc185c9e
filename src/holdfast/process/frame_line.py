"""A line of frames between two processes of one machine: guardian and agent, manager and warden."""

import socket

from holdfast.wire.frames import FrameReader, encode_frame

_READ_BYTES = 1 << 18


class FrameLine:
    """One end of the line, which never blocks.

    ended: the other end has hung up, as `hear` found. unsent: bytes that wait until the other end
    has read more.
    """

    def __init__(self, line: socket.socket) -> None:
        line.setblocking(False)
        self._line = line
        self._reader = FrameReader()
        self.unsent = bytearray()
        self.ended = False

    def fileno(self) -> int:
        """Return the descriptor to poll."""
        return self._line.fileno()

    def say(self, body: bytes) -> None:
        """Queue a frame for `flush`."""
        self.unsent += encode_frame(body)

    def flush(self) -> bool:
        """Send as much as the other end accepts now. Returns whether some is left."""
        try:
            while self.unsent:
                sent = self._line.send(self.unsent[: 1 << 16])
                del self.unsent[:sent]
        except BlockingIOError:
            pass
        except OSError:
            self.unsent.clear()  # the other end is gone, which the next `hear` finds
        return bool(self.unsent)

    def hear(self) -> list[bytes]:
        """Return the frames that have come. Raises ValidationError for bytes that are no frames."""
        try:
            data = self._line.recv(_READ_BYTES)
        except BlockingIOError:
            return []
        except OSError:
            data = b""
        self.ended = not data
        return self._reader.feed(data)

    def close(self) -> None:
        """Close this end."""
        self._line.close()
