"""Celery on Redis, its results there too. `use_celery.py URL jobs N` or `latency K`; prints JSON.

One worker process of its own with as many children as the machine has cores, which is Celery's own
choice; late acknowledgement and one task ahead, because tasks must survive a killed worker here.
"""

import json
import os
import subprocess
import sys
import time

from celery import Celery, group

url = sys.argv[1] if __name__ == "__main__" else os.environ["PEER_URL"]
app = Celery("use_celery", broker=url, backend=url)
app.conf.update(
    task_acks_late=True, worker_hijack_root_logger=False, task_serializer="json",
    worker_prefetch_multiplier=1 if os.environ.get("PEER_SMALL") else 32,
)  # fmt: skip


@app.task(name="use_celery.double")
def double(number: int) -> int:
    return number * 2


@app.task(name="use_celery.clock")
def clock() -> float:
    return time.monotonic()  # of the whole machine


def run_jobs(jobs: int) -> dict[str, float]:
    began = time.monotonic()
    found = group(double.s(number) for number in range(jobs)).apply_async()
    queued = time.monotonic()
    assert found.join(timeout=600, interval=0.01)[-1] == 2 * (jobs - 1)
    return {"submit_seconds": queued - began, "run_seconds": time.monotonic() - queued}


def time_starts(samples: int) -> dict[str, list[float]]:
    found = []
    for _ in range(samples):
        began = time.monotonic()
        found.append((clock.delay().get(timeout=30) - began) * 1000)
        time.sleep(0.1)
    return {"milliseconds": found}


if __name__ == "__main__":
    worker = subprocess.Popen(
        [sys.executable, "-m", "celery", "-A", "use_celery", "worker", "-l", "ERROR", "-c", str(os.cpu_count())],
        env={**os.environ, "PEER_URL": url, "C_FORCE_ROOT": "1"},
        cwd=os.path.dirname(os.path.abspath(__file__)), stdout=sys.stderr,
    )  # fmt: skip
    try:
        double.delay(1).get(timeout=60)
        count = int(sys.argv[3])
        print(json.dumps(run_jobs(count) if sys.argv[2] == "jobs" else time_starts(count)))
    finally:
        worker.terminate()
        worker.wait(30)
