"""Waking what waits: loops by topic, streams by topic, and each host's one waiting poll.

WAKE-1  A wake between a read and the wait that follows it is never lost: the waiter compares the
        version it saw before the read. Wakes are hints; whoever waits also has a time limit.
"""

from __future__ import annotations

import asyncio


class Signal:
    """A version that grows with every `fire`, and the futures of those who wait for the next
    one."""

    __slots__ = ("_waiters", "version")

    def __init__(self) -> None:
        self.version = 0
        self._waiters: set[asyncio.Future[None]] = set()

    def fire(self) -> None:
        """Wake everyone who waits."""
        self.version += 1
        waiters, self._waiters = self._waiters, set()
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def wait(self, seen: int, seconds: float) -> bool:
        """Wait until the version is not `seen` any more, at most `seconds`. True when it
        changed."""
        if self.version != seen:
            return True
        if seconds <= 0:
            return False
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        self._waiters.add(waiter)
        timer = loop.call_later(seconds, _finish, waiter)
        try:
            await waiter
        finally:
            timer.cancel()
            self._waiters.discard(waiter)
        return self.version != seen


def _finish(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


class HostLine:
    """One host's place in the bus: its signal, and which call of its agent is the newest."""

    __slots__ = ("incarnation", "seq", "signal", "waiting")

    def __init__(self) -> None:
        self.incarnation = ""
        self.seq = -1
        self.signal = Signal()
        self.waiting = 0

    def take(self, incarnation: str, seq: int) -> bool:
        """Note a call; it answers an older waiting one. False when a newer call of this incarnation
        was here before."""
        if incarnation != self.incarnation:
            self.incarnation, self.seq = incarnation, seq
        elif seq < self.seq:
            return False
        self.seq = seq
        if self.waiting:
            self.signal.fire()
        return True

    def is_newest(self, incarnation: str, seq: int) -> bool:
        """True while no newer call has come."""
        return incarnation == self.incarnation and seq == self.seq


class WakeBus:
    """Every signal of this replica. Topics are the store's: "admit", "drain", "due", "events",
    "logs", "host:<id>"."""

    def __init__(self) -> None:
        self._topics: dict[str, Signal] = {}
        self._hosts: dict[str, HostLine] = {}
        self.closing = False

    def topic(self, name: str) -> Signal:
        """The signal of a topic that is not a host's."""
        signal = self._topics.get(name)
        if signal is None:
            signal = self._topics[name] = Signal()
        return signal

    def host(self, host_id: str) -> HostLine:
        """The line of a host."""
        line = self._hosts.get(host_id)
        if line is None:
            line = self._hosts[host_id] = HostLine()
        return line

    def forget_host(self, host_id: str) -> None:
        """Drop a host that will not call again, unless a call of it waits."""
        line = self._hosts.get(host_id)
        if line is not None and not line.waiting:
            del self._hosts[host_id]

    def fire(self, topic: str) -> None:
        """Wake who waits for `topic` on this replica."""
        if topic.startswith("host:"):
            line = self._hosts.get(topic[5:])
            if line is not None:
                line.signal.fire()
            return
        signal = self._topics.get(topic)
        if signal is not None:
            signal.fire()

    @property
    def waiting_polls(self) -> int:
        """How many long polls wait now."""
        return sum(line.waiting for line in self._hosts.values())

    def close(self) -> None:
        """Answer everything that waits: the server goes."""
        self.closing = True
        for line in self._hosts.values():
            line.signal.fire()
        for signal in self._topics.values():
            signal.fire()
