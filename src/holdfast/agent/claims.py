"""Places kept for ranks of gangs until all their peers have one too: the host's half of the start barrier (GANG-1).

A claim is a promise, not a process: it costs nothing, is reported in every sync, and is forgotten at a stop, at a loss and
at the end of its lease. A new agent has none; the controller asks it again.
"""

from __future__ import annotations

import logging
import socket

from holdfast.agent.journal import about
from holdfast.core.ids import TaskKey
from holdfast.wire.agent import ClaimOrder, TaskReport

log = logging.getLogger("holdfast.agent.claims")


class Claim:
    """One kept place. `port` is bound until the launch, so that nobody else on this host takes it meanwhile."""

    __slots__ = ("deadline", "port", "socket")

    def __init__(self, deadline: float, bound: socket.socket | None) -> None:
        self.deadline = deadline
        self.socket = bound
        self.port = bound.getsockname()[1] if bound is not None else 0

    def close(self) -> None:
        """Let go of the port."""
        if self.socket is not None:
            self.socket.close()
            self.socket = None


class Claims:
    """The places this agent keeps."""

    def __init__(self) -> None:
        self._claims: dict[TaskKey, Claim] = {}

    def __len__(self) -> int:
        return len(self._claims)

    def __contains__(self, key: TaskKey) -> bool:
        return key in self._claims

    def keep(self, order: ClaimOrder, deadline: float) -> bool:
        """Keep a place until `deadline` (CLOCK_BOOTTIME). True when it is a new one."""
        known = self._claims.get(order.key)
        if known is not None:
            known.deadline = max(known.deadline, deadline)
            return False
        self._claims[order.key] = Claim(deadline, _bind_port() if order.key.rank == 0 else None)
        log.info("a place is kept until its peers have theirs", extra=about(order.key, attempt=order.attempt))
        return True

    def extend(self, key: TaskKey, deadline: float) -> bool:
        """The lease was renewed. True when the key is a claim."""
        claim = self._claims.get(key)
        if claim is None:
            return False
        claim.deadline = max(claim.deadline, deadline)
        return True

    def drop(self, key: TaskKey) -> bool:
        """Forget a place: it is launched, stopped or lost. True when it was kept."""
        claim = self._claims.pop(key, None)
        if claim is None:
            return False
        claim.close()
        return True

    def reports(self, now: float) -> list[TaskReport]:
        """What is said of them in a sync. Those whose lease is over are forgotten first."""
        for key in [key for key, claim in self._claims.items() if claim.deadline <= now]:
            log.warning("a kept place was given up: its lease is over", extra=about(key))
            self.drop(key)
        return [TaskReport(key=key, state="claimed", port=claim.port) for key, claim in self._claims.items()]


def _bind_port() -> socket.socket | None:
    """A free port of this host, on all its addresses: rank 0 listens where its peers reach it.

    SO_REUSEADDR lets the task bind it the moment it is let go. Without a port (all taken) the rendezvous falls to the
    task's own choice, and its failure is told by its log.
    """
    bound = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(("", 0))
    except OSError as error:
        log.warning(f"no port could be had for a rendezvous: {error}")
        bound.close()
        return None
    return bound


def find_port() -> int:
    """A port that is free now; 0 where none can be had."""
    bound = _bind_port()
    if bound is None:
        return 0
    with bound:
        return int(bound.getsockname()[1])
