"""Wakes for loops and streams, by topic, and for each host's one waiting poll.

- A wake between a read and the wait that follows it is never lost: the waiter compares the
  version it saw before the read. Wakes are hints; every waiter also has a time limit.
WAKE-2  An order that a transaction (a submission's or the leader's) places on a host whose poll
        waits here is the answer to that poll. The offer is on record, so a poll that ended
        meanwhile loses nothing: the next poll reads it.
"""

import asyncio
import contextlib
import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from holdfast.core.placement.eligible import serves
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
        """Wait until the version is not `seen`, at most `seconds`. Return True when the version
        changed."""
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
    """Wait until the version of one wake is not the one that was seen, at most `seconds`, and no
    longer than until `end` is done. Return True when one changed."""
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
    """The free room of a host whose poll waits, estimated from its last call. queues: the queues
    that it serves; empty means every queue."""

    cpu_slots: int
    devices: int
    queues: tuple[str, ...]

    def fits(self, queue: str, cpu_slots: int, gpus: int) -> bool:
        """Return whether a job with these needs may find room on the host."""
        room = self.cpu_slots >= cpu_slots and self.devices >= gpus
        return room and serves(self.queues, queue)


class HostPolls:
    """The long polls of one host at this replica: the wake of the poll that waits, and which call
    of the host's agent is the newest."""

    __slots__ = (
        "_answer", "_incarnation", "_seq", "poll", "room", "waiting", "wake",
    )  # fmt: skip

    def __init__(self) -> None:
        self._incarnation = ""
        self._seq = -1
        self.wake = Wake()
        self.waiting = 0
        self.room: WaitingRoom | None = None
        self.poll: HostSync | None = None  # the request of the newest call, sent when it is woken
        self._answer: HostSynced | None = None

    def begin_poll(self, incarnation: str, seq: int) -> bool:
        """Note a call of the host, and wake an older call so that it ends. Return False when a
        newer call of this incarnation came before."""
        if incarnation == self._incarnation and seq < self._seq:
            return False
        self._incarnation, self._seq = incarnation, seq
        if self.waiting:
            self.wake.fire()
        return True

    @property
    def incarnation(self) -> str:
        """Return the incarnation that the agent's newest call named."""
        return self._incarnation

    def is_newest(self, incarnation: str, seq: int) -> bool:
        """Return True while no newer call of the host has come."""
        return incarnation == self._incarnation and seq == self._seq

    def answer(self, incarnation: str, answer: HostSynced) -> None:
        """Leave an answer for the poll that waits, and wake it. A poll of another incarnation is
        only woken, and reads the store again (WAKE-2); so is the next poll where an answer is left
        here already, because two of them are not made one."""
        if self.waiting and incarnation == self._incarnation and self._answer is None:
            self._answer = answer
        self.wake.fire()

    def take_answer(self) -> HostSynced | None:
        """Return the answer that `answer` has left for the waiting poll since the last call of this
        function, or None."""
        answer, self._answer = self._answer, None
        return answer

    @contextlib.contextmanager
    def wait(self) -> Iterator[None]:
        """Count a poll as waiting within the block."""
        self.waiting += 1
        try:
            yield
        finally:
            self.waiting -= 1


class WakeBus:
    """Every wake of this replica. Topics are the store's: "admit", "retries", "ended", "drain",
    "members", "due", "events", "logs", "log_reads", "host:<id>", "executors", "calls", "calls:<family>",
    "set:<id>"."""

    def __init__(self) -> None:
        self._topics: dict[str, Wake] = {}
        self._hosts: dict[str, HostPolls] = {}
        self._calls: dict[str, HostPolls] = {}
        self._watched: dict[str, int] = {}
        self.closing = False

    def topic(self, name: str) -> Wake:
        """Return the wake of a topic. The wakes of hosts have functions of their own."""
        wake = self._topics.get(name)
        if wake is None:
            wake = self._topics[name] = Wake()
        return wake

    def host(self, host_id: str) -> HostPolls:
        """Return the polls of a host's syncs."""
        polls = self._hosts.get(host_id)
        if polls is None:
            polls = self._hosts[host_id] = HostPolls()
        return polls

    def calls(self, host_id: str) -> HostPolls:
        """Return the polls of a host's exchanges of calls, which are apart from its syncs."""
        polls = self._calls.get(host_id)
        if polls is None:
            polls = self._calls[host_id] = HostPolls()
        return polls

    @contextlib.contextmanager
    def watching(self, name: str) -> Iterator[Wake]:
        """Yield the wake of a topic. The wake is kept only while a caller waits for it."""
        self._watched[name] = self._watched.get(name, 0) + 1
        try:
            yield self.topic(name)
        finally:
            self._watched[name] -= 1
            if not self._watched[name]:
                del self._watched[name]
                del self._topics[name]

    def list_polls(self, host_ids: Iterable[str]) -> list[HostSync]:
        """Return the requests that the polls waiting here, of these hosts, would make once
        woken."""
        hosts = (self._hosts.get(host_id) for host_id in host_ids)
        requests = (polls.poll for polls in hosts if polls is not None and polls.waiting)
        return [poll for poll in requests if poll is not None]

    def answer_poll(self, answer: HostSynced, incarnation: str) -> None:
        """Answer the poll of a host (WAKE-2)."""
        self.host(answer.host_id).answer(incarnation, answer)

    def forget_host(self, host_id: str) -> None:
        """Drop the polls of a host that will not call again, unless a call of that host waits."""
        for of_hosts in (self._hosts, self._calls):
            polls = of_hosts.get(host_id)
            if polls is not None and not polls.waiting:
                del of_hosts[host_id]

    def find_taker(self, queue: str, cpu_slots: int, gpus: int) -> tuple[str, str] | None:
        """Return the id and incarnation of a waiting host with room for a job, or None: the host
        with the least free room among the first `MAX_LOOKED_AT`."""
        found: list[tuple[str, HostPolls, WaitingRoom]] = []
        for host_id, polls in itertools.islice(self._hosts.items(), MAX_LOOKED_AT):
            room = polls.room
            if polls.waiting and room is not None and room.fits(queue, cpu_slots, gpus):
                found.append((host_id, polls, room))
        if not found:
            return None
        host_id, polls, room = min(found, key=lambda one: (one[2].devices, one[2].cpu_slots))
        room.cpu_slots -= max(1, cpu_slots)  # until its next call tells
        room.devices -= gpus
        return host_id, polls.incarnation

    def fire(self, topic: str) -> None:
        """Wake every waiter for `topic` on this replica."""
        if topic.startswith("host:"):
            polls = self._hosts.get(topic[5:])
            wake = None if polls is None else polls.wake
        else:
            wake = self._topics.get(topic)
        if wake is not None:
            wake.fire()

    @property
    def waiting_polls(self) -> int:
        """Return the number of long polls that wait now."""
        every = (*self._hosts.values(), *self._calls.values())
        return sum(polls.waiting for polls in every)

    def close(self) -> None:
        """Wake every waiter, because the server stops."""
        self.closing = True
        for polls in (*self._hosts.values(), *self._calls.values()):
            polls.wake.fire()
        for wake in self._topics.values():
            wake.fire()
