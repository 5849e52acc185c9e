"""`holdfast up` on a machine that has no room for it: how soon it is ready, and whether a host, a
lease or a watchdog takes the load for death."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from bench.figures import Line, spread
from bench.processes import list_family, sum_cpu_seconds
from bench.scale import Scale, alternate, say, wait_until
from bench.system import (
    Place,
    Scratch,
    await_place,
    clean_environment,
    copy_cluster,
    has_active_host,
    holdfast_command,
)

BURNERS = 8
READY_TIMES, CPU_TIMES = 1.5, 1.2
REST_SECONDS = float(os.environ.get("HOLDFAST_BENCH_REST_SECONDS", "120"))
_PATIENCE_SECONDS = 300.0
# The modules that the processes of `up` import until it is ready, each list in a process of its own.
_IMPORTS = (
    "import holdfast.cli.up.up, holdfast.cli.up.supervisor",
    "from holdfast.cli.up.run_part import load; load('controller')",
    "from holdfast.cli.up.run_part import load; load('agent')",
    "from holdfast.lean import collect_nothing\nwith collect_nothing(): import holdfast.agent.agent",
)
_BEATS = """
import holdfast, time
for step in range(10**9):
    holdfast.beat(step)
    time.sleep(0.5)
"""
_TROUBLES = {"host.lost": "a host lost", "task.tripped": "a trip", "task.expired": "a lease lapsed"}


@contextmanager
def burn(count: int) -> Iterator[None]:
    """Have `count` processes burn the cores, each in a session of its own, because the kernel
    weighs the processes of one session together."""
    command = [sys.executable, "-S", "-c", "while True: pass"]
    burners = [subprocess.Popen(command, start_new_session=True) for _ in range(count)]
    try:
        yield
    finally:
        for burner in burners:
            burner.kill()
        for burner in burners:
            burner.wait()


def measure_crowded(scale: Scale) -> list[Line]:
    """Rows of `up` beside burners: seconds to ready, CPU seconds to ready, and what was lost."""
    count = scale.pick(BURNERS, 1)
    with Scratch() as scratch:
        bare, crowded, quiet = [], [], []
        for _ in range(scale.pick(3, 1)):
            quiet.append(_start_up(scratch)[1])
            with burn(count):
                one, other = alternate(
                    1, lambda: _start_bare(scratch), lambda: _start_up(scratch), _WORDS, "s"
                )
            bare += one
            crowded += other
        lost = _count_troubles(scratch, count, scale.pick(REST_SECONDS, 1.0))
    times, spent = zip(*crowded, strict=True)
    ready = Line(
        what=f"holdfast up beside {BURNERS} burners",
        unit="s",
        value=spread(times),
        limit_name="bare initdb, start and imports in turn",
        limit=spread(bare),
        budget=f"<= {READY_TIMES} x",
        met=spread(times).median <= READY_TIMES * spread(bare).median,
    )
    cost = Line(
        what=f"its CPU to ready beside {BURNERS} burners",
        unit="CPU-s",
        value=spread(spent),
        limit_name="without burners",
        limit=spread(quiet),
        budget=f"<= {CPU_TIMES} x",
        met=spread(spent).median <= CPU_TIMES * spread(quiet).median,
    )
    alive = Line(
        what=f"hosts lost, trips and leases lapsed beside {BURNERS} burners",
        unit="events",
        value=spread([lost]),
        limit_name="promised",
        limit=spread([0]),
        budget="<= 0",
        met=lost == 0,
    )
    return [ready, cost, alive]


_WORDS = ("bare steps in turn", "up, seconds and CPU")


def _start_bare(scratch: Scratch) -> float:
    """Seconds that initdb, the start of PostgreSQL, and the imports of each process of `up` take
    one after the other."""
    from holdfast.store.embedded.postgres import EmbeddedPostgres

    folder = scratch.folder / "bare"
    shutil.rmtree(folder, ignore_errors=True)
    server = EmbeddedPostgres(folder)
    began = time.monotonic()
    try:
        server.start(_PATIENCE_SECONDS)
        for words in _IMPORTS:
            command = [sys.executable, "-P", "-c", words]
            subprocess.run(command, check=True, env=clean_environment())
        return time.monotonic() - began
    finally:
        server.stop()


def _start_up(scratch: Scratch) -> tuple[float, float]:
    """(seconds, CPU seconds) of an `up` from nothing until its host takes work."""
    with _run_up(scratch) as (_, took, spent):
        return took, spent


@contextmanager
def _run_up(scratch: Scratch) -> Iterator[tuple[Place, float, float]]:
    home = scratch.folder / "crowded"
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir()
    data = home / "holdfast-data"
    copy_cluster(data / "postgres")
    command = [*holdfast_command(), "up", "--port", "0", "--slots", "2", "--data", str(data)]
    began = time.monotonic()
    process = scratch.start(
        command, "crowded", end_signal=signal.SIGINT, cwd=home, environ=clean_environment()
    )
    try:
        place = await_place(scratch, process, data, "crowded", _PATIENCE_SECONDS)
        wait_until(lambda: has_active_host(place), "a host", _PATIENCE_SECONDS, 0.01)
        took = time.monotonic() - began
        yield place, took, sum_cpu_seconds(list_family(process.pid))
        place.connection.close()
    finally:
        scratch.end(process, _PATIENCE_SECONDS)


def _count_troubles(scratch: Scratch, burners: int, seconds: float) -> int:
    """Return how often a host, a task or a lease was given up while a job beats beside burners."""
    with burn(burners), _run_up(scratch) as (place, _, _):
        spec = {"argv": [sys.executable, "-c", _BEATS]}
        job = place.connection.call("POST", "/v1/jobs", spec)["id"]

        def read_state() -> object:
            return place.connection.call("GET", f"/v1/jobs/{job}")["state"]

        wait_until(lambda: read_state() == "running", "a job runs", _PATIENCE_SECONDS, 0.1)
        say(f"  a job beats for {seconds:g} s beside {burners} burners")
        time.sleep(seconds)
        found = 0
        for kind, words in _TROUBLES.items():
            events = place.connection.call("GET", f"/v1/events?kind={kind}&limit=100")["items"]
            found += len(events)
            for event in events:
                say(f"  {words}: {event['message']}")
        record = place.connection.call("GET", f"/v1/jobs/{job}")
        if (record["state"], record["attempts"]) != ("running", 1):
            say(f"  the job is {record['state']}, attempt {record['attempts']}: {record['reason']}")
            found += 1
    return found
