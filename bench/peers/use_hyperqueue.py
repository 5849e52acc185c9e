"""HyperQueue as the strongest dispatcher of processes: `use_hyperqueue.py JOBS SLOTS` in the peers' environment.

Each task's output is kept in two files, as Holdfast keeps it. Prints the seconds from the submission
to the last end.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time

from hyperqueue import Job, LocalCluster  # type: ignore[import-not-found]  # of the peers' environment
from hyperqueue.cluster import WorkerConfig  # type: ignore[import-not-found]  # the same


def run_jobs(program: str, jobs: int, slots: int) -> float:
    with tempfile.TemporaryDirectory() as folder, LocalCluster() as cluster:
        os.chdir(folder)  # the server writes files where it runs
        cluster.start_worker(WorkerConfig(cores=slots))
        client = cluster.client()
        _submit_and_wait(client, program, 50, folder, "warm")
        began = time.monotonic()
        _submit_and_wait(client, program, jobs, folder, "job")
        seconds = time.monotonic() - began
        os.chdir("/")
    return seconds


def _submit_and_wait(client: object, program: str, count: int, folder: str, name: str) -> None:
    job = Job(default_workdir=folder)
    for number in range(count):
        file = f"{folder}/{name}-{number}"
        job.program([program], stdout=f"{file}.stdout", stderr=f"{file}.stderr")
    submitted = client.submit(job)  # type: ignore[attr-defined]  # the library has no types
    client.wait_for_jobs([submitted], raise_on_error=True)  # type: ignore[attr-defined]  # the same


if __name__ == "__main__":
    print(json.dumps({"seconds": run_jobs(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))}))
