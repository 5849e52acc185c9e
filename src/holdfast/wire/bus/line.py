"""Script ↔ its bus process: msgpack messages in `wire.frames`, over a socket pair.

Both ends are of one version and trust each other. `peer` is the bus process's number for a manager
that was welcomed, never used twice.
"""

import msgspec

from holdfast.bounds import Count, Elapsed, Large, Whole
from holdfast.wire.bus.messages import ManagerHello


class BusLine(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Root of the closed sets of this module."""


# ---- script → bus process


class Push(BusLine, frozen=True, tag=1):
    """Messages for managers, each encoded once: (peers, message, in order with user messages)."""

    messages: list[tuple[list[Large], bytes, bool]]


class Bar(BusLine, frozen=True, tag=2):
    """Have a manager told to end should it ever speak."""

    identity: bytes
    code: Whole
    reason: str


class Dismiss(BusLine, frozen=True, tag=3):
    """Forget a manager that said goodbye, and acknowledge it."""

    peer: Large


class StopBus(BusLine, frozen=True, tag=4):
    """Send what is queued, then go."""


# ---- bus process → script


class BusReady(BusLine, frozen=True, tag=1):
    """It listens."""

    port: Count


class BusFailed(BusLine, frozen=True, tag=2):
    """It cannot listen."""

    reason: str


class Came(BusLine, frozen=True, tag=3):
    """A manager was welcomed."""

    peer: Large
    identity: bytes
    hello: ManagerHello


class Heard(BusLine, frozen=True, tag=4):
    """What managers said, each for the first time, in order: (peer, messages as they came)."""

    bodies: list[tuple[Large, bytes]]


class Silent(BusLine, frozen=True, tag=5):
    """A manager fell silent. It is given up and will be told to end whenever it speaks again."""

    peer: Large
    seconds: Elapsed


class SaidBye(BusLine, frozen=True, tag=6):
    """A manager that was given up, or barred, says that it leaves."""

    identity: bytes


class Counted(BusLine, frozen=True, tag=7):
    """The counters of the bus process since it began; times in seconds, `worst_seconds` since the
    last of these."""

    frames_in: Large
    frames_out: Large
    resent: Large
    unreachable: Large
    disconnects: Large
    busy_seconds: Elapsed
    worst_seconds: Elapsed
    lag_seconds: Elapsed
    refused: dict[str, Large]


class BusSays(BusLine, frozen=True, tag=8):
    """A sentence for the script's log. level: of `logging`."""

    level: Count
    sentence: str


ToBus = Push | Bar | Dismiss | StopBus
FromBus = BusReady | BusFailed | Came | Heard | Silent | SaidBye | Counted | BusSays

encode_line = msgspec.msgpack.Encoder().encode
decode_to_bus = msgspec.msgpack.Decoder(ToBus).decode
decode_from_bus = msgspec.msgpack.Decoder(FromBus).decode
