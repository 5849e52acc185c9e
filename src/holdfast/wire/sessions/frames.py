"""Write and read the frames of a session: a message of a WebSocket whose first byte is a channel.

The channels are those of Kubernetes' `v5.channel.k8s.io`: 0 to 4, and 255, whose payload is the
channel that its sender closes (half-close). 5 to 8 are Holdfast's own. A line of the protocol:

    client → task   STDIN bytes · RESIZE, SIGNAL as JSON · CLOSE 0 · TAKEN
    task → client   BEGUN as JSON, once · STDOUT, STDERR bytes · CLOSE 1 · TAKEN · STATUS, the last

A NOTICE to the client is a sentence for its user, as UTF-8, and no byte of the session. REFUSAL is a
STATUS of the controller itself, which reads no frame of the two ends.

SESSION-1  Neither end sends more than `WINDOW_BYTES` that the other has not acknowledged (`TAKEN`),
           so a side that takes nothing holds up its own channel alone, and a link that breaks is
           made anew without a byte lost or doubled. Connections that are forwarded have no such
           window: each has a link of its own, and TCP holds it up.

SESSION-2  No changed, lost or doubled byte is given to a program: between its channel and its payload
           each frame of the two ends has the running CRC-32 of all frames that went the same way
           over the link. An end that counts otherwise closes the link with `DAMAGED`.
"""

import zlib

import msgspec

from holdfast.bounds import Large
from holdfast.errors import ValidationError

STDIN, STDOUT, STDERR, STATUS, RESIZE, SIGNAL, TAKEN, BEGUN = 0, 1, 2, 3, 4, 5, 6, 7
NOTICE, REFUSAL, CLOSE = 8, 9, 255
PROTOCOL = "v1.sessions.holdfast"
"""The subprotocol that both ends of a link ask for."""
WINDOW_BYTES = 8 << 20
STDIN_WINDOW_BYTES = 1 << 20
ACK_BYTES = 256 << 10
"""The bytes after which a receiver acknowledges what it took."""
PIECE_BYTES = 256 << 10
"""The most bytes in one frame."""
MAX_MESSAGE_BYTES = PIECE_BYTES + (64 << 10)
LEFT, LOST, REPLACED, REFUSED, DAMAGED = 1000, 4001, 4002, 4003, 4004
"""Why a link is closed: its user left, the line to the other end was lost, another link of the
session took its place, its user may not stay any more, its bytes were changed on their way."""
BEAT_SECONDS = 20.0
"""How often each end sends a WebSocket's pong that nothing asked for, because an end that is held up
hears no ping."""
_SUM_BYTES = 4


class TerminalSize(msgspec.Struct, frozen=True):
    """The size of a terminal."""

    rows: int
    cols: int


class TakenBytes(msgspec.Struct, frozen=True):
    """The acknowledgement of bytes. bytes: how many the sender of this has taken in all."""

    bytes: Large


def frame(channel: int, payload: bytes | memoryview = b"") -> bytes:
    """Return a frame."""
    return bytes((channel,)) + payload


def frame_json(channel: int, value: object) -> bytes:
    """Return a frame whose payload is JSON."""
    return frame(channel, msgspec.json.encode(value))


class RunningSum:
    """Sums up the frames that go one way over one link (SESSION-2)."""

    def __init__(self) -> None:
        self._sum = 0

    def seal(self, data: bytes) -> bytes:
        """Return the message that carries a frame, with the sum of all frames up to this one."""
        self._sum = zlib.crc32(data, self._sum)
        return b"".join((data[:1], self._sum.to_bytes(_SUM_BYTES, "big"), memoryview(data)[1:]))

    def open(self, message: bytes) -> bytes:
        """Return the frame of a message. Raises ValidationError where its sum is another one."""
        data = message[:1] + message[1 + _SUM_BYTES :]
        self._sum = zlib.crc32(data, self._sum)
        if self._sum.to_bytes(_SUM_BYTES, "big") != message[1 : 1 + _SUM_BYTES]:
            raise ValidationError("bytes of this session were changed on their way")
        return data
