"""The controller and its database die, freeze and restart, and jobs do not notice (LEASE-4)."""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from holdfast.store.embedded.postgres import EmbeddedPostgres
from tests.store.pg_fixture import PgServer
from tests.system.chronicle import CODE, check_no_overlap, lives_of
from tests.system.cluster import MARGIN, TTL, Cluster
from tests.system.proxy import Proxy
from tests.waits import Patience, wait_until

pytestmark = pytest.mark.slow

# Says {0} lines and ends with {1}; given a file's name, not before that file is there.
TALKER = (
    "import os,sys,time\nfor n in range({0}):\n    print('line', n, flush=True); time.sleep(0.05)\n"
    "while sys.argv[1:] and not os.path.exists(sys.argv[1]): time.sleep(0.05)\nsys.exit({1})"
)
WEDGE = """
import ctypes, json, os, socket, sys
if os.environ["HOLDFAST_ATTEMPT"] == "1":
    beat = json.dumps({"task": os.environ["HOLDFAST_TASK"], "step": 1}).encode()
    socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(beat, os.environ["HOLDFAST_BEAT_SOCKET"])
    ctypes.PyDLL(None).sleep(1000)  # the GIL stays held
print("whole")
"""


def kinds(cluster: Cluster, job: str) -> list[str]:
    return [event.kind for event in cluster.client.events(job_id=job)]


def test_a_frozen_leader_is_replaced_and_changes_nothing_when_it_thaws(cluster: Cluster) -> None:
    """LEAD-3: two servers, and the leader is stopped for longer than its lead."""
    cluster.controller.wait_lead()
    leader, standby = cluster.controller, cluster.add_controller()
    cluster.add_host("h", url=standby.url, cpu_slots=2)
    client = cluster.client_of(standby)
    process = leader.process
    assert process is not None
    assert not standby.messages("this server leads")
    process.send_signal(signal.SIGSTOP)
    patience = Patience(10)
    alone = client.submit(argv=["/bin/true"]).id
    job = client.submit(argv=["/bin/true"], tasks=2).id
    wait_until(lambda: client.job(alone).state.terminal, what="a job that needs no leader to end")
    wait_until(lambda: client.job(job).attempts > 0, 15, what="the standby to admit a gang")
    assert not patience.over
    wait_until(lambda: client.job(job).state.terminal, what="the job to end")
    process.send_signal(signal.SIGCONT)
    wait_until(lambda: leader.messages("does not lead any more"), what="the old leader to notice")
    later = client.submit(argv=["/bin/true"]).id
    wait_until(lambda: client.job(later).state.terminal, what="another job to end")
    assert [client.job(i).state for i in (job, later)] == ["succeeded", "succeeded"]
    assert len(client.attempts(job)) == len(client.attempts(later)) == 1
    assert len(standby.messages("this server leads")) == 1
    assert not leader.messages("failed; it goes on")


def test_a_leader_whose_database_hangs_is_replaced_and_changes_nothing_afterwards(
    proxied: tuple[Cluster, Proxy],
) -> None:
    """LEAD-3: the leader's connections stay open and carry nothing; later all that it sent
    meanwhile arrives at once."""
    cluster, proxy = proxied
    leader = cluster.controller
    leader.wait_lead()
    cluster.dsn = cluster.dsn.replace(f":{proxy.port}/", f":{proxy.target_port}/")
    standby = cluster.add_controller()
    cluster.add_host("h", url=standby.url, cpu_slots=2)
    client = cluster.client_of(standby)
    assert not standby.messages("this server leads")
    proxy.hold()
    patience = Patience(10)
    job = client.submit(argv=["/bin/true"], tasks=2).id
    wait_until(lambda: client.job(job).attempts > 0, 15, what="the standby to admit a gang")
    assert not patience.over
    wait_until(lambda: client.job(job).state.terminal, what="the job to end")
    proxy.let_go()
    wait_until(lambda: leader.messages("does not lead any more"), what="the old leader to notice")
    later = client.submit(argv=["/bin/true"], tasks=2).id
    wait_until(lambda: client.job(later).state.terminal, what="another job to end")
    assert [client.job(i).state for i in (job, later)] == ["succeeded", "succeeded"]
    assert len(client.attempts(job)) == len(client.attempts(later)) == 1
    assert len(standby.messages("this server leads")) == 1
    assert len(leader.messages("this server leads")) == 1


def test_a_killed_controller_restarts_no_job(cluster: Cluster) -> None:
    host = cluster.add_host("h")
    go = cluster.folder / "go"
    job = cluster.submit(sys.executable, "-c", TALKER.format(60, 5), str(go))
    quick = cluster.submit(sys.executable, "-c", "import time, sys; time.sleep(1.5); sys.exit(3)")
    cluster.until(job, "running")
    cluster.until(quick, "running")
    pids = host.task_pids(job)
    cluster.controller.kill()
    wait_until(lambda: not host.task_pids(quick), what="a job to end while no controller lives")
    cluster.controller.start()
    assert host.task_pids(job) == pids
    assert cluster.until(quick, "failed").exit_code == 3
    go.touch()
    ended = cluster.until(job, "failed")
    assert (ended.exit_code, ended.attempts) == (5, 1)
    wait_until(lambda: cluster.output(job).count(b"\n") == 60, what="the whole output")
    assert cluster.output(job) == b"".join(b"line %d\n" % n for n in range(60))
    assert kinds(cluster, job).count("job.failed") == 1


@pytest.mark.longest
def test_nothing_is_reaped_until_a_restarted_controller_has_waited_a_whole_lease(
    cluster: Cluster,
) -> None:
    """LEASE-4, with the agent silent all the time: a host whose lease looks expired may only
    have had no controller to talk to."""
    host = cluster.add_host("silent", queues=[cluster.set_queue("silent")])
    file = cluster.folder / "chronicle"
    job = cluster.submit(sys.executable, CODE, str(file), "120", queue="silent", lease_ttl=TTL)
    cluster.until(job, "running")
    host.freeze()
    frozen_at = time.monotonic()
    cluster.controller.kill()
    time.sleep(TTL + MARGIN + 1 - (time.monotonic() - frozen_at))
    cluster.controller.start()
    served_at = time.monotonic()
    while time.monotonic() - served_at < TTL - 2:
        found = cluster.client.job(job)
        assert (found.state, found.attempts) == ("running", 1), (
            f"reaped {time.monotonic() - served_at:.1f} s after the start"
        )
        time.sleep(0.25)
    # And then it is reaped: the silence is real.
    wait_until(
        lambda: cluster.client.job(job).state != "running", 8, what="the lease to lapse after all"
    )
    host.thaw()
    cluster.until_attempt(job, 2)
    wait_until(lambda: 2 in lives_of(file, job))
    check_no_overlap(file, job)


def test_a_second_controller_takes_over_when_the_leader_is_killed(cluster: Cluster) -> None:
    host = cluster.add_host("h", proxied=True, cpu_slots=1)
    go = cluster.folder / "go"
    long = cluster.submit(sys.executable, "-c", TALKER.format(40, 0), str(go))
    cluster.until(long, "running")
    cluster.controller.wait_lead()
    second = cluster.add_controller()
    assert not second.messages("this server leads")
    queued = cluster.client_of(second).submit(argv=["/bin/true"], cpus=1).id
    pids = host.task_pids(long)
    cluster.controller.kill()
    assert host.proxy is not None
    host.proxy.target_port = second.port
    host.proxy.cut()
    wait_until(lambda: second.messages("this server leads"), 8, what="the second to lead")
    client = cluster.client_of(second)
    assert (client.job(long).state, host.task_pids(long)) == ("running", pids)
    go.touch()
    assert client.wait(long, 20).state == "succeeded"
    assert client.wait(queued, 20).state == "succeeded"
    assert [client.job(j).attempts for j in (long, queued)] == [1, 1]


@pytest.mark.parametrize("how", ["black_hole", "refuse"])
def test_the_database_away_for_longer_than_a_sync(proxied: tuple[Cluster, Proxy], how: str) -> None:
    cluster, proxy = proxied
    host = cluster.add_host("h", cpu_slots=4)
    go = cluster.folder / "go"
    long = cluster.submit(sys.executable, "-c", TALKER.format(40, 0), str(go))
    short = cluster.submit(sys.executable, "-c", TALKER.format(40, 0))
    bad = cluster.submit(sys.executable, "-c", TALKER.format(40, 6))
    for job in (long, short, bad):
        cluster.until(job, "running")
    pids = host.task_pids(long)
    setattr(proxy, how, True)
    if how == "refuse":
        proxy.cut()
    away_at = time.monotonic()
    wait_until(
        lambda: not host.task_pids(short) and not host.task_pids(bad), what="jobs to end meanwhile"
    )
    time.sleep(max(0.0, 3.5 - (time.monotonic() - away_at)))  # several syncs
    assert host.task_pids(long) == pids
    proxy.restore()
    go.touch()
    assert cluster.until(short, "succeeded").attempts == 1
    assert cluster.until(bad, "failed").exit_code == 6
    assert cluster.until(long, "succeeded").attempts == 1
    for job, word in ((short, "job.succeeded"), (bad, "job.failed"), (long, "job.succeeded")):
        assert kinds(cluster, job).count(word) == 1, kinds(cluster, job)
    wait_until(
        lambda: cluster.output(short).count(b"\n") == 40,
        what="the output that came while it was away",
    )


def test_a_trip_that_cannot_be_written_still_kills_and_the_job_comes_back(
    proxied: tuple[Cluster, Proxy],
) -> None:
    cluster, proxy = proxied
    host = cluster.add_host("h")
    job = cluster.submit(sys.executable, "-c", WEDGE, stall_timeout=2)
    wait_until(lambda: cluster.client.job(job).step == 1, what="the beat")
    proxy.black_hole = True
    wait_until(lambda: not host.task_pids(job), 20, what="the kill, with nobody to tell")
    time.sleep(2)
    proxy.restore()
    ended = cluster.until(job, "succeeded")
    first, second = cluster.client.attempts(job)
    assert (first.outcome, first.cause, first.exit_code, first.charged_to) == (
        "requeued",
        "stalled",
        76,
        "watchdog",
    )
    assert (second.outcome, ended.attempts) == ("succeeded", 2)
    wait_until(
        lambda: cluster.client.forensics(job, 1), what="forensics, sent when the way was free"
    )


def test_a_killed_database_loses_nothing(own_database: EmbeddedPostgres, tmp_path: Path) -> None:
    with ExitStack() as stack:
        cluster = Cluster(tmp_path, own_database.dsn())
        stack.callback(cluster.close)
        cluster.add_controller()
        host = cluster.add_host("h")
        go = cluster.folder / "go"
        job = cluster.submit(sys.executable, "-c", TALKER.format(70, 0), str(go))
        queued = cluster.submit(sys.executable, "-c", "print('second')", cpus=2)
        cluster.until(job, "running")
        pids = host.task_pids(job)
        before = len(list(cluster.client.events(job_id=job)))
        os.kill(own_database.pid or 0, signal.SIGKILL)
        own_database.wait(10)
        time.sleep(1.5)
        assert host.task_pids(job) == pids
        own_database.start()
        go.touch()
        assert cluster.until(job, "succeeded").attempts == 1
        assert cluster.until(queued, "succeeded").attempts == 1
        assert kinds(cluster, job).count("job.succeeded") == 1
        assert len(kinds(cluster, job)) == before + 1
        wait_until(lambda: cluster.output(job).count(b"\n") == 70, what="the whole output")


def test_a_database_restored_from_a_backup_wedges_no_job(
    tmp_path: Path, pg_server: PgServer
) -> None:
    """The agent knows more than the database: the attempt that is offered to it has ended there. It
    says so."""
    with ExitStack() as stack:
        name = pg_server.create_database(pg_server.migrated)
        stack.callback(pg_server.drop_database, name)
        cluster = Cluster(tmp_path, pg_server.dsn_of(name))
        stack.callback(cluster.close)
        controller = cluster.add_controller()
        cluster.set_queue("q")
        cluster.add_host("h", queues=["q"])
        cluster.client.pause_queue("q", "a backup is made")
        job = cluster.submit("/bin/echo", "hello", queue="q")
        controller.kill(signal.SIGTERM)
        backup = wait_until(lambda: pg_server.create_database(template=name), what="the backup")
        stack.callback(pg_server.drop_database, backup)
        controller.start()
        cluster.client.resume_queue("q")
        assert cluster.until(job, "succeeded").attempts == 1
        controller.kill(signal.SIGTERM)
        controller.dsn = pg_server.dsn_of(backup)
        controller.start()
        assert cluster.client.job(job).state == "queued", "the backup was made before it ran"
        cluster.client.resume_queue("q")
        assert cluster.until(job, "succeeded").attempts == 2
        assert cluster.client.attempts(job)[0].exit_code == 77
        assert "restored database" in cluster.client.attempts(job)[0].reason


def test_what_a_restored_database_does_not_know_ends_and_nothing_runs_twice_at_once(
    tmp_path: Path, pg_server: PgServer
) -> None:
    """DOUBT-1: both looks miss them. One job was submitted after the backup, the other one started."""
    with ExitStack() as stack:
        name = pg_server.create_database(pg_server.migrated)
        stack.callback(pg_server.drop_database, name)
        cluster = Cluster(tmp_path, pg_server.dsn_of(name))
        stack.callback(cluster.close)
        controller = cluster.add_controller()
        cluster.set_queue("q")
        host = cluster.add_host("h", queues=["q"])
        cluster.client.pause_queue("q", "a backup is made")
        alone = (
            f"exec 9>>{tmp_path}/$0; flock -n 9 || touch {tmp_path}/overlap; echo; exec sleep 600"
        )
        known = cluster.submit("bash", "-c", alone, "known", queue="q")
        controller.kill(signal.SIGTERM)
        backup = wait_until(lambda: pg_server.create_database(template=name), what="the backup")
        stack.callback(pg_server.drop_database, backup)
        controller.start()
        cluster.client.resume_queue("q")
        unknown = cluster.submit("bash", "-c", alone, "unknown", queue="q")
        for job in (known, unknown):
            cluster.until(job, "running")
        controller.kill(signal.SIGTERM)
        controller.dsn = pg_server.dsn_of(backup)
        controller.start()
        cluster.client.resume_queue("q")
        wait_until(lambda: not host.task_pids(unknown), 60, what="the end of the unknown one")
        # The other one ends and runs anew, or runs on where it was placed on its host again meanwhile.
        cluster.until(known, "running", seconds=60)
        assert not (tmp_path / "overlap").exists()
        cluster.client.cancel(known, hard=True)
        cluster.until(known, "cancelled")
