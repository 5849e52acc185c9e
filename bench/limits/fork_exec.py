"""The bare fork-exec-wait loop, on one core, in a process of its own: `python -m
bench.limits.fork_exec N`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

import msgspec

from bench.costs import Cost, Meter
from bench.system import ROOT

TRUE = next((path for path in ("/bin/true", "/usr/bin/true") if os.path.exists(path)), "true")


def spawn_and_wait(count: int) -> float:
    """Processes per second: posix_spawn, waitpid, one after the other."""
    started = time.monotonic()
    for _ in range(count):
        _, status = os.waitpid(os.posix_spawn(TRUE, [TRUE], os.environ), 0)
        if status != 0:
            raise RuntimeError(f"{TRUE} ended with status {status}")
    return count / (time.monotonic() - started)


def measure_fork_exec(count: int, meter: Meter) -> float:
    """The same in a small fresh process pinned to one core; `meter` is given its cost, the
    processes that it spawned included."""
    command = [sys.executable, "-m", "bench.limits.fork_exec", str(count)]
    found = json.loads(subprocess.run(command, cwd=ROOT, check=True, capture_output=True).stdout)
    meter.costs.setdefault("loop", []).append(Cost(**found["cost"]))
    meter.refused = found["refused"]
    return float(found["rate"])


def _run(count: int) -> dict[str, object]:
    meter = Meter({"loop": lambda: [os.getpid()]})
    with meter.count(count):
        rate = spawn_and_wait(count)
    return {
        "rate": rate,
        "cost": msgspec.to_builtins(meter.costs["loop"][0]),
        "refused": meter.refused,
    }


if __name__ == "__main__":
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    print(json.dumps(_run(int(sys.argv[1]))))
