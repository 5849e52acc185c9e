"""Start a command on the best N of N + spare hosts, after a check of each; sick hosts are replaced,
slow ones not waited for.

    python health_checked_start.py --hosts 64 --spares 4 --gpus 8 --per-host 8 -- python train.py
    python health_checked_start.py --hosts 2 --spares 1 --local -- python train.py      # everything on this machine

Copy it and edit it: `measure` runs on each host, `judge` scores its result. This file must be
readable on every host.
"""

from __future__ import annotations

import argparse
import contextlib
import glob
import logging
import os
import random
import shlex
import statistics
import sys
import tempfile
import time
from typing import Any

from holdfast.supervisor import Context, Future, Host, as_completed, get_message_queue

CHECK_SECONDS = 120.0  # an attached host that has not answered by then counts as sick
SETTLE_SECONDS = 5.0  # to wait for better hosts once there are enough
MAX_REPLACED = 20
LEAST_MEMORY_BYTES = 256 << 20
SLOWEST_DISK = 5e6  # bytes a second
SLOWEST_ROUND_TRIP_SECONDS = 1.0
PINGS = 5
RENDEZVOUS_PORTS = range(29500, 30500)  # one at random: another run may share the machine

log = logging.getLogger("policy")
Report = dict[str, Any]


# ---- on each host


def time_matmul() -> float:
    """Measure the seconds for a matrix product, the best of three: numpy's, or plain Python's
    without it."""
    try:
        import numpy as np
    except ImportError:
        a = [[float(i ^ j) for j in range(64)] for i in range(64)]
        columns = list(zip(*a, strict=True))

        def multiply() -> object:
            return [
                [sum(x * y for x, y in zip(row, column, strict=True)) for column in columns]
                for row in a
            ]
    else:
        square = np.random.default_rng(0).random((512, 512))

        def multiply() -> object:
            return square @ square

    return min(time_once(multiply) for _ in range(3))


def time_once(function: Any) -> float:
    """Measure the seconds that a call takes."""
    began = time.perf_counter()
    function()
    return time.perf_counter() - began


def measure_disk(size: int = 16 << 20) -> float:
    """Measure bytes a second, written and synced."""
    with tempfile.TemporaryFile() as file:

        def write() -> None:
            file.write(bytes(size))
            file.flush()
            os.fsync(file.fileno())

        return size / time_once(write)


def measure() -> Report:
    """Measure this host. An error in here counts too: the host is sick."""
    queue = get_message_queue()
    with open("/proc/meminfo") as lines:
        memory = {line.split(":")[0]: int(line.split()[1]) << 10 for line in lines}

    def ping() -> None:
        queue.send("ping")
        queue.recv(timeout=CHECK_SECONDS)

    return {
        "gpus": len(glob.glob("/dev/nvidia[0-9]*")),
        "memory_bytes": memory["MemAvailable"],
        "matmul_seconds": time_matmul(),
        "disk_bytes_per_second": measure_disk(),
        "round_trip_seconds": statistics.median(time_once(ping) for _ in range(PINGS)),
    }


# ---- in the script


def judge(report: Report, gpus: int) -> tuple[float, str]:
    """Score a host: more is better; 0 is unfit, for the reason given."""
    if report["gpus"] < gpus:
        return 0.0, f"{report['gpus']} of {gpus} GPUs"
    if report["memory_bytes"] < LEAST_MEMORY_BYTES:
        return 0.0, f"{report['memory_bytes'] >> 20} MiB of memory"
    if report["disk_bytes_per_second"] < SLOWEST_DISK:
        return 0.0, f"a disk of {report['disk_bytes_per_second'] / 1e6:.1f} MB/s"
    if report["round_trip_seconds"] > SLOWEST_ROUND_TRIP_SECONDS:
        return 0.0, f"{report['round_trip_seconds']:.2f} s to the supervisor and back"
    return 1.0 / report["matmul_seconds"], "fit"


def start_check(ctx: Context, host: Host, command: list[str]) -> Future[Any]:
    """Have the host measured; the future is its report, or an error."""
    [process] = ctx.create_process_group([host], command, name=f"check{host.number}")

    def answer(_: Future[Any]) -> None:
        with contextlib.suppress(Exception):  # the process is gone, and its future fails
            process.send("pong")

    for _ in range(PINGS):
        process.recv(lambda message: message == "ping").add_done_callback(answer)
    return process.recv(lambda message: isinstance(message, dict))


class Selection:
    """The checks under way, and the results of those that are done."""

    def __init__(self, ctx: Context, options: argparse.Namespace) -> None:
        self.ctx, self.options = ctx, options
        self.command = options.check or [sys.executable, os.path.abspath(__file__), "--measure"]
        self.pending: dict[Future[Any], Host] = {}
        self.attached_at: dict[Host, float] = {}
        self.scores: dict[Host, float] = {}
        self.replaced = 0

    def check(self, hosts: list[Host]) -> None:
        """Begin to check these hosts. The time of a host counts from the coming of its manager."""
        for host in hosts:
            host.hostname().add_done_callback(
                lambda future: self.attached_at.setdefault(future.whom, time.monotonic())
            )
            self.pending[start_check(self.ctx, host, self.command)] = host
        if self.options.local:
            self.ctx.start_local_managers(len(hosts))

    def hear(self, seconds: float, enough: int) -> None:
        """Take answers until there are enough fit hosts, or the time is over."""
        with contextlib.suppress(TimeoutError):
            for future in as_completed(list(self.pending), timeout=seconds, log_interval=None):
                self.take(future)
                if len(self.scores) >= enough:
                    return

    def take(self, future: Future[Any]) -> None:
        """Judge one answer, or the error that came instead."""
        host = self.pending.pop(future)
        try:
            score, reason = judge(future.result(), self.options.gpus)
        except Exception as error:  # a mistake in the check must not end the run
            score, reason = 0.0, f"{type(error).__name__}: {error}"
        log.info("%s scores %.1f: %s", host, score, reason)
        if score > 0:
            self.scores[host] = score
        else:
            self.replace(host, reason)

    def replace(self, host: Host, reason: str) -> None:
        """Ask for another machine if one is needed. Raises SystemExit if that happened too
        often."""
        if len(self.scores) >= self.options.hosts:
            self.ctx.return_hosts([host], error=f"health check: {reason}")
            return
        self.replaced += 1
        if self.replaced > self.options.max_replaced:
            raise SystemExit(
                f"given up: {self.replaced} hosts failed the health check, the last, {host}, with "
                f"{reason}"
            )
        self.check(self.ctx.replace_hosts([host], f"health check: {reason}"))

    def find_overdue(self) -> list[Future[Any]]:
        """Find checks of hosts that were attached for long enough to have answered."""
        long_ago = time.monotonic() - self.options.check_seconds
        return [
            future
            for future, host in self.pending.items()
            if self.attached_at.get(host, long_ago) < long_ago
        ]


def pick_hosts(ctx: Context, options: argparse.Namespace) -> list[Host]:
    """Return the best hosts of those that answer first; give the others back, sick ones for
    replacement."""
    chosen = Selection(ctx, options)
    chosen.check(ctx.request_hosts(options.hosts + options.spares))
    while len(chosen.scores) < options.hosts:
        chosen.hear(1.0, options.hosts)
        for future in chosen.find_overdue() if len(chosen.scores) < options.hosts else ():
            chosen.replace(chosen.pending.pop(future), f"no answer in {options.check_seconds:g} s")
        for host in [host for host in chosen.scores if host.connection_lost()]:
            del chosen.scores[host]
            chosen.replace(host, "it was lost after its check")
    chosen.hear(options.settle, options.hosts + options.spares)
    best = sorted(chosen.scores, key=lambda host: -chosen.scores[host])[: options.hosts]
    ctx.return_hosts([host for host in chosen.scores if host not in best])
    ctx.return_hosts(
        chosen.pending.values(),
        error="it had not answered the health check when the others were ready",
    )
    log.info(
        "%d hosts chosen, %d replaced, %d not waited for",
        len(best),
        chosen.replaced,
        len(chosen.pending),
    )
    return best


def find_rendezvous(hosts: list[Host]) -> dict[str, str]:
    """Choose where torch's ranks meet: on the first host, once it is there. Raises HostLost."""
    hosts[0].hostname().result()
    address = hosts[0].facts.address if hosts[0].facts is not None else "127.0.0.1"
    return {"MASTER_ADDR": address, "MASTER_PORT": str(random.choice(RENDEZVOUS_PORTS))}


def main() -> int:
    """Pick the hosts, run the command once. For restarts see restart_on_failure.py."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--hosts", type=int, required=True)
    parser.add_argument(
        "--spares", type=int, default=1, help="asked for beyond --hosts, to choose from"
    )
    parser.add_argument("--gpus", type=int, default=0, help="a host with fewer is sick")
    parser.add_argument("--per-host", type=int, default=1)
    parser.add_argument("--check-seconds", type=float, default=CHECK_SECONDS)
    parser.add_argument("--settle", type=float, default=SETTLE_SECONDS)
    parser.add_argument("--max-replaced", type=int, default=MAX_REPLACED)
    parser.add_argument(
        "--check",
        type=shlex.split,
        help="a command to measure with instead of this file's `measure`",
    )
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--local", action="store_true", help="start the host managers here too")
    parser.add_argument("command", nargs="+")
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s")
    with Context(port=options.port, log_format="logs/{name}.txt") as ctx:
        log.info("start a host manager on each machine: %s", " ".join(ctx.manager_command()))
        hosts = pick_hosts(ctx, options)
        env = find_rendezvous(hosts)
        group = ctx.create_process_group(
            hosts, options.command, options.per_host, env=env, name="train{rank}"
        )
        for future in as_completed([process.returncode() for process in group]):
            if future.result() != 0:
                raise SystemExit(f"{future.whom} ended with {future.result()}")
    return 0


if __name__ == "__main__":
    if sys.argv[1:] == ["--measure"]:
        get_message_queue().send(measure())
    else:
        sys.exit(main())
