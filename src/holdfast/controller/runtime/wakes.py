"""Wakes for loops and streams, by topic, and for each host's one waiting poll.

-       A wake between a read and the wait that follows it is never lost: the waiter compares the
        version it saw before the read. Wakes are hints; every waiter also has a time limit.
WAKE-2  What a transaction placed on a host that waits, a submission's own or the leader's, answers
        that host's poll. The offer is on record, so that a poll which ended meanwhile loses nothing:
        the next one has it.
"""

import asyncio
import contextlib
import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from holdfast.moves.values import HostSync, HostSynced

MAX_LOOKED_AT = 64
"""Hosts that a submission looks at; the leader looks at every one."""


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
        return await wait_any({self: seen}, seconds)

    @contextlib.contextmanager
    def joined(self, waiter: asyncio.Future[None]) -> Iterator[None]:
        """Have the next `fire` finish `waiter` too, within the block."""
        self._waiters.add(waiter)
        try:
            yield
        finally:
            self._waiters.discard(waiter)


async def wait_any(
    seen: Mapping[Wake, int], seconds: float, end: asyncio.Future[Any] | None = None
) -> bool:
    """Wait until a wake's version is not the one that was seen, at most `seconds`, and no longer
    than until `end` is done. True when one changed."""
    if any(wake.version != version for wake, version in seen.items()):
        return True
    if seconds <= 0:
        return False
    loop = asyncio.get_running_loop()
    waiter: asyncio.Future[None] = loop.create_future()
    timer = loop.call_later(seconds, _finish, waiter)
    if end is not None:
        end.add_done_callback(lambda _: _finish(waiter))
    with contextlib.ExitStack() as joined:
        for wake in seen:
            joined.enter_context(wake.joined(waiter))
        try:
            await waiter
        finally:
            timer.cancel()
    return any(wake.version != version for wake, version in seen.items())


def _finish(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


class WaitingRoom(msgspec.Struct):
    """What a host that waits has free, as far as its last call tells. `queues` empty: it serves
    every one."""

    cpu_slots: int
    devices: int
    queues: tuple[str, ...]

    def fits(self, queue: str, cpu_slots: int, gpus: int) -> bool:
        """Return whether a job may find room."""
        serves = not self.queues or queue in self.queues
        return serves and self.cpu_slots >= cpu_slots and self.devices >= gpus


class HostLine:
    """One host's place in the bus: its wake, and which call of its agent is the newest."""

    __slots__ = (
        "_gift", "_incarnation", "_seq", "poll", "room", "waiting", "wake",
    )  # fmt: skip

    def __init__(self) -> None:
        self._incarnation = ""
        self._seq = -1
        self.wake = Wake()
        self.waiting = 0
        self.room: WaitingRoom | None = None
        self.poll: HostSync | None = None  # what the newest call asks when it is woken
        self._gift: HostSynced | None = None

    def take(self, incarnation: str, seq: int) -> bool:
        """Note a call, which ends the wait of an older one. False when a newer call of this
        incarnation came before."""
        if incarnation == self._incarnation and seq < self._seq:
            return False
        self._incarnation, self._seq = incarnation, seq
        if self.waiting:
            self.wake.fire()
        return True

    @property
    def incarnation(self) -> str:
        """The agent's, as its newest call says."""
        return self._incarnation

    def is_newest(self, incarnation: str, seq: int) -> bool:
        """True while no newer call has come."""
        return incarnation == self._incarnation and seq == self._seq

    def give(self, incarnation: str, gift: HostSynced) -> None:
        """Answer the poll that waits; one that is on its way looks again (WAKE-2)."""
        if self.waiting and incarnation == self._incarnation:
            self._gift = gift
        self.wake.fire()

    def take_gift(self) -> HostSynced | None:
        """Return what was given since the last look."""
        gift, self._gift = self._gift, None
        return gift

    @contextlib.contextmanager
    def wait(self) -> Iterator[None]:
        """Count a poll as waiting within the block."""
        self.waiting += 1
        try:
            yield
        finally:
            self.waiting -= 1


class WakeBus:
    """Every wake of this replica. Topics are the store's: "admit", "retries", "drain", "members", "due", "events",
    "logs", "log_reads", "host:<id>", "executors", "calls", "calls:<family>", "set:<id>"."""

    def __init__(self) -> None:
        self._topics: dict[str, Wake] = {}
        self._hosts: dict[str, HostLine] = {}
        self._calls: dict[str, HostLine] = {}
        self._watched: dict[str, int] = {}
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

    def calls(self, host_id: str) -> HostLine:
        """Return the line of a host's exchanges of calls, which are apart from its syncs."""
        line = self._calls.get(host_id)
        if line is None:
            line = self._calls[host_id] = HostLine()
        return line

    @contextlib.contextmanager
    def watching(self, name: str) -> Iterator[Wake]:
        """Have the wake of a topic that is only there while something waits for it."""
        self._watched[name] = self._watched.get(name, 0) + 1
        try:
            yield self.topic(name)
        finally:
            self._watched[name] -= 1
            if not self._watched[name]:
                del self._watched[name]
                del self._topics[name]

    def list_polls(self, host_ids: Iterable[str]) -> list[HostSync]:
        """Return what those of these hosts whose calls wait here would ask if they were woken."""
        lines = (self._hosts.get(host_id) for host_id in host_ids)
        polls = (line.poll for line in lines if line is not None and line.waiting)
        return [poll for poll in polls if poll is not None]

    def give(self, gift: HostSynced, incarnation: str) -> None:
        """Answer the call of a host that waits (WAKE-2)."""
        self.host(gift.host_id).give(incarnation, gift)

    def forget_host(self, host_id: str) -> None:
        """Drop a host that will not call again, unless a call of it waits."""
        for lines in (self._hosts, self._calls):
            line = lines.get(host_id)
            if line is not None and not line.waiting:
                del lines[host_id]

    def find_taker(self, queue: str, cpu_slots: int, gpus: int) -> tuple[str, str] | None:
        """Return the fullest waiting host on which a job may find room, of the first ones, and its
        incarnation."""
        found: list[tuple[str, HostLine, WaitingRoom]] = []
        for host_id, line in itertools.islice(self._hosts.items(), MAX_LOOKED_AT):
            room = line.room
            if line.waiting and room is not None and room.fits(queue, cpu_slots, gpus):
                found.append((host_id, line, room))
        if not found:
            return None
        host_id, line, room = min(found, key=lambda one: (one[2].devices, one[2].cpu_slots))
        room.cpu_slots -= max(1, cpu_slots)  # until its next call tells
        room.devices -= gpus
        return host_id, line.incarnation

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
        lines = (*self._hosts.values(), *self._calls.values())
        return sum(line.waiting for line in lines)

    def close(self) -> None:
        """Wake every waiter, because the server stops."""
        self.closing = True
        for line in (*self._hosts.values(), *self._calls.values()):
            line.wake.fire()
        for wake in self._topics.values():
            wake.fire()
