"""Heartbeats of a very large fleet, and nothing else: what they cost, which hosts they lose, how
soon a frozen host is noticed.

    python -m bench.supervisor_beats holdfast HOSTS PROCESSES WINDOWS WINDOW_SECONDS FROZEN
    python -m bench.supervisor_beats raw HOSTS PROCESSES WINDOWS WINDOW_SECONDS

Every host sends one frame a second over a connection of its own, CURVE on, and gets one a second.
`raw` is the same with a bare ROUTER and bare DEALERs. Prints JSON: for each window, cores used by
the thread that reads the socket, by its process (ZeroMQ's own thread and the encryption in it
included) and by the processes of the simulated hosts; how long the process stood in the queue for a
core; frames a second.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import zmq
from tests.simulated.hosts import start_simulated_hosts

from bench.processes import sum_cpu_seconds
from bench.supervisor_raw import Peers, open_router, read_rss_bytes
from holdfast.supervisor import Context, wait
from holdfast.supervisor.line.priority import prefer_this_thread
from holdfast.supervisor.line.session_fleet import HEARTBEAT_SECONDS
from holdfast.wire.bus.messages import HEADER_BYTES

_PATIENCE = 300.0
_SETTLE_SECONDS = 3.0
_LONGEST_POLL_SECONDS = 0.005


def _read_account(pids: list[int]) -> tuple[float, float]:
    """Seconds for which the threads of these processes ran, and for which they were ready to run and
    had no core, by the kernel's account."""
    ran = waited = 0
    for pid in pids:
        for task in Path(f"/proc/{pid}/task").iterdir():
            words = (task / "schedstat").read_text().split()
            ran, waited = ran + int(words[0]), waited + int(words[1])
    return ran / 1e9, waited / 1e9


class _Windows:
    """Cores used and frames taken, window by window. The simulated hosts are read in ticks of
    10 ms, all else exactly.

    thread: (pid, tid) of the one that reads the socket. own: the supervisor's processes.
    """

    def __init__(
        self,
        thread: tuple[int, int],
        own: list[int],
        pids: list[int],
        read_frames: Callable[[], int],
    ) -> None:
        self._thread = Path(f"/proc/{thread[0]}/task/{thread[1]}/schedstat")
        self._own = own
        self._pids = pids
        self._read_frames = read_frames
        self._last = self._look()
        self.found: dict[str, list[float]] = {
            "thread": [],
            "process": [],
            "hosts": [],
            "waited": [],
            "frames": [],
        }

    def _look(self) -> tuple[float, ...]:
        ran, waited = _read_account(self._own)
        cpu = int(self._thread.read_text().split()[0]) / 1e9, ran, sum_cpu_seconds(self._pids)
        return (*cpu, waited, float(self._read_frames()), time.monotonic())

    def end_one(self) -> None:
        """Note what was used since the last call."""
        now = self._look()
        *used, took = (new - old for new, old in zip(now, self._last, strict=True))
        for name, amount in zip(self.found, used, strict=True):
            self.found[name].append(amount / took)
        self._last = now


def measure_holdfast(
    hosts: int, processes: int, windows: int, seconds: float, frozen: int
) -> dict[str, object]:
    """Be the supervisor, at the heartbeat it has by default."""
    with Context(bind="127.0.0.1", log_interval=None) as ctx:
        before = read_rss_bytes() + read_rss_bytes(ctx._run.bus.pid)
        began = time.monotonic()
        asked = ctx.request_hosts(hosts)
        pids = start_simulated_hosts(ctx, hosts, processes)
        missing = wait(
            [host.hostname() for host in asked], timeout=_PATIENCE, log_interval=None
        ).not_done
        connected = time.monotonic() - began
        if missing:
            raise TimeoutError(
                f"{len(missing)} of {hosts} simulated hosts did not come; {ctx.status()}"
            )
        time.sleep(_SETTLE_SECONDS)
        bus = ctx._run.bus
        bus.load.worst_seconds = 0.0
        own = [os.getpid(), bus.pid]
        frames, worst = lambda: bus.load.counted.frames_in, []
        measured = _Windows((bus.pid, bus.pid), own, pids, frames)
        for _ in range(windows):
            time.sleep(seconds)
            measured.end_one()
            worst.append(bus.load.worst_seconds)
            bus.load.worst_seconds = 0.0
        memory = (read_rss_bytes() + read_rss_bytes(bus.pid) - before) / hosts
        losses = [_freeze_one(ctx) for _ in range(frozen)]
        lost = sum(host.connection_lost() for host in asked)
        ctx.shutdown(10)
    return {
        **measured.found,
        "worst_seconds": worst,
        "losses": losses,
        "lost": lost,
        "bytes_per_host": memory,
        "connect_seconds": connected,
    }


def _freeze_one(ctx: Context) -> float:
    """A host in a process of its own, frozen: seconds until the script knows."""
    (host,) = ctx.request_hosts(1)
    (pid,) = start_simulated_hosts(ctx, 1)
    host.hostname().result(_PATIENCE)
    time.sleep(1.5 * HEARTBEAT_SECONDS)
    began = time.time()
    os.kill(pid, signal.SIGSTOP)
    try:
        return host.time_connection_lost().result(60) - began
    finally:
        os.kill(pid, signal.SIGKILL)


class _BeatingPeers(Peers):
    """Bare DEALERs, each of which sends a frame a second, evenly spread over it."""

    def run(self) -> None:
        """Dial as all do, then beat until killed."""
        self.dial_all()
        frame, dealers = bytes(HEADER_BYTES), list(self.dealers.values())
        gap = HEARTBEAT_SECONDS / len(dealers)
        due, index = time.monotonic(), 0
        while True:
            now = time.monotonic()
            while due <= now:
                dealers[index].send(frame, zmq.NOBLOCK)
                self.drain(
                    dealers[index]
                )  # sending may have taken the descriptor's word for what came
                index = (index + 1) % len(dealers)
                due += gap
            for fd, _ in self.poll.poll(
                min(_LONGEST_POLL_SECONDS, max(0.0, due - time.monotonic())), 4096
            ):
                self.drain(self.dealers[fd])

    def drain(self, dealer: zmq.Socket[bytes]) -> None:
        """Take every frame that has arrived."""
        while True:
            try:
                while True:
                    dealer.recv(zmq.NOBLOCK)
            except zmq.Again:
                events = dealer.get(zmq.EVENTS)
                if not (isinstance(events, int) and events & zmq.POLLIN):
                    return


def measure_raw(hosts: int, processes: int, windows: int, seconds: float) -> dict[str, object]:
    """Be the ROUTER: a thread that takes every frame and answers it with one."""
    context, router, url, keys = open_router()
    shares = [hosts // processes + (n < hosts % processes) for n in range(processes)]
    command = [sys.executable, "-m", "bench.supervisor_beats", "peers", url]
    before, began = read_rss_bytes(), time.monotonic()
    peers = [subprocess.Popen([*command, str(share), *keys]) for share in shares if share]
    echo = _Echo(router, hosts)
    try:
        echo.thread.start()
        if not echo.complete.wait(_PATIENCE):
            raise TimeoutError(f"only {echo.frames} frames of {hosts} peers came")
        connected = time.monotonic() - began
        time.sleep(_SETTLE_SECONDS)
        thread = echo.thread.native_id
        assert thread is not None
        own = os.getpid()
        beating = [peer.pid for peer in peers]
        measured = _Windows((own, thread), [own], beating, lambda: echo.frames)
        for _ in range(windows):
            time.sleep(seconds)
            measured.end_one()
        memory = (read_rss_bytes() - before) / hosts
    finally:
        echo.over = True
        echo.thread.join(10)
        for process in peers:
            process.kill()
            process.wait()
        router.close()
        context.term()
    return {**measured.found, "bytes_per_host": memory, "connect_seconds": connected}


class _Echo:
    """Answers the first frame of each peer with a welcome, and every other with itself."""

    def __init__(self, router: zmq.Socket[bytes], count: int) -> None:
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.complete = threading.Event()
        self.over = False
        self.frames = 0
        self._router = router
        self._count = count

    def _run(self) -> None:
        prefer_this_thread()
        receive, send = self._router.recv, self._router.send
        met = 0
        while not self.over:
            if not self._router.poll(100, zmq.POLLIN):
                continue
            try:
                while True:
                    identity = receive(zmq.NOBLOCK)
                    frame = receive(zmq.NOBLOCK)
                    if frame == b"hello":
                        frame = b"welcome"
                        met += 1
                        if met == self._count:
                            self.complete.set()
                    self.frames += 1
                    send(identity, zmq.SNDMORE | zmq.NOBLOCK)
                    send(frame, zmq.NOBLOCK)
            except zmq.Again:
                pass


def main(arguments: list[str]) -> None:
    """Measure one side and print it; or be the raw peers."""
    side = arguments[0]
    if side == "peers":
        _BeatingPeers(arguments[1], int(arguments[2]), arguments[3:6]).run()
        return
    hosts, processes, windows = (int(word) for word in arguments[1:4])
    if side == "raw":
        found = measure_raw(hosts, processes, windows, float(arguments[4]))
    else:
        found = measure_holdfast(hosts, processes, windows, float(arguments[4]), int(arguments[5]))
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1:])
