"""Jobs after jobs, arrays and schedules through the death of the leader: nothing is lost, nothing is
done twice (AFTER-1, ARRAY-1, TIME-1)."""

from __future__ import annotations

import os
import signal
import sys
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import pytest

from holdfast.store.embedded.postgres import EmbeddedPostgres
from tests.system.cluster import Cluster
from tests.waits import wait_until

pytestmark = pytest.mark.slow

WAITER = "import os,sys,time\nwhile not os.path.exists(sys.argv[1]): time.sleep(0.05)"
NAPPER = "import time; time.sleep(0.3)"


def test_a_leader_dies_between_an_end_and_what_follows_from_it(cluster: Cluster) -> None:
    """The parent's end is on record before any loop runs again: its server does not lead yet."""
    cluster.controller.wait_lead()
    leader, standby = cluster.controller, cluster.add_controller()
    host = cluster.add_host("h", url=standby.url, cpu_slots=8)
    client, go = cluster.client_of(standby), cluster.folder / "go"
    parent = client.submit(name="parent", argv=[sys.executable, "-c", WAITER, str(go)]).id
    child = client.submit(name="child", argv=["/bin/true"], after=(parent,)).id
    doomed = client.submit(argv=["/bin/true"], after=(f"{parent}:failed",)).id
    last = client.submit(argv=["/bin/true"], after=(doomed,)).id
    wait_until(lambda: host.task_pids(parent), what="the parent to run")
    array = client.submit_array("0-5%2", argv=[sys.executable, "-c", NAPPER], name="six").id
    client.put_schedule("tick", argv=["/bin/true"], every_seconds=1.0, overlap="queue")
    wait_until(lambda: client.schedule_runs("tick"), what="the first run of the schedule")

    leader.kill()
    go.touch()
    wait_until(lambda: client.job(parent).state.terminal, what="the end of the parent")
    assert not standby.messages("this server leads"), "nothing can have been released yet"
    assert client.job(child).state == "waiting"

    for job_id, state in ((child, "succeeded"), (doomed, "cancelled"), (last, "cancelled")):
        wait_until(lambda j=job_id: client.job(j).state.terminal, 40, what=f"the end of {job_id}")
        assert client.job(job_id).state == state, client.job(job_id).reason
        kinds = Counter(event.kind for event in client.events(job_id=job_id))
        assert kinds["job.released"] == (1 if job_id == child else 0)
    assert doomed in client.job(last).reason

    wait_until(lambda: client.array(array).state.terminal, 40, what="the end of the array")
    assert client.array(array).counts == {"succeeded": 6}
    assert [job.attempts for job in client.jobs(array=array)] == [1] * 6

    runs = len(client.schedule_runs("tick"))
    wait_until(lambda: len(client.schedule_runs("tick")) > runs, what="runs by the new leader")
    client.pause_schedule("tick")
    found = [run for run in client.schedule_runs("tick", 1000) if run.outcome == "submitted"]
    assert len({run.due_at for run in found}) == len(found)
    jobs = [job.id for job in client.jobs(name="tick")]
    assert sorted(jobs) == sorted(run.job_id for run in found if run.job_id), "a job for each run"


def test_the_database_dies_while_dependants_members_and_times_wait(
    own_database: EmbeddedPostgres, tmp_path: Path
) -> None:
    with ExitStack() as stack:
        cluster = Cluster(tmp_path, own_database.dsn())
        stack.callback(cluster.close)
        cluster.add_controller()
        host = cluster.add_host("h", cpu_slots=8)
        client, go = cluster.client, cluster.folder / "go"
        parent = client.submit(argv=[sys.executable, "-c", WAITER, str(go)]).id
        child = client.submit(argv=["/bin/true"], after=(parent,)).id
        wait_until(lambda: host.task_pids(parent), what="the parent to run")
        array = client.submit_array("0-5%2", argv=[sys.executable, "-c", NAPPER]).id
        client.put_schedule("tick", argv=["/bin/true"], every_seconds=1.0, overlap="queue")
        os.kill(own_database.pid or 0, signal.SIGKILL)
        own_database.wait(10)
        go.touch()
        wait_until(lambda: not host.task_pids(parent), what="the parent's process to end")
        own_database.start()
        assert cluster.until(child, "succeeded", seconds=40).attempts == 1
        kinds = Counter(event.kind for event in client.events(job_id=child))
        assert kinds["job.released"] == 1
        wait_until(lambda: client.array(array).state.terminal, 40, what="the end of the array")
        assert client.array(array).counts == {"succeeded": 6}
        wait_until(lambda: client.schedule_runs("tick"), what="a run of the schedule")
        client.pause_schedule("tick")
        found = [run.job_id for run in client.schedule_runs("tick") if run.job_id]
        assert sorted(found) == sorted(job.id for job in client.jobs(name="tick"))
