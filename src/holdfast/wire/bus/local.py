"""Inside one host: host manager ↔ warden, and host manager ↔ user process. msgpack messages in
`wire.frames`.

The warden is the process that parents the user's processes; it has a socket pair with its manager.
A user process dials the manager's Unix socket and names itself by the secret in its environment;
after that both sides send `Part`s.
"""

import msgspec

from holdfast.bounds import Count, Elapsed, Large, Whole

SOCKET_VARIABLE = "HOLDFAST_SUPERVISOR_SOCKET"
TOKEN_VARIABLE = "HOLDFAST_SUPERVISOR_TOKEN"


class Local(msgspec.Struct, frozen=True, array_like=True):
    """Root of the closed sets of this module."""


# ---- manager → warden. `key` is the manager's number for a process, never used twice.


class Start(Local, frozen=True, tag=1):
    """An order to start a process. env: the whole environment, in bytes, because values need not be
    text. cwd: its folder; output: the file for its output, None: the manager's own."""

    key: Large
    argv: list[str]
    env: dict[bytes, bytes]
    cwd: str | None
    output: str | None


class SignalTree(Local, frozen=True, tag=2):
    """Send a signal to processes, or to their whole process groups."""

    request: Large
    keys: list[Large]
    number: Count
    whole_group: bool


class StopTree(Local, frozen=True, tag=3):
    """An order to stop whole process trees: TERM, and KILL after the grace."""

    keys: list[Large]
    grace_seconds: Elapsed


class ManagerAlive(Local, frozen=True, tag=4):
    """The sign that the manager's loop runs. Silence beyond the warden's `frozen_seconds` ends
    every process."""


# ---- warden → manager


class ProcessStarted(Local, frozen=True, tag=1):
    """The news that a process runs."""

    key: Large
    pid: Count


class NotStarted(Local, frozen=True, tag=2):
    """The news that a process could not be started."""

    key: Large
    reason: str


class TreeEnded(Local, frozen=True, tag=3):
    """The news that a process has ended with its whole tree. survivors: pids that outlived
    SIGKILL."""

    key: Large
    exit_code: Whole | None
    signal: Count | None
    runtime_seconds: Elapsed
    max_rss_bytes: Large
    survivors: list[Count]


class SignalDone(Local, frozen=True, tag=4):
    """The news that a `SignalTree` was carried out. reached: number of processes that got it."""

    request: Large
    reached: Count


class Turned(Local, frozen=True, tag=5):
    """The answer to `ManagerAlive`: the sign that the warden's loop runs."""


# ---- user process ↔ manager


class Enter(Local, frozen=True, tag=1):
    """The first message of a user process: the secret from its environment."""

    token: str


class Part(Local, frozen=True, tag=2):
    """A message, or a part of one."""

    data: bytes
    part: Count = 0
    last: bool = True


WardenRequest = Start | SignalTree | StopTree | ManagerAlive
WardenAnswer = ProcessStarted | NotStarted | TreeEnded | SignalDone | Turned
FromProcess = Enter | Part

encode_local = msgspec.msgpack.Encoder().encode
decode_warden_request = msgspec.msgpack.Decoder(WardenRequest).decode
decode_warden_answer = msgspec.msgpack.Decoder(WardenAnswer).decode
decode_from_process = msgspec.msgpack.Decoder(FromProcess).decode
decode_to_process = msgspec.msgpack.Decoder(Part).decode
