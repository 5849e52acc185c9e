"""What ties an agent to its guardian: descriptors and names, through the environment."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from holdfast.errors import ValidationError


class Ties(msgspec.Struct, frozen=True, kw_only=True):
    """What the guardian gave this agent through its environment."""

    guardian_fd: int
    beat_fd: int
    beat_socket: str
    incarnation: str
    host_mark: str


def read_ties(environ: Mapping[str, str]) -> Ties:
    """Read the guardian's gifts. Raises ValidationError where this process is no guardian's child."""
    try:
        return Ties(
            guardian_fd=int(environ["HOLDFAST_GUARDIAN_FD"]),
            beat_fd=int(environ["HOLDFAST_BEAT_FD"]),
            beat_socket=environ["HOLDFAST_BEAT_SOCKET"],
            incarnation=environ["HOLDFAST_INCARNATION"],
            host_mark=environ["HOLDFAST_HOST_MARK"],
        )
    except (KeyError, ValueError) as error:
        raise ValidationError(f"{error}: the agent is started by its guardian; use `holdfast agent`") from None
