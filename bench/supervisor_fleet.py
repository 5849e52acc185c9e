"""The supervisor under measurement, in a process of its own so that its memory is its own.

    python -m bench.supervisor_fleet HOSTS PROCESSES PER_HOST BYTES ROUNDS WHAT

WHAT is `messages` (launches, then round trips), `broadcast`, or `loss`. Prints JSON.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable

from tests.simulated.hosts import start_simulated_hosts

from bench.supervisor_raw import read_rss_bytes
from holdfast.supervisor import Context, wait
from holdfast.supervisor.rosters.hosts import Host

LARGE_FLEET = 2000
LARGE_HEARTBEAT_SECONDS = 5.0
_PATIENCE = 240.0


def _attach(ctx: Context, count: int, processes: int) -> tuple[list[Host], list[int], float]:
    began = time.monotonic()
    hosts = ctx.request_hosts(count)
    pids = start_simulated_hosts(ctx, count, processes)
    missing = wait(
        [host.hostname() for host in hosts], timeout=_PATIENCE, log_interval=None
    ).not_done
    if missing or ctx.status().hosts_lost:
        raise TimeoutError(
            f"{len(missing)} of {count} simulated hosts did not come; {ctx.status()}"
        )
    return hosts, pids, time.monotonic() - began


def _read_memory(ctx: Context) -> int:
    """Of the script's process and of its bus's."""
    return read_rss_bytes() + read_rss_bytes(ctx._run.bus.pid)


def _time(action: Callable[[], object]) -> float:
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def _measure_messages(
    ctx: Context, hosts: list[Host], per_host: int, size: int, rounds: int
) -> dict[str, object]:
    launches = []
    for _ in range(rounds):
        began = time.perf_counter()
        group = ctx.create_process_group(
            hosts, ["echo"], processes_per_host=per_host, simulate=True
        )
        missing = wait([process.pid() for process in group], timeout=60, log_interval=None).not_done
        launches.append(time.perf_counter() - began)
        if missing:
            raise TimeoutError(f"{len(missing)} of {len(group)} launches were not answered")
        wait(group.end(0.0), timeout=60, log_interval=None)
        group.forget()
    group = ctx.create_process_group(hosts, ["echo"], processes_per_host=per_host, simulate=True)
    wait([process.pid() for process in group], timeout=60, log_interval=None)
    payload = b"x" * size

    def one_by_one() -> None:
        for process in group:
            process.send(payload)
        for future in [process.recv() for process in group]:
            future.result(60)

    return {"launch_seconds": launches, "seconds": [_time(one_by_one) for _ in range(rounds)]}


def _measure_broadcast(
    ctx: Context, hosts: list[Host], size: int, rounds: int
) -> dict[str, object]:
    group = ctx.create_process_group(hosts, ["echo"], simulate=True)
    wait([process.pid() for process in group], timeout=60, log_interval=None)
    payload = b"x" * size

    def there_and_back() -> None:
        answers = group.gather()
        group.broadcast(payload)
        answers.result(120)

    seconds = [_time(there_and_back) for _ in range(rounds)]
    return {"seconds": seconds}


def _measure_loss(ctx: Context, rounds: int) -> dict[str, object]:
    """Single hosts in processes of their own, frozen one after the other, beside the healthy
    ones."""
    seconds = []
    for _ in range(rounds):
        (host,) = ctx.request_hosts(1)
        (pid,) = start_simulated_hosts(ctx, 1)
        host.hostname().result(_PATIENCE)
        time.sleep(1.5)
        began = time.time()
        os.kill(pid, signal.SIGSTOP)
        seconds.append(host.time_connection_lost().result(60) - began)
        os.kill(pid, signal.SIGKILL)
    return {"seconds": seconds}


def main(arguments: list[str]) -> None:
    """Measure one thing and print it."""
    hosts, processes, per_host, size, rounds = (int(word) for word in arguments[:5])
    # A host's own machine pays for its heartbeats; here all of a large fleet's are paid by the
    # cores under measurement.
    heartbeat = LARGE_HEARTBEAT_SECONDS if hosts > LARGE_FLEET else 1.0
    with Context(bind="127.0.0.1", log_interval=None, heartbeat=heartbeat) as ctx:
        before = _read_memory(ctx)
        attached, _, connected = _attach(ctx, hosts, processes)
        memory = (_read_memory(ctx) - before) / hosts
        what = arguments[5]
        if what == "messages":
            found = _measure_messages(ctx, attached, per_host, size, rounds)
        elif what == "broadcast":
            found = _measure_broadcast(ctx, attached, size, rounds)
        else:
            found = _measure_loss(ctx, rounds)
        status = ctx.status()
        found |= {"connect_seconds": connected, "bytes_per_host": memory, "status": str(status)}
        found["lost"] = sum(host.connection_lost() for host in attached)
        ctx.shutdown(10)
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1:])
