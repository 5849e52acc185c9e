"""Dramatiq on Redis, its results there too. `use_dramatiq.py URL jobs N` or `latency K`; prints
JSON. One worker process with eight threads, which is Dramatiq's own choice for a process."""

import json
import os
import subprocess
import sys
import time

import dramatiq
from dramatiq.brokers.redis import RedisBroker
from dramatiq.results import Results
from dramatiq.results.backends import RedisBackend

url = sys.argv[1] if __name__ == "__main__" else os.environ["PEER_URL"]
broker = RedisBroker(url=url)
broker.add_middleware(Results(backend=RedisBackend(url=url)))
dramatiq.set_broker(broker)


@dramatiq.actor(actor_name="double", store_results=True)
def double(number: int) -> int:
    return number * 2


@dramatiq.actor(actor_name="clock", store_results=True)
def clock() -> float:
    return time.monotonic()  # of the whole machine


def run_jobs(jobs: int) -> dict[str, float]:
    began = time.monotonic()
    found = dramatiq.group([double.message(number) for number in range(jobs)]).run()
    queued = time.monotonic()
    assert list(found.get_results(block=True, timeout=600_000))[-1] == 2 * (jobs - 1)
    return {"submit_seconds": queued - began, "run_seconds": time.monotonic() - queued}


def time_starts(samples: int) -> dict[str, list[float]]:
    found = []
    for _ in range(samples):
        began = time.monotonic()
        found.append((clock.send().get_result(block=True, timeout=30_000) - began) * 1000)
        time.sleep(0.1)
    return {"milliseconds": found}


if __name__ == "__main__":
    here = os.path.dirname(os.path.abspath(__file__))
    worker = subprocess.Popen(
        [sys.executable, "-m", "dramatiq", "use_dramatiq", "-p", "1", "-t", "8", "--path", here],
        env={**os.environ, "PEER_URL": url}, stdout=sys.stderr,
    )  # fmt: skip
    try:
        double.send(1).get_result(block=True, timeout=60_000)
        count = int(sys.argv[3])
        print(json.dumps(run_jobs(count) if sys.argv[2] == "jobs" else time_starts(count)))
    finally:
        worker.terminate()
        worker.wait(30)
