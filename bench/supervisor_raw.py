"""The limit for the supervisor: bare ROUTER and DEALERs of ZeroMQ, CURVE on, with nothing of
Holdfast in it.

    python -m bench.supervisor_raw HOSTS PROCESSES PER_HOST BYTES ROUNDS

One ROUTER sends every host PER_HOST frames of BYTES bytes, each host sends every one back. Prints
JSON: seconds of each round, seconds to connect, bytes of memory per connection. Run with `peers` as
first word it is the other side.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time

import zmq

from holdfast.supervisor.line.priority import preferred

_MAX_SOCKETS = 65_000
_DIALLING = 64


def read_rss_bytes(pid: int | str = "self") -> int:
    """Resident memory of a process, this one by default."""
    with open(f"/proc/{pid}/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Peers:
    """Many DEALERs in one process, each sending back what it gets."""

    def __init__(self, url: str, count: int, keys: list[str]) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._context.set(zmq.MAX_SOCKETS, _MAX_SOCKETS)
        self.poll = select.epoll()
        self.dealers: dict[int, zmq.Socket[bytes]] = {}
        self._met: set[int] = set()
        self._url, self._count, self._keys = url, count, [key.encode() for key in keys]

    def run(self) -> None:
        """Serve until killed."""
        self.dial_all()
        while True:
            for fd, _ in self.poll.poll(-1, 4096):
                self._serve(fd)

    def dial_all(self) -> None:
        """Connect every one and wait for its welcome. As many dial at once as Holdfast's simulated
        hosts do."""
        while len(self._met) < self._count:
            while (
                len(self.dealers) < self._count and len(self.dealers) - len(self._met) < _DIALLING
            ):
                self._dial()
            for fd, _ in self.poll.poll(0.05, 4096):
                self._serve(fd)

    def _dial(self) -> None:
        dealer = self._context.socket(zmq.DEALER)
        dealer.linger = 0
        dealer.routing_id = os.urandom(16)
        dealer.curve_serverkey, dealer.curve_publickey, dealer.curve_secretkey = self._keys
        dealer.connect(self._url)
        dealer.send(b"hello")
        fd = dealer.get(zmq.FD)
        assert isinstance(fd, int)
        self.dealers[fd] = dealer
        self.poll.register(fd, select.EPOLLIN | select.EPOLLET)
        self._serve(fd)  # its descriptor tells of a change only once

    def _serve(self, fd: int) -> None:
        dealer = self.dealers[fd]
        while True:
            try:
                while True:
                    frame = dealer.recv(zmq.NOBLOCK)
                    if frame == b"welcome":
                        self._met.add(fd)
                    else:
                        dealer.send(frame, zmq.NOBLOCK)
            except zmq.Again:
                pass
            events = dealer.get(zmq.EVENTS)
            if not (isinstance(events, int) and events & zmq.POLLIN):
                return


def open_router() -> tuple[zmq.Context[zmq.Socket[bytes]], zmq.Socket[bytes], str, list[str]]:
    """A ROUTER on a free port with keys of its own: its context, it, its address, the keys that
    peers need."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    context.set(zmq.MAX_SOCKETS, _MAX_SOCKETS)
    with preferred():  # as the bus's
        router = context.socket(zmq.ROUTER)
    router.linger = 0
    router.setsockopt(zmq.BACKLOG, 4096)
    router.set_hwm(0)
    server_public, server_secret = zmq.curve_keypair()
    client_public, client_secret = zmq.curve_keypair()
    router.curve_server, router.curve_publickey, router.curve_secretkey = (
        True,
        server_public,
        server_secret,
    )
    port = router.bind_to_random_port("tcp://127.0.0.1")
    keys = [key.decode() for key in (server_public, client_public, client_secret)]
    return context, router, f"tcp://127.0.0.1:{port}", keys


def measure(hosts: int, processes: int, per_host: int, size: int, rounds: int) -> dict[str, object]:
    """Be the ROUTER."""
    context, router, url, keys = open_router()
    shares = [hosts // processes + (n < hosts % processes) for n in range(processes)]
    command = [sys.executable, "-m", "bench.supervisor_raw", "peers", url]
    before, began = read_rss_bytes(), time.monotonic()
    peers = [subprocess.Popen([*command, str(share), *keys]) for share in shares if share]
    try:
        identities: list[bytes] = []
        while len(identities) < hosts:
            if not router.poll(120_000):
                raise TimeoutError(f"only {len(identities)} of {hosts} connected")
            identities.append(router.recv())
            router.recv()
            router.send(identities[-1], zmq.SNDMORE)
            router.send(b"welcome")
        connected = time.monotonic() - began
        memory = (read_rss_bytes() - before) / hosts
        seconds = [_run_round(router, identities, per_host, b"x" * size) for _ in range(rounds)]
    finally:
        for process in peers:
            process.kill()
            process.wait()
        router.close()
        context.term()
    return {"seconds": seconds, "connect_seconds": connected, "bytes_per_host": memory}


def _run_round(
    router: zmq.Socket[bytes], identities: list[bytes], per_host: int, frame: bytes
) -> float:
    began = time.perf_counter()
    for _ in range(per_host):
        for identity in identities:
            router.send(identity, zmq.SNDMORE | zmq.NOBLOCK)
            router.send(frame, zmq.NOBLOCK)
    left = len(identities) * per_host
    while left:
        if not router.poll(60_000):
            raise TimeoutError(f"{left} answers did not come")
        try:
            while left:
                router.recv(zmq.NOBLOCK)
                router.recv(zmq.NOBLOCK)
                left -= 1
        except zmq.Again:
            pass
    return time.perf_counter() - began


if __name__ == "__main__":
    if sys.argv[1] == "peers":
        Peers(sys.argv[2], int(sys.argv[3]), sys.argv[4:7]).run()
    else:
        print(json.dumps(measure(*(int(word) for word in sys.argv[1:6]))))
