"""The bare fork-exec-wait loop, on one core, in a process of its own: `python -m
bench.limits.fork_exec N`."""

from __future__ import annotations

import os
import subprocess
import sys
import time

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


def measure_fork_exec(count: int) -> float:
    """The same in a small fresh process pinned to one core."""
    command = [sys.executable, "-m", "bench.limits.fork_exec", str(count)]
    return float(subprocess.run(command, cwd=ROOT, check=True, capture_output=True).stdout)


if __name__ == "__main__":
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    print(spawn_and_wait(int(sys.argv[1])))
