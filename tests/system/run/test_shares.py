"""Shares over real processes: a project borrows what another leaves idle, and gives it back when that
one asks."""

from __future__ import annotations

import json
import sys

import pytest

from tests.system.cluster import Cluster

SLEEPS = (sys.executable, "-c", "import time; time.sleep(300)")


@pytest.mark.parametrize("way", ["cli", "rest"])
def test_a_project_borrows_idle_hosts_and_gives_them_back(cluster: Cluster, way: str) -> None:
    for name in ("left", "right"):
        cluster.add_host(name, cpu_slots=2)
    cluster.client.set_config({"preempt_min_run_seconds": 0})
    if way == "cli":
        done = cluster.cli("projects", "set", "owner", "share_cpu_slots=3")
        assert done.returncode == 0, done.stderr
        assert b"share_cpu_slots=3" in done.stdout
    else:
        cluster.client.put_project("owner", {"share_cpu_slots": 3})
    cluster.client.put_project("guest", {})
    old = cluster.submit(*SLEEPS, project="guest", cpus=1, priority=90, tasks=2)
    cluster.until(old, "running", seconds=40)
    young = cluster.submit(*SLEEPS, project="guest", cpus=1, priority=90, tasks=2)
    cluster.until(young, "running", seconds=40)
    project = cluster.client.project("guest")
    assert (project.cpu_slots, project.settings) == (4, {})

    mine = cluster.submit(*SLEEPS, project="owner", cpus=2, priority=0)
    cluster.until(mine, "running", seconds=40)
    # The loan is the whole project's: of its jobs the one went that had done the least, whole.
    cluster.until(young, "queued", seconds=40)
    assert cluster.client.job(old).state == "running"
    (first,) = cluster.client.attempts(young)
    assert (first.cause, first.charged_to, first.outcome) == ("preempted", "nothing", "requeued")
    assert f"borrowed, to job {mine} of project owner" in first.reason
    why = json.loads(cluster.cli("why", young, "--json").stdout)
    assert {"preempted", "beyond_share", "no_room"} <= {line["code"] for line in why["lines"]}
    why = json.loads(cluster.cli("why", old, "--json").stdout)
    assert "borrows" in {line["code"] for line in why["lines"]}

    # Beyond its share the owner borrows like any other, and stops nothing for it.
    more = cluster.submit(*SLEEPS, project="owner", cpus=2)
    why = json.loads(cluster.cli("why", more, "--json").stdout)
    assert "beyond_share" in {line["code"] for line in why["lines"]}
    assert cluster.client.job(old).state == "running"
    # What the owner gives up goes to its own job, which is within its share now, and is lent again
    # when that has ended, too.
    cluster.client.cancel(mine)
    cluster.until(more, "running", seconds=40)
    cluster.until(young, "queued", seconds=40)
    cluster.client.cancel(more)
    cluster.until(young, "running", seconds=40)
