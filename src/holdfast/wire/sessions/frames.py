"""Write and read the frames of a session: a message of a WebSocket whose first byte is a channel.

The channels are those of Kubernetes' `v5.channel.k8s.io`: 0 to 4, and 255, whose payload is the
channel that its sender closes (half-close). 5 to 8 are Holdfast's own. A line of the protocol:

    client → task   STDIN bytes · RESIZE, SIGNAL as JSON · CLOSE 0 · TAKEN
    task → client   BEGUN as JSON, once · STDOUT, STDERR bytes · CLOSE 1 · TAKEN · STATUS, the last

A NOTICE to the client is a sentence for its user, as UTF-8, and no byte of the session.

SESSION-1  Neither end sends more than `WINDOW_BYTES` that the other has not acknowledged (`TAKEN`),
           so a side that takes nothing holds up its own channel alone, and a link that breaks is
           made anew without a byte lost or doubled. Connections that are forwarded have no such
           window: each has a link of its own, and TCP holds it up.
"""

import msgspec

from holdfast.bounds import Large

STDIN, STDOUT, STDERR, STATUS, RESIZE, SIGNAL, TAKEN, BEGUN = 0, 1, 2, 3, 4, 5, 6, 7
NOTICE, CLOSE = 8, 255
PROTOCOL = "v1.sessions.holdfast"
"""The subprotocol that both ends of a link ask for."""
WINDOW_BYTES = 8 << 20
STDIN_WINDOW_BYTES = 1 << 20
ACK_BYTES = 256 << 10
"""The bytes after which a receiver acknowledges what it took."""
PIECE_BYTES = 256 << 10
"""The most bytes in one frame."""
MAX_MESSAGE_BYTES = PIECE_BYTES + (64 << 10)


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
