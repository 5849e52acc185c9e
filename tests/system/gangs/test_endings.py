"""Drains of gangs when hosts, the network, the controller or its database fail in the middle of
them."""

from __future__ import annotations

import os
import signal
from contextlib import ExitStack
from pathlib import Path

import pytest

from holdfast.store.embedded.postgres import EmbeddedPostgres
from tests.system.cluster import MARGIN, TTL, Cluster, signal_all
from tests.system.gangs.rig import SECONDS, Gang
from tests.waits import is_alive, wait_until

pytestmark = pytest.mark.slow


def test_a_cancelled_gang_is_gone_everywhere(cluster: Cluster) -> None:
    for name in ("left", "right"):
        cluster.add_host(name, cpu_slots=2)
    gang = Gang(cluster, "cancel", 4, "--ignore-term", "1", "--ignore-term", "2", "--fork", "3")
    gang.wait_all(1)
    pids = {n.pid for n in gang.lines()}
    cluster.client.cancel(gang.id, "enough")
    ended = gang.until("cancelled")
    assert not any(is_alive(pid) for pid in pids), "cancelled means that nothing of it runs"
    assert (ended.attempts, ended.retries_charged, ended.cause) == (1, 0, "user_cancelled")
    assert "enough" in ended.reason
    assert [h.running for h in cluster.client.hosts()] == [0, 0]


def test_hosts_that_are_silent_during_a_drain(cluster: Cluster) -> None:
    """One agent is frozen and wakes, another sits in a black hole until its leases are over."""
    frozen = [
        cluster.add_host(f"frozen{n}", queues=[cluster.set_queue("frozen")], cpu_slots=1)
        for n in range(2)
    ]
    queue = cluster.set_queue("hole")
    hole = [
        cluster.add_host(f"hole{n}", queues=[queue], cpu_slots=1, proxied=True) for n in range(2)
    ]
    gangs = {
        name: Gang(cluster, name, 2, queue=name, lease_ttl=300.0 if name == "frozen" else TTL)
        for name in ("frozen", "hole")
    }
    for gang in gangs.values():
        gang.wait_all(1)
    silent = {}
    for name, hosts in (("frozen", frozen), ("hole", hole)):
        where = {task.rank: task.host_name for task in cluster.client.tasks(gangs[name].id)}
        silent[name] = next(host for host in hosts if host.name == where[1])
    cluster.add_host("spare", queues=["hole"], cpu_slots=1)
    agent = wait_until(silent["frozen"].agent_pid)
    os.kill(agent, signal.SIGSTOP)
    silent["hole"].proxy.black_hole = True  # type: ignore[union-attr]  # it was started above
    for gang in gangs.values():
        os.kill(gang.pid(0), signal.SIGKILL)
        gang.until("draining")

    # The silent hosts are not taken for dead: their ranks run, so the drain waits, and everything
    # else goes on.
    assert is_alive(gangs["frozen"].pid(1))
    assert cluster.client.job(gangs["frozen"].id).state == "draining"
    signal_all([agent], signal.SIGCONT)
    gangs["frozen"].wait_all(2)
    assert cluster.client.attempts(gangs["frozen"].id)[0].trigger_rank == 0

    gangs["hole"].wait_all(2, seconds=TTL + MARGIN + SECONDS)
    gangs["hole"].until("running")  # its ranks write before their agents have told of them
    before = cluster.snapshot(gangs["hole"].id)
    gangs["hole"].check()
    silent["hole"].proxy.restore()  # type: ignore[union-attr]  # it was started above
    wait_until(
        lambda: not cluster.client.host(silent["hole"].name).running,
        SECONDS,
        what="its leases to be given up",
    )
    wait_until(
        lambda: cluster.controller.messages("a stale report was refused"),
        SECONDS,
        what="the stale report",
    )
    assert cluster.snapshot(gangs["hole"].id) == before, (
        "a late report of an old epoch changed something"
    )
    for gang in gangs.values():
        gang.finish()
        attempts = gang.attempts()
        assert [a.number for a in attempts] == [1, 2]
        assert (attempts[0].trigger_rank, attempts[0].cause) == (0, "nonzero_exit")


def test_a_controller_that_is_killed_in_the_middle_of_a_drain(cluster: Cluster) -> None:
    for name in ("left", "right"):
        cluster.add_host(name, cpu_slots=2)
    gang = Gang(cluster, "controller", 4, "--ignore-term", "1", grace=3.0)
    gang.wait_all(1)
    os.kill(gang.pid(3), signal.SIGKILL)
    gang.until("draining")
    cluster.controller.kill()
    assert is_alive(gang.pid(1)), "the drain was over before the kill: nothing was tested"
    cluster.controller.start()
    gang.wait_all(2)
    gang.finish()
    first, second = gang.attempts()
    assert (first.trigger_rank, first.cause, second.outcome) == (3, "nonzero_exit", "succeeded")
    kinds = gang.kinds()
    assert (kinds.count("job.draining"), kinds.count("job.requeued")) == (1, 1), kinds
    assert {r: c.retries for r, c in cluster.client.job(gang.id).rank_charges.items()} == {"3": 1}


def test_a_database_that_is_killed_in_the_middle_of_a_drain(
    own_database: EmbeddedPostgres, tmp_path: Path
) -> None:
    with ExitStack() as stack:
        cluster = Cluster(tmp_path, own_database.dsn())
        stack.callback(cluster.close)
        cluster.add_controller()
        for name in ("left", "right"):
            cluster.add_host(name, cpu_slots=2)
        gang = Gang(cluster, "database", 4, "--ignore-term", "1", grace=3.0)
        gang.wait_all(1)
        os.kill(gang.pid(3), signal.SIGKILL)
        gang.until("draining")
        os.kill(own_database.pid or 0, signal.SIGKILL)
        assert is_alive(gang.pid(1)), "the drain was over before the kill: nothing was tested"
        own_database.wait(10)
        own_database.start()
        gang.wait_all(2)
        gang.finish()
        assert [(a.trigger_rank, a.outcome) for a in gang.attempts()] == [
            (3, "requeued"),
            (None, "succeeded"),
        ]
        assert gang.kinds().count("job.requeued") == 1
