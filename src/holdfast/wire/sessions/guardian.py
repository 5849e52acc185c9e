"""Agent ↔ guardian about sessions: one message a packet, on a socket of its own beside the line of
`wire.guardian`, because descriptors travel with these messages (SCM_RIGHTS).

The guardian starts a session's process in the environment and folder of its task, and keeps its
ends: the master of its terminal, or its three pipes. It reads none of them. It passes them to the
agent that asked, and again to each later agent, so that an agent's end ends no session.
"""

import msgspec

from holdfast.bounds import Count, Large, Whole
from holdfast.core.ids import TaskKey


class HandMessage(msgspec.Struct, frozen=True, kw_only=True, tag_field="t", omit_defaults=True):
    """Root of the closed set."""


class StartSession(HandMessage, frozen=True, kw_only=True, tag="start"):
    """The order to start a session's process. A known id is answered with its ends again.

    argv: the command. env: variables to set; an empty value takes the variable away. bare: these are
    all, as inside of a container. memory_bytes: the memory limit of a task whose container has it,
    not the guardian; 0 without one. tty: True for a terminal of `rows` × `cols`, else the process
    has three pipes.
    """

    id: str
    key: TaskKey
    argv: list[str]
    env: dict[str, str] = {}
    bare: bool = False
    memory_bytes: Large = 0
    tty: bool = False
    rows: Count = 24
    cols: Count = 80


class SignalSession(HandMessage, frozen=True, kw_only=True, tag="signal"):
    """The order to signal a session's process group."""

    id: str
    signal: Count


class CloseInput(HandMessage, frozen=True, kw_only=True, tag="close"):
    """The order to give up the guardian's own end of a session's input, so that its process reads
    the end of it."""

    id: str


class StopSession(HandMessage, frozen=True, kw_only=True, tag="stop"):
    """The order to end a session: HUP and TERM to its processes, KILL after the grace."""

    id: str
    grace_seconds: float = 1.0


class ForgetSession(HandMessage, frozen=True, kw_only=True, tag="forget"):
    """The news that a session's end is known and its output read, so that the guardian may close
    its ends."""

    id: str


class SessionStarted(HandMessage, frozen=True, kw_only=True, tag="started"):
    """A session's process, with its ends as descriptors: the master of its terminal; or its input,
    output and errors, without the input where that was closed."""

    id: str
    key: TaskKey
    pid: Count
    tty: bool = False
    input_open: bool = True


class SessionOver(HandMessage, frozen=True, kw_only=True, tag="over"):
    """The end of a session's first process, or the reason why it never began, with the exit code of a
    shell for it, 126 or 127, where the command is to blame. Repeated to each new agent until it is
    forgotten."""

    id: str
    key: TaskKey
    exit_code: Whole | None = None
    signal: Count | None = None
    error: str = ""


GuardianRequest = StartSession | SignalSession | CloseInput | StopSession | ForgetSession
GuardianAnswer = SessionStarted | SessionOver

MAX_PACKET_BYTES = 160 << 10
encode = msgspec.msgpack.Encoder().encode
decode_guardian_request = msgspec.msgpack.Decoder(GuardianRequest).decode
decode_guardian_answer = msgspec.msgpack.Decoder(GuardianAnswer).decode


def name_terminal(key: TaskKey) -> str:
    """Return the id under which the guardian keeps the terminal of a task itself."""
    return f"terminal of {key}"
