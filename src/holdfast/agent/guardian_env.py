"""Read the environment that a guardian gives its agent: descriptors and names."""

import os
import time
from collections.abc import Mapping
from typing import Literal

import msgspec

from holdfast.errors import ValidationError

MEMORY_VARIABLE = "HOLDFAST_MEMORY_LIMITS"
MemoryLimits = Literal["group", "watch"]
"""Name the part that ends a task over its memory limit: its control group, or the agent's watch."""


class Ties(msgspec.Struct, frozen=True, kw_only=True):
    """The descriptors and names that tie an agent to its guardian.

    guardian_fd: the agent's end of the line to the guardian. beat_fd, beat_socket: the socket of
    the beats, and its path. sessions_fd: the agent's end of the line about sessions. incarnation: the
    guardian's run of this host. host_mark: the mark of the host's processes.
    """

    guardian_pid: int
    guardian_fd: int
    sessions_fd: int
    beat_fd: int
    beat_socket: str
    incarnation: str
    host_mark: str
    memory_limits: MemoryLimits = "watch"
    groups: str = ""
    """The folder of the host's control groups; "" where there is none."""
    keepers: bool = False
    """Note whether tasks end with their leases even if the guardian is frozen (KEEPER-1)."""


def read_ties(environ: Mapping[str, str]) -> Ties:
    """Read the guardian's variables. Raises ValidationError if this is no guardian's child."""
    try:
        return Ties(
            guardian_pid=int(environ["HOLDFAST_GUARDIAN_PID"]),
            guardian_fd=int(environ["HOLDFAST_GUARDIAN_FD"]),
            sessions_fd=int(environ["HOLDFAST_SESSIONS_FD"]),
            beat_fd=int(environ["HOLDFAST_BEAT_FD"]),
            beat_socket=environ["HOLDFAST_BEAT_SOCKET"],
            incarnation=environ["HOLDFAST_INCARNATION"],
            host_mark=environ["HOLDFAST_HOST_MARK"],
            groups=environ.get("HOLDFAST_GROUPS", ""),
            keepers=environ.get("HOLDFAST_KEEPERS") == "yes",
            memory_limits="group" if environ.get(MEMORY_VARIABLE) == "group" else "watch",
        )
    except (KeyError, ValueError) as error:
        sentence = f"{error}: the agent is started by its guardian; use `holdfast agent`"
        raise ValidationError(sentence) from None


def wait_for_guardians_end(ties: Ties, seconds: float = 10.0) -> bool:
    """Return True if the guardian is gone, or ends within `seconds`.

    A process closes its sockets a moment before it is gone. Only a child of the guardian can call
    this, because a child whose parent died has another parent.
    """
    give_up_at = time.monotonic() + seconds
    while os.getppid() == ties.guardian_pid:
        if time.monotonic() >= give_up_at:
            return False
        time.sleep(0.02)
    return True
