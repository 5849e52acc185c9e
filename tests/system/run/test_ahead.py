"""Jobs held ahead (AHEAD-1…3), with a real controller, a real host, and kill -9 of each part."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from holdfast.core.spec import JobSpec
from tests.system.cluster import Cluster
from tests.waits import wait_until

JOBS = 150
SAID = "held ahead on h, begins when a slot is free"


def kill_controller(cluster: Cluster) -> None:
    cluster.controller.kill()
    cluster.controller.start()


def kill_agent(cluster: Cluster) -> None:
    cluster.hosts["h"].kill_agent()


def kill_guardian(cluster: Cluster) -> None:
    host = cluster.hosts["h"]
    host.kill_guardian()
    host.start()


def list_held(cluster: Cluster) -> list[str]:
    """The jobs that a host holds, as far as the controller has been told."""
    return [job.id for job in cluster.client.jobs(states=["reserved"]) if job.reason == SAID]


def count_unfinished(cluster: Cluster) -> int:
    queue = cluster.client.queue("cpu")
    return queue.waiting + queue.queued + queue.running


def submit(cluster: Cluster, count: int, command: str, **fields: object) -> list[str]:
    spec: dict[str, Any] = {"argv": ("sh", "-c", command), **fields}
    return [job.id for job in cluster.client.submit_many([JobSpec(**spec)] * count)]


@pytest.mark.parametrize("kill", [None, kill_controller, kill_agent, kill_guardian])
def test_short_jobs_are_held_and_each_ends_once(
    cluster: Cluster, kill: Callable[[Cluster], None] | None
) -> None:
    """A job that was held when its host was lost begins again, uncharged; a job that began there is
    charged as ever, and none is lost."""
    cluster.add_host("h", cpu_slots=4)
    ran = cluster.folder / "ran"
    ids = submit(cluster, JOBS, f"echo $HOLDFAST_JOB_ID >> {ran}")
    wait_until(lambda: list_held(cluster), 60, what="a job to be held ahead")
    if kill is not None:
        kill(cluster)
    wait_until(lambda: not count_unfinished(cluster), 120, what="all to end")
    jobs = [cluster.client.job(i) for i in ids]
    assert Counter(str(job.state) for job in jobs) == {"succeeded": JOBS}
    times = Counter(ran.read_text().split())
    assert set(times) == set(ids)
    if kill is not kill_guardian:
        assert max(times.values()) == 1, "a job ran twice"
        assert max(job.attempts for job in jobs) <= 2
    assert sum(job.retries_charged for job in jobs) == 0


@pytest.mark.parametrize("how", ["pause", "priority", "drain", "cancel"])
def test_what_is_held_is_given_back_when_it_is_asked_for(cluster: Cluster, how: str) -> None:
    cluster.client.set_config({"run_ahead_seconds": 1.0})
    host = cluster.add_host("h", cpu_slots=2)
    gate, ran = cluster.folder / "gate", cluster.folder / "ran"
    # The first ones are short, so that the host holds some; the others have the slots until the gate
    # opens.
    submit(cluster, 30, "true")
    long = submit(
        cluster, 60, f"echo $HOLDFAST_JOB_ID >> {ran}; until [ -e {gate} ]; do sleep 0.05; done"
    )
    wait_until(lambda: count_unfinished(cluster) == len(long), 60, what="the short ones to end")
    wait_until(lambda: len(host.task_pids(long[1])), 20, what="the slots to be taken")
    held = sorted(set(list_held(cluster)) - set(ran.read_text().split()))
    assert held, "it holds none"
    if how == "pause":
        cluster.client.pause_queue("cpu")
    elif how == "priority":
        first = cluster.submit("true", priority=99)
    elif how == "drain":
        cluster.client.act_on_host("h", "drain")
    else:
        for i in held:
            cluster.client.cancel(i)
    wait_until(lambda: not set(held) & set(list_held(cluster)), 15, what="them to be given back")
    states = {str(cluster.client.job(i).state) for i in held}
    assert states <= ({"cancelled", "draining"} if how == "cancel" else {"queued"})
    assert not set(held) & set(ran.read_text().split())
    gate.touch()
    if how == "priority":
        cluster.until(first, "succeeded")
