"""Supervisor ↔ host manager: frames and the closed set of messages in them, sans I/O.

A frame is one ZeroMQ message part: a fixed header, then (or nothing) a msgpack list of messages.

    magic "HF" · version · flags · session (8 bytes) · sequence (8) · acknowledged (8) · messages

`session` names one connection between a supervisor and a manager; the supervisor chooses it at
random, in `Welcome`. `sequence` numbers the frames of one session and direction from 1. 0 is an
unnumbered frame, which acts in any order: a heartbeat (no messages), or `ManagerHello`, `Who`,
`Welcome` and `End`, which carry the run instead. `acknowledged` is the last sequence up to which
all frames of the peer have been received.

Times are wall-clock seconds, shown to people and never compared. A message longer than
`MAX_INLINE_BYTES` travels in parts, numbered from 0, so that heartbeats pass between them.
"""

import struct
from collections.abc import Sequence
from typing import Annotated, NamedTuple

import msgspec
from msgspec import Meta

from holdfast.bounds import UNREADABLE, Count, Elapsed, Figure, Instant, Large, Whole
from holdfast.errors import TooLarge, ValidationError

VERSION = 1
MAX_INLINE_BYTES = 8 << 20
PART_BYTES = 1 << 20
MAX_FRAME_BYTES = MAX_INLINE_BYTES + (1 << 20)
MAX_MESSAGE_BYTES = 1 << 30
FLAG_RESEND = 1  # a frame is missing: send again from `acknowledged` + 1
FLAG_DOWN = 2  # from the supervisor: a frame that is sent back to its sender is refused
_MAGIC = b"HF"
_HEADER = struct.Struct("<2sBBQQQ")
HEADER_BYTES = _HEADER.size
_pack = _HEADER.pack
_unpack = _HEADER.unpack_from

Word = Annotated[str, Meta(max_length=256)]
Id = Large
Port = Annotated[int, Meta(ge=0, le=65_535)]


class BusMessage(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Root of the closed set: an array, tag first. Never in a cycle, so not garbage-collected."""


# ---- manager → supervisor


class MachineFacts(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The size of a machine. cpus, gpus: their numbers. address: the address at which other hosts
    reach it."""

    hostname: Word
    address: Word = ""
    cpus: Count = 0
    gpus: Count = 0
    memory_bytes: Id = 0
    labels: dict[Word, Word] = {}


class ProcessEnding(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The end of one process: exit_code or signal is set, or neither where it survived SIGKILL."""

    rank: Count
    exit_code: Whole | None
    signal: Count | None
    runtime_seconds: Elapsed = 0.0
    max_rss_bytes: Large = 0


class Running(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One process that was started."""

    rank: Count
    pid: Count
    started_at: Instant


class Unstarted(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One process that never ran, and why."""

    rank: Count
    reason: str


class GroupReport(msgspec.Struct, frozen=True, kw_only=True):
    """A manager's report on the processes of one group on its host."""

    group: Id
    running: list[Running] = []
    ended: list[ProcessEnding] = []
    unstarted: list[Unstarted] = []


class ManagerHello(BusMessage, frozen=True, tag=1):
    """The first message of a manager, repeated until it is answered. The socket's identity is the
    manager's incarnation.

    run: the run of its supervisor, "" before it has met one. groups: all groups that it knows,
    ended ones too.
    """

    version: Count
    run: Word
    facts: MachineFacts
    pid: Count
    groups: list[GroupReport] = []


class Launched(BusMessage, frozen=True, tag=2):
    """The news that processes were started."""

    group: Id
    processes: list[Running]


class LaunchFailed(BusMessage, frozen=True, tag=3):
    """The news that processes could not be started."""

    group: Id
    processes: list[Unstarted]


class Exited(BusMessage, frozen=True, tag=4):
    """The news that processes have ended with their whole trees."""

    group: Id
    processes: list[ProcessEnding]


class Signalled(BusMessage, frozen=True, tag=5):
    """The news that a `SignalProcesses` was carried out. reached: number of processes that got
    it."""

    request: Id
    reached: Count


class Deliver(BusMessage, frozen=True, tag=6):
    """A message of a process for the policy script."""

    group: Id
    rank: Count
    data: bytes
    part: Count = 0
    last: bool = True


class Dropped(BusMessage, frozen=True, tag=7):
    """The news that messages for a process were dropped, because it did not read and its mailbox
    was full."""

    group: Id
    rank: Count
    count: Count


class ProcessUse(msgspec.Struct, frozen=True, array_like=True):
    """The use of one process tree: CPU seconds so far, resident bytes, number of processes."""

    group: Id
    rank: Count
    cpu_seconds: Elapsed
    rss_bytes: Large
    count: Count


class HostUsage(BusMessage, frozen=True, tag=8):
    """A sample of the host: load over one minute, free memory, and every process tree."""

    at: Instant
    load: Figure
    free_bytes: Large
    processes: list[ProcessUse]


class Bye(BusMessage, frozen=True, tag=9):
    """A manager's goodbye: it exits, and none of its processes runs any more."""

    reason: str
    code: Whole


class PortFound(BusMessage, frozen=True, tag=10):
    """The answer to `FindPort`: a free port of the host; 0: none that was tried is free."""

    request: Id
    port: Port


# ---- supervisor → manager


class Welcome(BusMessage, frozen=True, tag=1):
    """The answer to `ManagerHello`: a session begins, with these rules.

    Silence of the supervisor for `silence_seconds` ends the manager's processes after
    `orphan_grace_seconds` more, by TERM and, after `kill_grace_seconds`, KILL. epoch: number of
    times that a script of this run was started.
    """

    run: Word
    epoch: Count
    session: Id
    heartbeat_seconds: Elapsed
    silence_seconds: Elapsed
    orphan_grace_seconds: Elapsed
    kill_grace_seconds: Elapsed


class Who(BusMessage, frozen=True, tag=2):
    """The request to send `ManagerHello` again, because the supervisor does not know the
    session."""

    run: Word


class LaunchProcesses(BusMessage, frozen=True, tag=3):
    """The order to start `count` processes with ranks from `first_rank` up. A rank that is known
    already is reported, never started twice.

    name, log: texts in which the manager fills in `{rank}` and, in log, `{name}`. log: the file for
    the output, None: the manager's own.
    """

    group: Id
    name: str
    world_size: Count
    per_host: Count
    first_rank: Count
    count: Count
    args: list[str]
    env: dict[str, str]
    cwd: str | None
    log: str | None
    simulate: bool = False


class SignalProcesses(BusMessage, frozen=True, tag=4):
    """The order to send a signal to processes or their process groups. ranks: None: all of the
    group on this host."""

    request: Id
    group: Id
    ranks: list[Count] | None
    number: Count
    whole_group: bool


class StopProcesses(BusMessage, frozen=True, tag=5):
    """The order to stop whole process trees: TERM, and KILL after the grace. Repeats act once; a
    sooner KILL wins."""

    group: Id
    ranks: list[Count] | None
    grace_seconds: Elapsed


class Send(BusMessage, frozen=True, tag=6):
    """A message for a process, or (rank None) for every process of the group on this host."""

    group: Id
    rank: Count | None
    data: bytes
    part: Count = 0
    last: bool = True


class Forget(BusMessage, frozen=True, tag=7):
    """The order to end and forget groups that the script does not need any more."""

    groups: list[Id]


class FindPort(BusMessage, frozen=True, tag=9):
    """The request for a port from `first` to `last` that is free on the host."""

    request: Id
    first: Port
    last: Port


class End(BusMessage, frozen=True, tag=8):
    """The order to end every process and exit with `code`. It is sent again whenever a manager that
    was given up sends a frame."""

    run: Word
    code: Whole
    reason: str
    grace_seconds: Elapsed


Up = (
    ManagerHello
    | Launched
    | LaunchFailed
    | Exited
    | Signalled
    | Deliver
    | Dropped
    | HostUsage
    | Bye
    | PortFound
)
Down = (
    Welcome
    | Who
    | LaunchProcesses
    | SignalProcesses
    | StopProcesses
    | Send
    | Forget
    | End
    | FindPort
)

_encoder = msgspec.msgpack.Encoder()
encode_message = _encoder.encode
_decode_up = msgspec.msgpack.Decoder(list[Up]).decode
_decode_down = msgspec.msgpack.Decoder(list[Down]).decode


class Header(NamedTuple):
    """The fixed part of a frame."""

    flags: int
    session: int
    sequence: int
    acknowledged: int


def encode_header(session: int, sequence: int, acknowledged: int, flags: int = 0) -> bytes:
    """Encode a header. A frame of a header alone is a heartbeat."""
    return _pack(_MAGIC, VERSION, flags, session, sequence, acknowledged)


def encode_body(messages: Sequence[bytes]) -> bytes:
    """Join encoded messages, so that one meant for thousands of hosts is encoded once."""
    count = len(messages)
    if count == 1:
        return b"\x91" + messages[0]
    if count < 16:
        head = bytes((0x90 | count,))
    elif count < 1 << 16:
        head = b"\xdc" + count.to_bytes(2, "big")
    else:
        head = b"\xdd" + count.to_bytes(4, "big")
    return head + b"".join(messages)


def decode_header(frame: bytes, direction: int = 0) -> Header:
    """Read a header of a frame from a manager, or (`direction` is FLAG_DOWN) from a supervisor.

    Raises:
        TooLarge: the frame is over `MAX_FRAME_BYTES`.
        ValidationError: it is no frame, of another version, or of the other direction.
    """
    if len(frame) > MAX_FRAME_BYTES:
        raise TooLarge(f"a frame of {len(frame)} bytes is over the limit of {MAX_FRAME_BYTES}")
    if len(frame) < HEADER_BYTES:
        raise ValidationError(f"a frame of {len(frame)} bytes has no whole header")
    magic, version, flags, session, sequence, acknowledged = _unpack(frame)
    if magic != _MAGIC:
        raise ValidationError("the frame is not one of Holdfast's bus")
    if version != VERSION:
        raise ValidationError(
            f"the frame speaks version {version} of the bus; this is version {VERSION}"
        )
    if flags & FLAG_DOWN != direction:
        raise ValidationError("the frame came back to its sender")
    return Header(flags, session, sequence, acknowledged)


def decode_up(frame: bytes) -> list[Up]:
    """Decode the messages of a manager's frame. Raises ValidationError for any others."""
    return decode_messages(memoryview(frame)[HEADER_BYTES:]) if len(frame) > HEADER_BYTES else []


def decode_messages(body: bytes | memoryview) -> list[Up]:
    """Decode the messages behind the header of a manager's frame. Raises ValidationError."""
    try:
        return _decode_up(body)
    except UNREADABLE as error:
        raise ValidationError(f"a frame holds what no manager sends: {error}") from error


def decode_down(frame: bytes) -> list[Down]:
    """Decode the messages of a supervisor's frame. Raises ValidationError for any others."""
    if len(frame) == HEADER_BYTES:
        return []
    try:
        return _decode_down(memoryview(frame)[HEADER_BYTES:])
    except UNREADABLE as error:
        raise ValidationError(f"a frame holds what no supervisor sends: {error}") from error


class Cut(NamedTuple):
    """One part of a message; most messages have one part."""

    data: bytes
    part: int
    last: bool


def cut_parts(data: bytes) -> list[Cut]:
    """Cut a message's bytes: one part up to `MAX_INLINE_BYTES`, else parts of `PART_BYTES`.

    Raises TooLarge over `MAX_MESSAGE_BYTES`.
    """
    size = len(data)
    if size <= MAX_INLINE_BYTES:
        return [Cut(data, 0, True)]
    if size > MAX_MESSAGE_BYTES:
        raise TooLarge(
            f"a message of {size} bytes is over the limit of {MAX_MESSAGE_BYTES}; put it in a file"
        )
    return [
        Cut(data[at : at + PART_BYTES], at // PART_BYTES, at + PART_BYTES >= size)
        for at in range(0, size, PART_BYTES)
    ]


class Assembler:
    """Joins the parts of one sender's messages. A tail whose head was lost is dropped."""

    __slots__ = ("_parts", "_size")

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0

    def add(self, data: bytes, part: int, last: bool) -> bytes | None:
        """Add a part; return the whole message once its last part is there."""
        if part == 0:
            self._parts, self._size = [], 0
        self._size += len(data)
        if part != len(self._parts) or self._size > MAX_MESSAGE_BYTES:
            self._parts, self._size = [], 0
            return None
        self._parts.append(data)
        if not last:
            return None
        whole = b"".join(self._parts)
        self._parts, self._size = [], 0
        return whole
