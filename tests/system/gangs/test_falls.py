"""Which rank is charged when a gang falls, how often a gang may fall, and what becomes of finished
work (GANG-4, GANG-5, DRAIN-2)."""

from __future__ import annotations

import json
import os
import signal

import pytest

from tests.system.cluster import Cluster
from tests.system.gangs.journal import check_one_at_a_time
from tests.system.gangs.rig import SECONDS, Gang
from tests.waits import is_alive, wait_until

pytestmark = pytest.mark.slow


def add_hosts(cluster: Cluster, queue: str, *slots: int) -> None:
    """Hosts of a queue's own, on a cluster that other tests use, too."""
    cluster.set_queue(queue)
    for number, count in enumerate(slots):
        cluster.add_host(f"{queue}{number}", cpu_slots=count, queues=[queue])


def test_a_member_that_always_fails_ends_the_job_after_exactly_its_budget(shared: Cluster) -> None:
    add_hosts(shared, "always", 2, 1)
    gang = Gang(
        shared,
        "always",
        3,
        "--fail",
        "2:*:9",
        queue="always",
        retry={"max_retries": 2, "retry_delay": 0.0},
    )
    ended = gang.until("failed")
    gang.check()
    attempts = gang.attempts()
    assert [(a.trigger_rank, a.cause, a.exit_code) for a in attempts] == [
        (2, "nonzero_exit", 9)
    ] * 3
    assert "all 2 retries are spent" in ended.reason
    assert {rank: c.retries for rank, c in ended.rank_charges.items()} == {"2": 3}
    # The same as a script reads it.
    done = shared.cli("attempts", gang.id, "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    members = (told["items"] if isinstance(told, dict) else told)[0]["members"]
    assert [(m["rank"], m.get("trigger", False)) for m in members] == [
        (0, False),
        (1, False),
        (2, True),
    ]
    assert [m["state"] for m in members] == ["preempted", "preempted", "failed"]


def test_three_members_that_fail_once_each_do_not_end_it(shared: Cluster) -> None:
    add_hosts(shared, "once", 2, 1)
    gang = Gang(
        shared, "once", 3, "--fail", "0:1:9", "--fail", "1:2:9", "--fail", "2:3:9", queue="once"
    )
    gang.wait_all(4)
    gang.finish()
    assert [a.trigger_rank for a in gang.attempts()] == [0, 1, 2, None]
    job = shared.client.job(gang.id)
    assert {rank: c.retries for rank, c in job.rank_charges.items()} == {"0": 1, "1": 1, "2": 1}


def test_a_killed_rank_takes_the_others_down_in_order(shared: Cluster) -> None:
    """TERM, grace, KILL, for one that ignores TERM and for a grandchild in a session of its own;
    no other rank is charged."""
    add_hosts(shared, "killed", 2, 2)
    gang = Gang(shared, "killed", 4, "--ignore-term", "1", "--fork", "3", queue="killed", grace=2.0)
    gang.wait_all(1)
    wait_until(
        lambda: any(n.word == "grandchild" for n in gang.lines()), SECONDS, what="the grandchild"
    )
    pids = {n.pid for n in gang.lines()}
    assert len(pids) == 5
    victim = gang.pid(2)
    told = gang.lines()[-1].at
    os.kill(victim, signal.SIGKILL)
    gang.wait_all(2)
    assert not any(is_alive(pid) for pid in pids)
    lives = check_one_at_a_time(gang.journal, gang.id)
    last = {n.rank: n.at for n in gang.lines() if n.attempt == 1}
    assert last[1] - told >= 1.9, "the one that ignores TERM was left its grace"
    assert len(lives) == 2
    first = gang.attempts()[0]
    assert (first.trigger_rank, first.cause, first.exit_code) == (2, "nonzero_exit", 137)
    assert [(m.rank, m.trigger, m.state) for m in first.members if m.rank != 2] == [
        (0, False, "preempted"),
        (1, False, "preempted"),
        (3, False, "preempted"),
    ]
    gang.finish()
    kinds = gang.kinds()
    assert kinds.count("job.draining") == 1
    assert kinds.count("job.requeued") == 1


def test_work_that_is_done_is_not_run_again(shared: Cluster) -> None:
    add_hosts(shared, "partial", 3)
    gang = Gang(
        shared,
        "partial",
        3,
        "--done",
        "1",
        "--fail",
        "0:*:3",
        queue="partial",
        retry={"max_retries": 5, "retry_delay": 0.0},
    )
    ended = gang.until("failed")
    (only,) = gang.attempts()
    assert {m.rank: m.state for m in only.members} == {0: "failed", 1: "done", 2: "preempted"}
    assert "rank 1 had finished its work" in ended.reason
    assert ended.exit_code == 3


def test_work_that_is_done_is_run_again_where_the_user_says_so(shared: Cluster) -> None:
    add_hosts(shared, "again", 3)
    gang = Gang(
        shared, "again", 3, "--done", "1", "--fail", "0:1:3", queue="again", on_partial="restart"
    )
    gang.wait_all(2)
    gang.finish()
    first, second = gang.attempts()
    assert {m.rank: m.state for m in first.members} == {0: "failed", 1: "done", 2: "preempted"}
    assert {m.state for m in second.members} == {"done"}
