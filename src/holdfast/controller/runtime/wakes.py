"""Wakes for loops and streams, by topic, and for each host's one waiting poll.

WAKE-1  A wake between a read and the wait that follows it is never lost: the waiter compares the
        version it saw before the read. Wakes are hints; every waiter also has a time limit.
"""

import asyncio
import contextlib
from collections.abc import Iterator


class Wake:
    """A version that grows with every `fire`, and the futures that wait for the next one."""

    __slots__ = ("_waiters", "version")

    def __init__(self) -> None:
        self.version = 0
        self._waiters: set[asyncio.Future[None]] = set()

    def fire(self) -> None:
        """Wake every waiter."""
        self.version += 1
        waiters, self._waiters = self._waiters, set()
        for waiter in waiters:
            _finish(waiter)

    async def wait(self, seen: int, seconds: float) -> bool:
        """Wait until the version is not `seen`, at most `seconds`. True when it changed."""
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
    """One host's place in the bus: its wake, and which call of its agent is the newest."""

    __slots__ = ("_incarnation", "_seq", "waiting", "wake")

    def __init__(self) -> None:
        self._incarnation = ""
        self._seq = -1
        self.wake = Wake()
        self.waiting = 0

    def take(self, incarnation: str, seq: int) -> bool:
        """Note a call, which ends the wait of an older one. False when a newer call of this
        incarnation came before."""
        if incarnation == self._incarnation and seq < self._seq:
            return False
        self._incarnation, self._seq = incarnation, seq
        if self.waiting:
            self.wake.fire()
        return True

    def is_newest(self, incarnation: str, seq: int) -> bool:
        """True while no newer call has come."""
        return incarnation == self._incarnation and seq == self._seq

    @contextlib.contextmanager
    def wait(self) -> Iterator[None]:
        """Count a poll as waiting within the block."""
        self.waiting += 1
        try:
            yield
        finally:
            self.waiting -= 1


class WakeBus:
    """Every wake of this replica. Topics are the store's: "admit", "drain", "due", "events",
    "logs", "log_reads", "host:<id>"."""

    def __init__(self) -> None:
        self._topics: dict[str, Wake] = {}
        self._hosts: dict[str, HostLine] = {}
        self.closing = False

    def topic(self, name: str) -> Wake:
        """Return the wake of a topic that is not a host's."""
        wake = self._topics.get(name)
        if wake is None:
            wake = self._topics[name] = Wake()
        return wake

    def host(self, host_id: str) -> HostLine:
        """Return the line of a host."""
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
        """Wake every waiter for `topic` on this replica."""
        if topic.startswith("host:"):
            line = self._hosts.get(topic[5:])
            wake = None if line is None else line.wake
        else:
            wake = self._topics.get(topic)
        if wake is not None:
            wake.fire()

    @property
    def waiting_polls(self) -> int:
        """The number of long polls that wait now."""
        return sum(line.waiting for line in self._hosts.values())

    def close(self) -> None:
        """Wake every waiter, because the server stops."""
        self.closing = True
        for line in self._hosts.values():
            line.wake.fire()
        for wake in self._topics.values():
            wake.fire()
