"""Keep places for ranks of gangs until all their peers have one: this host's half of the barrier.

GANG-1  No rank of a gang is launched before every rank has its place: hosts claim, the store opens
        the barrier in the transaction of the last claim, and only then are launches offered. A gang
        on one host is offered at once, because one answer has all of its launches: the host
        launches all or none. (A supervised job does claim, because its members may be replaced on
        another host, and need the port of rank 0 on record.)

A claim is a promise and no process: it costs nothing, is reported in every sync, and is dropped
when its rank is stopped or lost, or its lease ends. A new agent has no claims; the controller
orders them again.
"""

from __future__ import annotations

import logging
import math
import random
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

from holdfast.agent.journal import about
from holdfast.core.ids import TaskKey
from holdfast.wire.agent import ClaimOrder, TaskReport

log = logging.getLogger("holdfast.agent.orders.claims")

LOWEST_PORT = 20_000  # well-known services listen on ports below this one
PORT_TRIES = 64
KEPT_SECONDS = 600.0  # how long a port that was handed out is not handed out again
RANGE_SECONDS = 60.0  # how long the kernel's range of ports is remembered before it is read again


class Claim:
    """Hold one place for a rank. `port` stays bound until the launch, so that no other process
    binds it; 0 for ranks other than 0, whose place needs no port."""

    __slots__ = ("deadline", "port", "socket")

    def __init__(self, deadline: float, bound: socket.socket | None) -> None:
        self.deadline = deadline
        self.socket = bound
        self.port = bound.getsockname()[1] if bound is not None else 0

    def close(self) -> None:
        """Free the port."""
        if self.socket is not None:
            self.socket.close()
            self.socket = None


class Claims:
    """Holds the places that this agent keeps for ranks of gangs."""

    def __init__(self, ports: PortChooser | None = None) -> None:
        self._claims: dict[TaskKey, Claim] = {}
        self.ports = ports or PortChooser()

    def __len__(self) -> int:
        return len(self._claims)

    def __contains__(self, key: TaskKey) -> bool:
        return key in self._claims

    def keep(self, order: ClaimOrder, deadline: float, now: float) -> bool:
        """Keep a place until `deadline` (`deadline` and `now` are instants of CLOCK_BOOTTIME).
        Return True if the place is new."""
        known = self._claims.get(order.key)
        if known is not None:
            known.deadline = max(known.deadline, deadline)
            return False
        bound = self.ports.bind(now) if order.key.rank == 0 else None
        self._claims[order.key] = Claim(deadline, bound)
        extra = about(order.key, attempt=order.attempt)
        log.info("a place is kept until its peers have theirs", extra=extra)
        return True

    def extend(self, key: TaskKey, deadline: float) -> bool:
        """Move a claim's deadline later, because its lease was renewed. Return True if the key
        is a claim."""
        claim = self._claims.get(key)
        if claim is not None:
            claim.deadline = max(claim.deadline, deadline)
        return claim is not None

    def drop(self, key: TaskKey) -> bool:
        """Forget a place, because its rank was launched, stopped or lost. Return True if it was
        kept."""
        claim = self._claims.pop(key, None)
        if claim is not None:
            claim.close()
        return claim is not None

    def reports(self, now: float) -> list[TaskReport]:
        """Return a report of each claim for the next sync, after claims whose lease is over are
        dropped."""
        for key in [key for key, claim in self._claims.items() if claim.deadline <= now]:
            log.warning("a kept place was given up: its lease is over", extra=about(key))
            self.drop(key)
        kept = self._claims.items()
        return [TaskReport(key=key, state="claimed", port=claim.port) for key, claim in kept]


class PortChooser:
    """Finds free ports for the rendezvous of gangs.

    PORT-1  A port that was handed out is not handed out again for `KEPT_SECONDS`, because a task
            may need long until it listens.
    PORT-2  Ports are chosen below the kernel's range for outgoing connections, so that no outgoing
            connection occupies the port between its release here and the task's own bind. A port
            of that range is chosen only if every port tried below it is in use.
    """

    def __init__(self, chance: Callable[[int, int], int] = random.randint) -> None:
        self._chance = chance
        self._given: dict[int, float] = {}  # port → free again at, in that order
        self._quiet: tuple[int, int] = (1, 0)
        self._quiet_until = -math.inf

    def bind(self, now: float) -> socket.socket | None:
        """Return a socket bound to a free port of this host, on all its addresses, because the
        peers of rank 0 connect to it from other hosts. Return None if no port is free: the task
        then chooses its own."""
        found = self._bind_one(now)
        return None if found is None else found[0]

    def _bind_one(self, now: float) -> tuple[socket.socket, int] | None:
        self._free_old(now)
        for asked in self._list_tries(now):
            bound = _bind(asked)
            if bound is not None:
                port = asked or int(bound.getsockname()[1])
                self._given.pop(port, None)
                self._given[port] = now + KEPT_SECONDS
                return bound, port
        log.warning("no port could be had for a rendezvous")
        return None

    def _free_old(self, now: float) -> None:
        """Forget the ports that were handed out more than `KEPT_SECONDS` ago. The oldest come
        first, so that a call reads no more entries than it deletes, because every short task
        needs a port, too."""
        while self._given:
            port, until = next(iter(self._given.items()))
            if until > now:
                break
            del self._given[port]

    def _list_tries(self, now: float) -> Iterator[int]:
        if now >= self._quiet_until:
            self._quiet, self._quiet_until = read_quiet_ports(), now + RANGE_SECONDS
        low, high = self._quiet
        for _ in range(PORT_TRIES if high - low >= PORT_TRIES else 0):
            port = self._chance(low, high)
            if port not in self._given:
                yield port
        yield 0  # the kernel chooses (PORT-2)

    def find(self, now: float) -> int:
        """Return a port that is free now, for a task that starts at once; 0 if none is free."""
        found = self._bind_one(now)
        if found is None:
            return 0
        bound, port = found
        bound.close()
        return port


def read_quiet_ports() -> tuple[int, int]:
    """Return the first and last port below the range of outgoing connections; (1, 0) if there
    are none."""
    try:
        first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return 1, 0
    return LOWEST_PORT, first - 1


def _bind(port: int) -> socket.socket | None:
    bound = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        # Without SO_REUSEADDR: a port with a listener, or with one a moment ago, is not free.
        bound.bind(("", port))
    except OSError:
        bound.close()
        return None
    return bound
