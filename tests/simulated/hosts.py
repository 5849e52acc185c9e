"""Many simulated hosts in one process, over the real wire, for tests and benchmarks of scale.

A thousand real managers would need a thousand processes. Here every host is a DEALER and a
`HostSession`; only its processes are simulated (`holdfast.supervisor.host.simulated`).
"""

from __future__ import annotations

import argparse
import gc
import heapq
import os
import select
import sys
import time
from pathlib import Path
from typing import Any

import zmq

from holdfast.process.loop import catch_signals
from holdfast.process.spawn import raise_descriptor_limit
from holdfast.supervisor import Context
from holdfast.supervisor.host.host_manager import dial
from holdfast.supervisor.host.ports import answer_port
from holdfast.supervisor.host.simulated import SimulatedProcesses
from holdfast.supervisor.line.keys import ManagerKey, parse_manager_key
from holdfast.supervisor.line.session_host import HostSession
from holdfast.wire.bus.messages import End, FindPort, MachineFacts, Up, encode_message

_MAX_SOCKETS = 65_000
_FRAMES_PER_TURN = 64
_GOODBYE_SECONDS = 1.0
_MAX_EVENTS = 4096
_DIALLING = 64
_DIAL_SECONDS = 0.05
_POLLIN = int(zmq.POLLIN)  # the enum's own `&` takes longer than all else that a message takes here


class _SimulatedHost:
    __slots__ = ("bye_at", "dealer", "due", "fd", "processes", "session")

    def __init__(
        self, dealer: zmq.Socket[bytes], session: HostSession, processes: SimulatedProcesses
    ) -> None:
        self.dealer = dealer
        fd = dealer.get(zmq.FD)
        assert isinstance(fd, int)
        self.fd = fd
        self.session = session
        self.processes = processes
        self.bye_at: float | None = None
        self.due = 0.0

    def say(self, messages: list[Up]) -> None:
        """Queue messages for the supervisor."""
        push = self.session.push_ordered
        for message in messages:
            push(encode_message(message))

    def read(self, now: float) -> None:
        """Read the waiting frames, up to a limit."""
        for _ in range(_FRAMES_PER_TURN):
            if not self.take(now):
                return

    def take(self, now: float) -> bool:
        """Read one frame and act on it. Returns False when none waits."""
        try:
            frame = self.dealer.recv(zmq.NOBLOCK)
        except zmq.Again:
            return False
        for message in self.session.receive(frame, now):
            answers = self.processes.take(message, now)
            if answers:
                self.say(answers)
            elif isinstance(message, FindPort):
                self.say([answer_port(message)])
            elif isinstance(message, End):
                self.session.end(message)
        return True

    def step(self, now: float) -> bool:
        """Do the work that is due and send the queued frames. Returns False once this host is
        over."""
        session = self.session
        if now >= self.processes.next_at:
            self.say(self.processes.tick(now))
        session.tick(now)
        if session.ending is not None and self.bye_at is None:
            self.bye_at = now + _GOODBYE_SECONDS
            self.say(self.processes.end_all())
            session.say_bye(session.ending.reason, session.ending.code)
        self.send(now)
        if self.bye_at is not None and (session.settled or now >= self.bye_at):
            return False
        self.due = min(session.next_at, self.processes.next_at, self.bye_at or float("inf"))
        return True

    def settle(self, now: float) -> None:
        """Read the socket's events until it has none, because its descriptor reports each message
        once, and sending may have consumed that report."""
        while not self.dealer.closed and _has_input(self.dealer):
            self.take(now)
            self.send(now)

    def send(self, now: float) -> None:
        """Send the queued frames."""
        for frame in self.session.take_frames(now):
            try:
                self.dealer.send(frame, zmq.NOBLOCK)
            except zmq.Again:
                pass  # not connected yet: the session sends the frame again


def _has_input(dealer: zmq.Socket[bytes]) -> bool:
    events = dealer.get(zmq.EVENTS)
    return isinstance(events, int) and bool(events & _POLLIN)


class SimulatedFleet:
    """The loop over all simulated hosts."""

    def __init__(
        self, url: str, key: ManagerKey | None, count: int, name: str, patience: float
    ) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._context.set(zmq.MAX_SOCKETS, _MAX_SOCKETS)
        raise_descriptor_limit()  # each host takes two
        self._poll = select.epoll()
        self._hosts: dict[int, _SimulatedHost] = {}
        self._heap: list[tuple[float, int]] = []
        self._wake_fd = catch_signals()
        self._poll.register(self._wake_fd, select.EPOLLIN)
        self._url, self._key, self._name, self._patience = url, key, name, patience
        self._count = count
        self._made = 0
        self._unmet: set[int] = set()

    def _dial_some(self, now: float) -> None:
        """Dial the next few hosts, because the handshakes of all at once would delay heartbeats."""
        hosts = self._hosts
        self._unmet = {fd for fd in self._unmet & hosts.keys() if hosts[fd].session.link is None}
        while self._made < self._count and len(self._unmet) < _DIALLING:
            processes = SimulatedProcesses()
            session = HostSession(
                MachineFacts(hostname=f"{self._name}-{os.getpid()}-{self._made}", cpus=1),
                os.getpid(),
                now=now,
                patience_seconds=self._patience,
                run=self._key.run if self._key is not None else "",
                report=processes.report,
            )
            host = _SimulatedHost(dial(self._context, self._url, self._key), session, processes)
            self._hosts[host.fd] = host
            self._unmet.add(host.fd)
            self._made += 1
            self._poll.register(host.fd, select.EPOLLIN | select.EPOLLET)
            heapq.heappush(self._heap, (now, host.fd))
        if self._made == self._count:
            gc.freeze()  # all live as long as this process, and a look at thousands takes long

    def run(self) -> int:
        """Run until every host is over; return the exit code of the last one."""
        code = 0
        while self._hosts or self._made < self._count:
            now = time.monotonic()
            if self._made < self._count:
                self._dial_some(now)
            while self._heap and self._heap[0][0] <= now:
                _, fd = heapq.heappop(self._heap)
                host = self._hosts.get(fd)
                if host is None:
                    continue
                if host.due > now:
                    heapq.heappush(self._heap, (host.due, fd))
                    continue
                if host.session.may_be_silent(now):
                    host.read(now)
                code = self._step(host, now, code)
                host.settle(now)
            wait = max(0.0, self._heap[0][0] - time.monotonic()) if self._heap else 0.1
            wait = min(wait, _DIAL_SECONDS) if self._made < self._count else wait
            for fd, _ in self._poll.poll(wait, _MAX_EVENTS):
                if fd == self._wake_fd:
                    self._end_all()
                    continue
                host = self._hosts.get(fd)
                if host is not None:
                    self._serve(host)
        self._context.term()
        return code

    def _serve(self, host: _SimulatedHost) -> None:
        now = time.monotonic()
        host.take(now)
        host.send(now)
        host.settle(now)
        if host.session.ending is not None:
            host.due = now
            heapq.heappush(self._heap, (now, host.fd))

    def _step(self, host: _SimulatedHost, now: float, code: int) -> int:
        if host.step(now):
            heapq.heappush(self._heap, (max(host.due, now + 0.001), host.fd))
            return code
        self._poll.unregister(host.fd)
        del self._hosts[host.fd]
        host.dealer.close(linger=200)
        order: Any = host.session.ending
        return int(order.code) or code

    def _end_all(self) -> None:
        number = os.read(self._wake_fd, 4096)[0]
        now = time.monotonic()
        self._made = self._count
        for host in self._hosts.values():
            host.session.end(End("", 128 + number, "the simulated hosts were told to end", 0.0))
            host.due = now
            heapq.heappush(self._heap, (now, host.fd))


def start_simulated_hosts(ctx: Context, n: int, processes: int = 1) -> list[int]:
    """Start `n` simulated hosts in `processes` processes that end with the context; return their pids."""
    _, _, _, _, url, *key = ctx.manager_command(ctx._loopback())
    shares = [n // processes + (index < n % processes) for index in range(processes)]
    local, program = ctx._run.local, [sys.executable, __file__, url, *key]
    return [
        pid
        for share in shares
        if share
        for pid in local.start([*program, "--count", str(share)], 1)
    ]


def main() -> int:
    """Run simulated hosts until the supervisor ends them; return a manager's exit code."""
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("--key-file", type=Path, required=True)
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("--wait", type=float, required=True)
    parser.add_argument("--name", required=True)
    options = parser.parse_args()
    key = parse_manager_key(options.key_file.read_bytes())
    return SimulatedFleet(options.url, key, options.count, options.name, options.wait).run()


if __name__ == "__main__":
    sys.exit(main())
