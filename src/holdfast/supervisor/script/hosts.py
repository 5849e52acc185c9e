"""A host, as the policy script holds it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.supervisor.script.failures import HostLost
from holdfast.supervisor.script.futures import Future
from holdfast.wire.bus import HostUsage, MachineFacts

if TYPE_CHECKING:
    from holdfast.supervisor.line.session_fleet import ManagerPeer
    from holdfast.supervisor.script.groups import ProcessGroup


class Demand(msgspec.Struct, frozen=True):
    """What a manager must offer to be given to a handle."""

    gpus: int = 0
    labels: tuple[tuple[str, str], ...] = ()
    exclude: frozenset[str] = frozenset()

    @staticmethod
    def make(gpus: int, labels: Mapping[str, str] | None, exclude: Any) -> Demand:
        """Put a request's words in order."""
        return Demand(gpus, tuple(sorted((labels or {}).items())), frozenset(exclude))

    def fits(self, facts: MachineFacts) -> bool:
        """True where the host has all of it."""
        return (
            facts.gpus >= self.gpus
            and facts.hostname not in self.exclude
            and all(facts.labels.get(key) == value for key, value in self.labels)
        )

    def describe(self) -> str:
        """In words, for the status line."""
        words = [f"{self.gpus} GPUs"] if self.gpus else []
        words += [f"{key}={value}" for key, value in self.labels]
        words += ["not " + ", ".join(sorted(self.exclude))] if self.exclude else []
        return ", ".join(words) or "any"


class Host:
    """A handle: there at once, attached to a machine when a manager checks in, lost for good when
    that one is.

    Nothing on it is changed by any thread but the bus's.
    """

    def __init__(self, number: int, demand: Demand) -> None:
        self.number = number
        self._demand = demand
        self._peer: ManagerPeer | None = None
        self._identity = b""  # of the manager, also while a script that came back waits for it
        self._facts: MachineFacts | None = None
        self._hostname: Future[str] = Future("hostname", self, shared=True)
        self._lost: Future[float] = Future("the loss", self, shared=True)
        self._cleared: Future[float] = Future("the end of all that runs there", self, shared=True)
        self._reason: str | None = None
        self._groups: dict[int, tuple[ProcessGroup, int]] = {}  # and the host's index in it
        self._early: list[bytes] = []  # encoded messages for when it is attached
        self._usage: HostUsage | None = None

    def __str__(self) -> str:
        return self._facts.hostname if self._facts is not None else f"host {self.number} (waiting)"

    def __repr__(self) -> str:
        state = (
            f"lost: {self._reason}"
            if self._reason
            else "attached"
            if self._peer is not None
            else "waiting"
        )
        return f"<Host {self.number} {self._facts.hostname if self._facts else ''} {state}>"

    def hostname(self) -> Future[str]:
        """The machine's name, once a manager checked in."""
        return self._hostname

    def time_connection_lost(self) -> Future[float]:
        """When the host was lost or given back (Unix time). Pending for as long as all is well."""
        return self._lost

    def time_cleared(self) -> Future[float]:
        """When nothing of this run can run there any more (Unix time), which is later than the
        loss: its manager said goodbye, or the time is over in which manager and warden end
        everything by themselves (25 s after a loss, or `orphan_grace` and 14 s). Wait for it before
        starting ranks that must never overlap with those of the lost host.
        """
        return self._cleared

    def connection_lost(self) -> bool:
        """True once the host is lost, was given back or was replaced. It never comes back; ask for
        another."""
        return self._reason is not None

    @property
    def lost_reason(self) -> str | None:
        """Why the host is lost; None while it is not."""
        return self._reason

    @property
    def attached(self) -> bool:
        """True while a manager serves this handle."""
        return self._peer is not None

    @property
    def facts(self) -> MachineFacts | None:
        """Name, address, CPUs, GPUs, memory and labels; None until a manager checked in."""
        return self._facts

    def usage(self) -> HostUsage | None:
        """The latest sample the manager sent of load, memory and every process tree."""
        return self._usage

    # ---- the bus's thread

    def _attach(self, peer: ManagerPeer, facts: MachineFacts) -> None:
        self._peer = peer
        self._identity = peer.identity
        self._facts = facts
        peer.host = self
        self._hostname.set_result(facts.hostname)

    def _lose(self, reason: str) -> HostLost:
        """Mark it lost; the error for whatever was pending on it."""
        self._reason = reason
        name = self._facts.hostname if self._facts is not None else f"number {self.number}"
        error = HostLost(name, reason)
        if self._peer is not None:
            self._peer.host = None
            self._peer = None
        self._early.clear()
        self._hostname.set_exception(error)
        self._lost.set_result(time.time())
        return error

    def _make_error(self) -> HostLost:
        name = self._facts.hostname if self._facts is not None else f"number {self.number}"
        return HostLost(name, self._reason or "it is lost")
