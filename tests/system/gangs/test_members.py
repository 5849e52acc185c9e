"""Members of a supervised job on real hosts: lost and replaced one by one while the script and the
others run on (MEMBER-1…4).

The controller sees exit codes alone, so the ranks are plain processes that write their lives into
one journal.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import sys
from typing import Any

import pytest

from holdfast.core.records import JobRecord, TaskRecord
from tests.system.cluster import TTL, Cluster, Host
from tests.system.gangs.host_member import CODE
from tests.system.gangs.journal import Line, read_journal
from tests.system.gangs.rig import SECONDS
from tests.waits import Patience, is_alive, wait_until

pytestmark = pytest.mark.slow


class Supervised:
    """A supervised job of plain processes."""

    def __init__(self, cluster: Cluster, tasks: int, **fields: Any) -> None:
        self.cluster, self.tasks = cluster, tasks
        self.journal = cluster.folder / "supervised.journal"
        self.go = cluster.folder / "supervised.go"
        argv = [sys.executable, "-S", CODE, str(self.journal), str(self.go)]
        self.id = cluster.submit(*argv, tasks=tasks, supervised=True, placement="spread", **fields)
        self.wait(lambda: len({line.rank for line in self.lines()}) == tasks, "all ranks")

    def wait(self, condition: Any, what: str, seconds: float = SECONDS) -> Any:
        try:
            return wait_until(condition, seconds, what=what)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.task(0)}\n{self.cluster.tell(self.id)}") from None

    def lines(self) -> list[Line]:
        return read_journal(self.journal, self.id)

    def task(self, rank: int) -> TaskRecord:
        return self.cluster.client.tasks(self.id)[rank]

    def job(self) -> JobRecord:
        return self.cluster.client.job(self.id)

    def host(self, rank: int) -> Host:
        return self.cluster.hosts[self.task(rank).host_name or ""]

    def pids(self, rank: int) -> list[int]:
        """Of each life of the rank, in order."""
        return [line.pid for line in self.lines() if (line.rank, line.word) == (rank, "start")]

    def wait_life(self, rank: int, number: int, seconds: float = SECONDS) -> str:
        """Wait for the rank's life of that number, from 1; the name of its host."""
        self.wait(lambda: len(self.pids(rank)) >= number, f"life {number} of rank {rank}", seconds)
        self.wait(lambda: self.task(rank).state == "running", f"rank {rank} to run")
        return str(self.task(rank).host_name)

    def finish(self) -> JobRecord:
        """The script ends; so does the job, and everything of it."""
        pids = {line.pid for line in self.lines()}
        self.go.touch()
        job = self.cluster.until(self.id, "succeeded", seconds=SECONDS)
        assert [pid for pid in pids if is_alive(pid)] == [], (
            "succeeded means that nothing of it runs"
        )
        assert self.cluster.client.tasks(self.id) == []
        self.check()
        return job

    def check(self) -> None:
        """No two lives of one rank overlap, each has a later epoch than the one before, and the
        script has one alone."""
        lives: dict[tuple[int, int], list[Line]] = {}
        for line in self.lines():
            lives.setdefault((line.rank, line.epoch), []).append(line)
        for lines in lives.values():
            assert [line.word for line in lines].count("start") == 1, (
                f"started twice under one epoch: {lines[:3]}"
            )
        for (before, mine), (after, next_) in itertools.pairwise(sorted(lives.items())):
            if before[0] == after[0]:
                assert mine[-1].at < next_[0].at, (
                    f"{before} lived until {mine[-1].at}, {after} from {next_[0].at}"
                )
        assert sum(rank == 0 for rank, _ in lives) == 1
        assert {line.attempt for line in self.lines()} == {1}


def test_members_are_lost_in_every_way_and_the_script_runs_on(cluster: Cluster) -> None:
    """Killed, given up, lost with their host, and while the controller is away: the same attempt,
    other hosts."""
    for number in range(5):
        cluster.add_host(f"m{number}", cpu_slots=1, wait=number == 4)
    for number in range(4):
        cluster.wait_host(f"m{number}")
    job = Supervised(cluster, 4)
    script = job.pids(0)
    spare = (
        {f"m{n}" for n in range(5)} - {str(job.task(rank).host_name) for rank in range(4)}
    ).pop()

    first = job.host(1).name
    os.kill(job.pids(1)[0], signal.SIGKILL)
    assert job.wait_life(1, 2) == spare, "another host stands in where there is one"

    barred = job.host(2).name
    os.kill(job.pids(2)[0], signal.SIGUSR1)
    assert job.wait_life(2, 2) == first, "the only free one"
    own = job.host(3).name
    os.kill(job.pids(3)[0], signal.SIGKILL)
    assert job.wait_life(3, 2) == own, "the other free one was given up by the script"
    charges = {rank: charge.infra for rank, charge in job.job().rank_charges.items()}
    assert charges == {"1": 1, "3": 1}, "what the script gives up is charged to nothing"

    cluster.controller.kill()
    os.kill(job.pids(1)[1], signal.SIGKILL)
    assert is_alive(script[0])
    cluster.controller.start()
    job.wait_life(1, 3)
    assert job.host(1).name not in (barred,)

    gone = job.host(2)
    agent = gone.agent_pid()
    gone.kill_guardian()
    job.wait(
        lambda: not is_alive(agent) and not is_alive(job.pids(2)[1]), "all of that host to be gone"
    )
    gone.start()
    patience = Patience(cluster.client.tasks(job.id)[2].lease_ttl_seconds)
    job.wait_life(2, 3)
    assert not patience.over, "evidence does not wait for the lease (LEASE-3)"

    shown = json.loads(cluster.cli("show", job.id, "--json").stdout)
    assert shown["state"] == "running"
    assert b"replaced 2 times" in cluster.cli("show", job.id).stdout
    log = cluster.cli("logs", job.id, "--rank", "1").stdout.decode()
    assert [int(line.split()[-1]) for line in log.splitlines() if "under epoch" in line] == sorted(
        {line.epoch for line in job.lines() if line.rank == 1}
    ), "the log of a rank goes on through its lives (LOG-3)"
    assert job.pids(0) == script
    assert job.finish().attempts == 1
    (attempt,) = cluster.client.attempts(job.id)
    assert (attempt.outcome, attempt.exit_code) == ("succeeded", 0)
    assert b"succeeded" in cluster.cli("attempts", job.id).stdout
    kinds = [event.kind for event in cluster.client.events(job_id=job.id)]
    assert (kinds.count("job.draining"), kinds.count("task.replaced")) == (1, 5), kinds


def test_a_member_that_cannot_be_heard_is_replaced_when_its_lease_is_over(cluster: Cluster) -> None:
    """LEASE-2: its host sits in a black hole and ends it by itself before another may stand in."""
    for number in range(4):
        cluster.add_host(f"h{number}", cpu_slots=1, proxied=True, wait=number == 3)
    for number in range(3):
        cluster.wait_host(f"h{number}")
    job = Supervised(cluster, 3, lease_ttl=TTL)
    silent = job.host(1)
    assert silent.proxy is not None
    silent.proxy.black_hole = True
    after = job.wait_life(1, 2, seconds=TTL + SECONDS)
    assert after != silent.name
    job.check()
    silent.proxy.restore()
    job.wait(
        lambda: cluster.client.host(silent.name).state == "active",
        "the silent host to be heard again",
    )
    job.wait(lambda: not cluster.client.host(silent.name).running, "it to hold nothing")
    assert job.task(1).host_name == after
    assert [len(job.pids(rank)) for rank in range(3)] == [1, 2, 1]
    done = job.finish()
    assert (done.attempts, done.infra_charged) == (1, 1)
