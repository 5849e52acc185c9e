"""A host, as the policy script sees it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.supervisor.futures.future import Future
from holdfast.supervisor.rosters.failures import HostLost
from holdfast.wire.bus.messages import HostUsage, MachineFacts

if TYPE_CHECKING:
    from holdfast.errors import HoldfastError
    from holdfast.supervisor.line.bus import Peer


class Demand(msgspec.Struct, frozen=True):
    """The GPUs, labels and names that a machine must have to be attached to a handle."""

    gpus: int = 0
    labels: tuple[tuple[str, str], ...] = ()
    exclude: frozenset[str] = frozenset()

    @staticmethod
    def make(gpus: int, labels: Mapping[str, str] | None, exclude: Any) -> Demand:
        """Make a demand with sorted labels, so that equal demands compare equal."""
        return Demand(gpus, tuple(sorted((labels or {}).items())), frozenset(exclude))

    def fits(self, facts: MachineFacts) -> bool:
        """Return True where the machine meets the whole demand."""
        return (
            facts.gpus >= self.gpus
            and facts.hostname not in self.exclude
            and all(facts.labels.get(key) == value for key, value in self.labels)
        )


class Host:
    """A handle: there at once, attached to a machine when a manager connects, lost for good when
    that manager is.

    Only the bus's thread changes it. `demand`, `peer` (the manager's session), `identity` (the
    manager's identity, also while a script that came back waits for it), `ask_port` and `parts` (group number →
    the group, and the host's index in it) are the library's own.
    """

    def __init__(self, number: int, demand: Demand) -> None:
        self.number = number
        self.demand = demand
        self.peer: Peer | None = None
        self.identity = b""
        self.parts: dict[int, tuple[Any, int]] = {}
        self._facts: MachineFacts | None = None
        self._hostname: Future[str] = Future("hostname", self, shared=True)
        self._lost: Future[float] = Future("the loss", self, shared=True)
        self._cleared: Future[float] = Future("the end of all that runs there", self, shared=True)
        self._reason: str | None = None
        self._held: list[bytes] = []  # encoded messages to send once the host is attached
        self._usage: HostUsage | None = None
        self.ask_port: Callable[[Host, range], Future[int]]  # set by the roster

    def __str__(self) -> str:
        return self._facts.hostname if self._facts is not None else f"host {self.number} (waiting)"

    def __repr__(self) -> str:
        state = "attached" if self.attached else "waiting"
        if self._reason:
            state = f"lost: {self._reason}"
        return f"<Host {self.number} {self._facts.hostname if self._facts else ''} {state}>"

    def hostname(self) -> Future[str]:
        """Return a future for the machine's name, known once a manager is attached."""
        return self._hostname

    def find_port(self, ports: range) -> Future[int]:
        """Return a future for one of these ports that is free on the machine; its value is 0 where
        none is free."""
        return self.ask_port(self, ports)

    def time_connection_lost(self) -> Future[float]:
        """Return a future for when the host was lost or given back (Unix time). It is pending while
        the host is neither."""
        return self._lost

    def time_cleared(self) -> Future[float]:
        """Return a future for when no process of this run can run on the host any more (Unix time).
        That is later than the loss: the host's manager said goodbye, or the time is over in which
        manager and warden end everything by themselves (25 s after a loss, or `orphan_grace` and 19
        s). Wait for it before starting ranks that must never overlap with those of the lost
        host."""
        return self._cleared

    def connection_lost(self) -> bool:
        """Return True once the host is lost, given back or replaced. Such a host never comes
        back."""
        return self._reason is not None

    @property
    def lost_reason(self) -> str | None:
        """Return why the host is lost; None while it is not."""
        return self._reason

    @property
    def attached(self) -> bool:
        """Return True while a manager serves this handle."""
        return self.peer is not None

    @property
    def facts(self) -> MachineFacts | None:
        """Return name, address, CPUs, GPUs, memory and labels; None until a manager is attached."""
        return self._facts

    def usage(self) -> HostUsage | None:
        """Return the manager's latest sample of load, memory and every process tree."""
        return self._usage

    # ---- the library's own, in the bus's thread or before that starts

    def revive(self, identity: bytes, facts: MachineFacts | None, reason: str | None) -> None:
        """Take over the saved state of an earlier script."""
        self.identity = identity
        self._facts = facts
        if reason is not None:
            self.lose(reason)
        elif facts is not None:
            self._hostname.set_result(facts.hostname)

    def attach(self, peer: Peer) -> None:
        """Attach the handle to this manager."""
        self.peer = peer
        self.identity = peer.identity
        self._facts = peer.facts
        peer.host = self
        self._hostname.set_result(peer.facts.hostname)

    def hold(self, message: bytes) -> None:
        """Keep a message until the host is attached; drop it where the host is lost."""
        if self._reason is None:
            self._held.append(message)

    def take_held(self) -> list[bytes]:
        """Remove and return the messages that were kept."""
        held, self._held = self._held, []
        return held

    def note_usage(self, usage: HostUsage) -> None:
        """Keep the host's latest sample of usage."""
        self._usage = usage

    def lose(self, reason: str) -> HostLost:
        """Mark the host as lost; return the error of every future that was pending on this host."""
        self._reason = reason
        error = self.make_error()
        if self.peer is not None:
            self.peer.host = None
            self.peer = None
        self._held.clear()
        self._hostname.set_exception(error)
        self._lost.set_result(time.time())
        return error

    def clear(self) -> None:
        """Settle `time_cleared`, because no process of this run can run there any more."""
        self._cleared.set_result(time.time())

    def close(self, error: HoldfastError) -> None:
        """Fail the host's futures, because nothing more will be known of this host."""
        for future in (self._hostname, self._lost, self._cleared):
            future.set_exception(error)

    def make_error(self) -> HostLost:
        """Make the error for calls to the lost host."""
        name = self._facts.hostname if self._facts is not None else f"number {self.number}"
        return HostLost(name, self._reason or "it is lost")
