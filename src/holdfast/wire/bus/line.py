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
    """An order to send a manager an `End` if it ever sends a frame."""

    identity: bytes
    code: Whole
    reason: str


class Dismiss(BusLine, frozen=True, tag=3):
    """An order to acknowledge a manager's `Bye` and forget the manager."""

    peer: Large


class StopBus(BusLine, frozen=True, tag=4):
    """An order to send all queued messages and then exit."""


# ---- bus process → script


class BusReady(BusLine, frozen=True, tag=1):
    """The news that the bus process listens."""

    port: Count


class BusFailed(BusLine, frozen=True, tag=2):
    """The news that the bus process cannot listen."""

    reason: str


class Came(BusLine, frozen=True, tag=3):
    """The news that a manager has connected and was welcomed."""

    peer: Large
    identity: bytes
    hello: ManagerHello


class Heard(BusLine, frozen=True, tag=4):
    """New messages of managers, each once and in order: (peer, encoded messages)."""

    bodies: list[tuple[Large, bytes]]


class Silent(BusLine, frozen=True, tag=5):
    """The news that a manager fell silent. It is given up, and gets an `End` if it ever sends
    again."""

    peer: Large
    seconds: Elapsed


class SaidBye(BusLine, frozen=True, tag=6):
    """The news that a manager which was given up or barred says goodbye."""

    identity: bytes


class Counted(BusLine, frozen=True, tag=7):
    """The counters of the bus process since its start, times in seconds; `worst_seconds` since the
    last such report."""

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
    """A sentence for the script's log. level: a level of `logging`."""

    level: Count
    sentence: str


ToBus = Push | Bar | Dismiss | StopBus
FromBus = BusReady | BusFailed | Came | Heard | Silent | SaidBye | Counted | BusSays

encode_line = msgspec.msgpack.Encoder().encode
decode_to_bus = msgspec.msgpack.Decoder(ToBus).decode
decode_from_bus = msgspec.msgpack.Decoder(FromBus).decode
