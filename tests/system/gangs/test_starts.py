"""A gang starts together or not at all (GANG-1)."""

from __future__ import annotations

import json
import signal
import sys

import pytest

from tests.store.pg_fixture import PgServer
from tests.system.cluster import Cluster, signal_all
from tests.system.conftest import make_cluster
from tests.system.gangs.rig import SECONDS, Gang
from tests.waits import wait_until

pytestmark = pytest.mark.slow


def claimed(cluster: Cluster, job: str) -> list[int]:
    """Ranks whose place is kept."""
    return [task.rank for task in cluster.client.tasks(job) if task.claimed_at is not None]


def test_nothing_starts_until_every_rank_has_its_place(cluster: Cluster) -> None:
    """Two hosts keep their places; the third is frozen. When it wakes, all start at once and know
    their peers."""
    hosts = [
        cluster.add_host(f"host{n}", cpu_slots=1, advertise=f"127.0.0.{n + 1}") for n in range(3)
    ]
    pids = hosts[2].freeze()
    look = cluster.folder / "look"
    words = f"""import json, os
listed = open(os.environ["HOLDFAST_PEERS_FILE"]).read()
print(json.dumps({{**os.environ, "LISTED": listed}}))
open('{look}', 'a').write('x')"""
    job = cluster.submit(sys.executable, "-c", words, tasks=3)
    wait_until(lambda: len(claimed(cluster, job)) == 2, SECONDS, what="two claims")
    # A restart of an agent must not lose its place: the new one is asked again.
    hosts[0].kill_agent()
    wait_until(
        lambda: hosts[0].log().count("a place is kept") == 2,
        SECONDS,
        what="the new agent to be asked again",
    )
    assert cluster.client.job(job).state == "reserved"
    assert not look.exists(), "a rank ran before the barrier was open"
    assert [task.barrier for task in cluster.client.tasks(job)] == [False] * 3
    signal_all(pids, signal.SIGCONT)
    cluster.until(job, "succeeded", seconds=SECONDS)
    seen = [json.loads(line) for line in cluster.output(job).decode().splitlines()]
    by_rank = {int(env["RANK"]): env for env in seen}
    assert sorted(by_rank) == [0, 1, 2]
    peers = {text for env in seen for text in (env["HOLDFAST_PEERS"], env["LISTED"])}
    assert len(peers) == 1
    listed = json.loads(peers.pop())
    assert [peer["rank"] for peer in listed] == [0, 1, 2]
    address = {host.name: f"127.0.0.{n + 1}" for n, host in enumerate(hosts)}
    assert [peer["address"] for peer in listed] == [address[peer["host"]] for peer in listed]
    first = listed[0]["address"]
    assert {(env["MASTER_ADDR"], env["WORLD_SIZE"], env["LOCAL_RANK"]) for env in seen} == {
        (first, "3", "0")
    }
    assert len({env["MASTER_PORT"] for env in seen}) == 1
    assert int(seen[0]["MASTER_PORT"]) > 1023
    assert {env["GROUP_RANK"] for env in seen} == {"0", "1", "2"}
    assert "job.claimed" in [event.kind for event in cluster.client.events(job_id=job)]


@pytest.fixture
def impatient(tmp_path, pg_server: PgServer):  # type: ignore[no-untyped-def]  # a generator of a Cluster
    """A cluster whose reservations run out soon."""
    from contextlib import ExitStack

    with ExitStack() as stack:
        yield make_cluster(stack, tmp_path, pg_server, reservation_seconds=4.0)


def test_three_are_reserved_and_one_dies_before_it_claims(impatient: Cluster) -> None:
    """Nothing ever starts, all of it is given back, and the next admission runs it elsewhere."""
    cluster = impatient
    hosts = {name: cluster.add_host(name, cpu_slots=1) for name in ("a", "b", "doomed")}
    doomed = hosts["doomed"]
    pids = doomed.freeze()
    gang = Gang(cluster, "seed", 3)
    wait_until(lambda: len(claimed(cluster, gang.id)) == 2, SECONDS, what="two claims")
    signal_all(pids, signal.SIGKILL)
    doomed.guardian.wait()
    cluster.until_attempt(gang.id, 1, "ended", seconds=SECONDS)
    (first, *_) = gang.attempts()
    assert (first.cause, first.outcome) == ("start_timeout", "requeued")
    # Nothing of it is left anywhere: what was kept for it takes other work, where the gang itself
    # cannot go on.
    other = [cluster.submit(sys.executable, "-c", "", priority=90) for _ in range(2)]
    for job in other:
        cluster.until(job, "succeeded", seconds=SECONDS)
    assert not any(line.attempt == 1 for line in gang.lines()), (
        "a rank of the attempt that never began has run"
    )
    cluster.add_host("spare", cpu_slots=1)
    started = wait_until(
        lambda: next((n.attempt for n in gang.lines() if n.rank == 2), 0),
        SECONDS,
        what="an attempt that runs",
    )
    gang.wait_all(started)
    assert {line.attempt for line in gang.lines()} == {started}, "only one attempt ever ran"
    gang.finish()
    hosts_used = {member.host for member in gang.attempts()[-1].members}
    assert hosts_used == {"a", "b", "spare"}
    job = cluster.client.job(gang.id)
    assert (job.retries_charged, job.infra_charged, job.rank_charges) == (0, 0, {}), (
        "a failed start is charged to nobody"
    )


def test_two_gangs_that_share_a_host_have_ports_of_their_own(cluster: Cluster) -> None:
    cluster.add_host("one", cpu_slots=4)
    here = cluster.folder / "here"
    here.mkdir()
    words = (  # all four are there at once
        "import os, socket, sys, time\n"
        "port, rank = os.environ['MASTER_PORT'], os.environ['RANK']\n"
        "server = socket.create_server(('', int(port))) if rank == '0' else None\n"
        "open(os.path.join(sys.argv[1], os.environ['HOLDFAST_JOB_ID'] + rank), 'w').close()\n"
        "while len(os.listdir(sys.argv[1])) < 4: time.sleep(0.05)\n"
        "print(port)\n"
    )
    jobs = [cluster.submit(sys.executable, "-c", words, str(here), tasks=2) for _ in range(2)]
    for job in jobs:
        cluster.until(job, "succeeded", seconds=SECONDS)
    ports = [set(cluster.output(job).decode().split()) for job in jobs]
    assert [len(found) for found in ports] == [1, 1]
    assert ports[0] != ports[1]


def test_a_port_that_was_taken_meanwhile_is_no_failure_of_the_job(cluster: Cluster) -> None:
    """Rank 0 finds its port in use and dies of it. Another attempt gets another port, at no charge
    to the retries."""
    cluster.add_host("one", cpu_slots=2)
    words = (
        "import os, socket, sys, time\n"
        "port = int(os.environ['MASTER_PORT'])\n"
        "if os.environ['RANK'] == '0':\n"
        "    if os.environ['HOLDFAST_ATTEMPT'] == '1':\n"
        "        thief = socket.create_server(('', port))\n"
        "    server = socket.create_server(('', port))\n"
        "elif os.environ['HOLDFAST_ATTEMPT'] == '1':\n"
        "    time.sleep(600)\n"
        "print(port)"
    )
    job = cluster.submit(sys.executable, "-c", words, tasks=2)
    ended = cluster.until(job, "succeeded", seconds=SECONDS)
    first, second = cluster.client.attempts(job)
    assert (first.cause, first.rule, first.charged_to, first.trigger_rank) == (
        "agent_transient",
        "rendezvous-port",
        "infra",
        0,
    )
    assert (ended.attempts, ended.retries_charged) == (2, 0)
    assert second.outcome == "succeeded"


def test_device_local_rank_is_a_ranks_own(cluster: Cluster) -> None:
    """As under torchrun: a script that takes the device LOCAL_RANK of those it sees takes the one
    it was given."""
    cluster.add_host("busy", gpus=4, cpu_slots=0)
    blocker = cluster.submit(sys.executable, "-c", "import time; time.sleep(600)", gpus=1)
    cluster.until(blocker, "running", seconds=SECONDS)
    go = cluster.folder / "go"
    words = (
        "import os, time; seen = os.environ['CUDA_VISIBLE_DEVICES'].split(',');"
        "print(os.environ['RANK'], seen[int(os.environ['LOCAL_RANK'])], len(seen), flush=True)\n"
        f"while not os.path.exists({str(go)!r}): time.sleep(0.05)"
    )
    job = cluster.submit(sys.executable, "-c", words, tasks=3, gpus=1)
    cluster.until(job, "running", seconds=SECONDS)
    given = {task.rank: str(task.devices[0]) for task in cluster.client.tasks(job)}
    go.touch()
    cluster.until(job, "succeeded", seconds=SECONDS)
    lines = [line.split() for line in cluster.output(job).decode().splitlines()]
    assert {int(rank): device for rank, device, _ in lines} == given
    assert {count for _, _, count in lines} == {"3"}
