"""A drain that is not confirmed is forced: the one test that waits the default 45 s in real
time."""

from __future__ import annotations

import os
import signal
from datetime import timedelta

import pytest

from holdfast.core.settings.table import SETTINGS
from tests.system.cluster import Cluster
from tests.system.gangs.rig import SECONDS, Gang
from tests.waits import is_alive, wait_until

pytestmark = pytest.mark.slow


@pytest.mark.longest
@pytest.mark.heavy
def test_a_host_that_answers_too_late(cluster: Cluster) -> None:
    """Its drain is forced once, its devices stay held; when it wakes, its rank has no grace left,
    and the gang goes on."""
    limit = SETTINGS["drain_force_seconds"].default
    assert isinstance(limit, float)
    hosts = [cluster.add_host(f"host{n}", cpu_slots=1) for n in range(2)]
    gang = Gang(cluster, "late", 2, "--ignore-term", "1", grace=15.0)
    gang.wait_all(1)
    gang.until("running")
    where = {task.rank: task.host_name for task in cluster.client.tasks(gang.id)}
    silent = next(host for host in hosts if host.name == where[1])
    silent.freeze()
    os.kill(gang.pid(0), signal.SIGKILL)
    gang.until("draining")

    wait_until(
        lambda: "task.force_drained" in gang.kinds(), limit + SECONDS, what="the drain to be forced"
    )
    events = {event.kind: event for event in cluster.client.events(job_id=gang.id)}
    waited = events["task.force_drained"].at - events["job.draining"].at
    assert waited >= timedelta(seconds=limit), waited
    assert is_alive(gang.pid(1))
    assert cluster.client.job(gang.id).state == "draining", (
        "forced is not confirmed: its rank may still be at work"
    )
    assert cluster.client.host(silent.name).running == 1
    shown = cluster.cli("why", gang.id).stdout.decode()
    assert "rank 1" in shown, shown
    assert silent.name in shown, shown

    silent.thaw()
    wait_until(lambda: not is_alive(gang.pid(1)), SECONDS, what="rank 1 to be killed")
    gang.wait_all(2)
    gang.finish()
    first, second = gang.attempts()
    assert (first.trigger_rank, first.cause, second.outcome) == (0, "nonzero_exit", "succeeded")
    kinds = gang.kinds()
    assert (kinds.count("task.force_drained"), kinds.count("job.requeued")) == (1, 1), kinds
    assert {
        rank: charge.retries for rank, charge in cluster.client.job(gang.id).rank_charges.items()
    } == {"0": 1}
