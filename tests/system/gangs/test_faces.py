"""A gang as a person sees it, with real processes: its output, the rank that began its fall, and a
host that is drained by a deadline."""

from __future__ import annotations

import json
import re
import sys

from tests.system.cluster import Cluster
from tests.waits import wait_until

FALLS = "import os, sys, time\nprint('hello', flush=True)\nif os.environ['RANK'] == '2':\n    time.sleep(0.5)\n    sys.exit(9)\ntime.sleep(300)"


def test_run_shows_all_ranks_and_show_who_began_the_fall(cluster: Cluster) -> None:
    for name in ("left", "right"):
        cluster.add_host(name, cpu_slots=2)
    done = cluster.cli(
        "run", "--tasks", "4", "--placement", "spread", "--", sys.executable, "-c", FALLS
    )
    said = done.stderr.decode()
    assert done.returncode == 9, said
    assert sorted(done.stdout.decode().splitlines()) == [f"[{rank}] hello" for rank in range(4)]
    found = re.search(r"holdfast show (\S+)`", said)
    assert found is not None, said
    job = found[1]

    shown = cluster.cli("show", job, "--attempt", "1").stdout.decode()
    assert re.search(r"rank 2 on (left|right) began the fall: exit code 9", shown), shown
    assert "ranks 0-1, 3 were stopped" in shown
    (attempt,) = json.loads(cluster.cli("attempts", job, "--json").stdout)
    assert [m["rank"] for m in attempt["members"] if m["trigger"]] == [2]
    output = cluster.cli("logs", job)
    assert sorted(output.stdout.decode().splitlines()) == [f"[{rank}] hello" for rank in range(4)]
    assert cluster.cli("logs", job, "--rank", "3").stdout == b"hello\n"


def test_a_host_is_drained_at_its_deadline_and_the_whole_gang_moves(cluster: Cluster) -> None:
    for name in ("left", "right", "spare"):
        cluster.add_host(name, cpu_slots=1)
    job = cluster.submit(sys.executable, "-c", "import time; time.sleep(300)", tasks=2, cpus=1)
    cluster.until(job, "running", seconds=40)
    used = {task.host_name for task in cluster.client.tasks(job)}
    leaving = sorted(used)[0]
    assert leaving is not None
    done = cluster.cli("hosts", "drain", leaving, "--deadline", "2s", "--reason", "new driver")
    assert done.returncode == 0, done.stderr
    assert b"its tasks are stopped" in done.stdout
    cluster.until_attempt(job, 2, seconds=60)
    (first, _) = cluster.client.attempts(job)
    assert (first.cause, first.charged_to) == ("host_drained", "nothing"), first.reason
    assert leaving not in {task.host_name for task in cluster.client.tasks(job)}
    wait_until(
        lambda: cluster.client.host(leaving).slots["cpu"]["busy"] == 0,
        20,
        what="the host to be empty",
    )
    assert cluster.cli("hosts", "undrain", leaving).returncode == 0
    assert cluster.client.host(leaving).state == "active"
