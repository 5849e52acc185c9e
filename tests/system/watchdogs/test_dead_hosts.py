"""A host falls silent with work on it: it is reported once, listed and cleared, and what is busy
follows from the leases."""

from __future__ import annotations

import json
import re
import signal
import time
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest

from tests.system.cluster import Cluster, signal_all
from tests.waits import wait_until

pytestmark = pytest.mark.slow


def metric(cluster: Cluster, name: str) -> float:
    text = httpx.get(f"{cluster.controller.url}/metrics", timeout=60, trust_env=False).text
    return float(
        next(line.rsplit(" ", 1)[1] for line in text.splitlines() if line.startswith(name + " "))
    )


def read_guide(pattern: str) -> str:
    """What the guide on dead hosts shows."""
    guide = Path(__file__).parents[3] / "docs/guides/dead-hosts.md"
    flags = re.DOTALL if "sql" in pattern else 0
    found = re.search(pattern, guide.read_text(), flags)
    assert found is not None
    return found[1]


def strip_figures(line: str) -> str:
    """A line on a dead host up to its jobs, without what differs from one host to another."""
    head, jobs, _ = line.partition(", jobs ")
    assert jobs
    head = re.sub(r"HOST \S+ \([^,]+,", "HOST NAME (ID,", head)
    return re.sub(r"\d+", "N", head)


def list_hosts(cluster: Cluster, *words: str) -> list[dict[str, Any]]:
    done = cluster.cli("hosts", *words, "--json")
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def test_a_dead_host_is_told_once_listed_and_cleared(cluster: Cluster) -> None:
    cluster.client.set_config({"dead_host_seconds": 2, "dead_host_sweep_seconds": 1})
    host = cluster.add_host("h", queues=[cluster.set_queue("q")])
    idle = cluster.add_host("idle", queues=[cluster.set_queue("idle")])
    job = cluster.submit("sleep", "60", queue="q")
    cluster.until(job, "running")
    host.freeze()
    idle.freeze()
    wait_until(lambda: cluster.client.hosts(dead=True), 15, what="the flag")
    assert [h["name"] for h in list_hosts(cluster, "--dead")] == ["h"]
    time.sleep(6)  # another sweep
    lines = cluster.controller.messages("DEAD HOST")
    assert len(lines) == 1, lines
    for word in ("h ", job, "holdfast hosts terminate h", "restart its agent"):
        assert word in lines[0]
    assert [
        line["level"] for line in cluster.controller.lines() if "DEAD HOST" in line["message"]
    ] == ["error"]
    assert strip_figures(lines[0]) == strip_figures(read_guide("(DEAD HOST .*)"))
    with psycopg.connect(cluster.dsn) as connection:  # what docs tell an outside supervisor to ask
        found = connection.execute(read_guide(r"```sql\n(.*?)```").encode()).fetchall()
    assert [(row[1], row[2], row[6]) for row in found] == [("h", "", 1)]
    assert [e.kind for e in cluster.client.events(kinds=["host.dead"])] == ["host.dead"], (
        "an idle host is no loss"
    )
    assert cluster.client.job(job).state == "running", "flagged is not reaped: the lease is 300 s"
    host.thaw()
    idle.thaw()
    wait_until(
        lambda: not cluster.client.hosts(dead=True),
        10,
        what="the flag to be cleared by a heartbeat",
    )
    assert list_hosts(cluster, "--dead") == []
    assert [e.kind for e in cluster.client.events(kinds=["host.recovered"])] == ["host.recovered"]
    assert cluster.client.attempts(job)[0].state == "running"


def test_busy_comes_from_leases_alone(cluster: Cluster) -> None:
    host = cluster.add_host("h", cpu_slots=3, gpus=2, queues=[cluster.set_queue("q")])
    jobs = [
        cluster.submit("sleep", "60", queue="q", cpus=2),
        cluster.submit("sleep", "60", queue="q", gpus=1),
    ]
    for job in jobs:
        cluster.until(job, "running")

    def busy() -> tuple[int, int, float]:
        (view,) = [h for h in list_hosts(cluster, "--all") if h["name"] == "h"]
        return (
            view["slots"]["cpu"]["busy"],
            view["slots"]["gpu"]["busy"],
            metric(cluster, "holdfast_busy_cpu_slots"),
        )

    assert busy() == (2, 1, 2.0)
    signal_all([host.guardian.pid, host.agent_pid()], signal.SIGKILL)
    host.guardian.wait()
    assert busy() == (2, 1, 2.0), "the leases still stand"
    for job in jobs:
        cluster.client.cancel(job)
    host.start()
    for job in jobs:
        cluster.until(job, "cancelled")
    assert busy() == (0, 0, 0.0), "no ghost"


def test_a_host_that_can_start_nothing_does_not_eat_a_job_s_budgets(cluster: Cluster) -> None:
    """BUDGET-5: it lacks a second later what it lacks now, so the host is set aside, and the job
    waits where there is nothing else, until the host can start tasks again."""
    host = cluster.add_host("full", queues=[cluster.set_queue("q")])
    tasks = host.state / "tasks"
    tasks.rename(host.state / "tasks-away")
    tasks.write_text("no folder can be made here")
    job = cluster.submit("true", queue="q")
    wait_until(
        lambda: b"is set aside" in cluster.cli("why", job).stdout, 20, what="the host's word"
    )
    found = cluster.client.job(job)
    assert (found.cause, found.start_failures) == ("start_timeout", 1)
    assert (found.infra_charged, found.retries_charged) == (0, 0)
    assert b"could not prepare the task" in cluster.cli("why", job).stdout
    tasks.unlink()
    (host.state / "tasks-away").rename(tasks)
    cluster.until(job, "succeeded", seconds=60)
