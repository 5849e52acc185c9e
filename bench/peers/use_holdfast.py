"""Calls of Python functions by Holdfast, results included. `use_holdfast.py - jobs N` or `latency K`;
prints JSON. The environment names a running `holdfast up --app peer_tasks`."""

import json
import sys
import time

from peer_tasks import clock, double


def run_jobs(jobs: int) -> dict[str, float]:
    assert (
        double.submit(1).result(timeout=60) == 2
    )  # the executor is warm, as the peers' workers are
    began = time.monotonic()
    assert sum(double.map(range(jobs))) == jobs * (jobs - 1)
    return {"submit_seconds": 0.0, "run_seconds": time.monotonic() - began}


def time_starts(samples: int) -> dict[str, list[float]]:
    clock.submit().result(timeout=60)
    found = []
    for _ in range(samples):
        began = time.monotonic()
        found.append((clock.submit().result(timeout=60) - began) * 1000)
        time.sleep(0.1)
    return {"milliseconds": found}


if __name__ == "__main__":
    count = int(sys.argv[3])
    print(json.dumps(run_jobs(count) if sys.argv[2] == "jobs" else time_starts(count)))
