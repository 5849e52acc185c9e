"""Lost and replaced hosts of a supervised job: another stands in, in the same attempt, and the
script decides about the work."""

from __future__ import annotations

import os
import signal

import pytest

from tests.system.cluster import TTL, Cluster
from tests.system.conftest import cluster
from tests.system.supervisor.holdfast.holdfast_rig import SECONDS, Supervised, find_first, kill_host
from tests.waits import is_alive, wait_until

__all__ = ["cluster"]

pytestmark = pytest.mark.slow

# A policy as in the guide: when anything goes wrong, replace what is lost and begin again. Each
# start tells where it runs, and each rank which epoch it sees.
POLICY = """
WORK = '''
import os, sys, time
seen = sys.argv[2] + os.environ["RANK"]
with open(seen + ".new", "w") as file:
    file.write(os.environ["HOLDFAST_EPOCH"])
os.rename(seen + ".new", seen)
while not os.path.exists(sys.argv[1]): time.sleep(0.02)
'''
with Context(port=55555) as ctx:
    hosts = ctx.request_hosts(ctx.given_hosts)
    for start in range(9):
        names = [h.hostname().result() for h in hosts]
        group = ctx.create_process_group(hosts, python(WORK, ME / "go", ME / f"epoch-{start}-"))
        pids = []
        try:
            pids = [p.pid().result() for p in group]
            tell(f"start-{start}", {"names": names, "pids": pids, "port": ctx.port})
            for future in as_completed([p.returncode() for p in group]):
                if future.result() != 0:
                    raise RuntimeError(f"{future.whom} ended with {future.result()}")
            sys.exit(0)
        except (HostLost, RuntimeError) as error:
            print("lost:", error, flush=True)
        for ended in group.end():
            ended.exception()
        group.forget()
        lost = [h for h in hosts if h.connection_lost()]
        hosts = [h for h in hosts if not h.connection_lost()] + ctx.replace_hosts(lost)
sys.exit(1)
"""


def add_hosts(cluster: Cluster, count: int, slots: int = 1) -> None:
    for number in range(count):
        cluster.add_host(f"box{number}", cpu_slots=slots, wait=False)
    for number in range(count):
        cluster.wait_host(f"box{number}", seconds=SECONDS)


def host_of(run: Supervised, rank: int) -> str:
    return next(t.host_name or "" for t in run.cluster.client.tasks(run.id) if t.rank == rank)


def finish(run: Supervised) -> None:
    """Let it end: one attempt, and nothing of it is left."""
    (run.folder / "go").touch()
    job = run.until("succeeded")
    assert (job.exit_code, [a.number for a in run.cluster.client.attempts(run.id)]) == (0, [1])
    run.wait_nothing_left()


def test_a_host_that_dies_is_replaced_and_the_run_goes_on(cluster: Cluster) -> None:
    add_hosts(cluster, 3)
    run = Supervised(cluster, "dies", POLICY, 2, "--lease-ttl", f"{TTL:g}s")
    first = run.told("start-0")
    script, lost = host_of(run, 0), host_of(run, 1)
    (spare,) = set(cluster.hosts) - {script, lost}
    began = run.pids(rank=0)
    gone = first["pids"][first["names"].index(lost)]
    queue = cluster.client.job(run.id).queue
    cluster.client.pause_queue(queue, "a member of a job that runs is no new job")
    kill_host(cluster.hosts[lost])
    wait_until(lambda: not is_alive(gone), SECONDS, what="the rank on the lost host to die")
    second = run.told("start-1")
    assert set(second["names"]) == {script, spare}
    assert second["port"] == first["port"]
    assert set(began) & set(run.pids(rank=0)), "rank 0 was never stopped"
    assert f"lost: host {lost} is lost" in run.output(0)
    tasks = {t.rank: t for t in cluster.client.tasks(run.id)}
    assert (tasks[1].host_name, tasks[1].attempt, tasks[0].attempt) == (spare, 1, 1)
    assert tasks[1].epoch > tasks[0].epoch
    seen = [run.folder / f"epoch-1-{rank}" for rank in (0, 1)]
    wait_until(lambda: all(path.exists() for path in seen), SECONDS, what="both ranks to begin")
    assert {path.read_text() for path in seen} == {str(tasks[0].epoch)}, "one run, one epoch"
    cluster.client.resume_queue(queue)
    finish(run)


def test_a_host_the_script_gives_up_is_not_used_again(cluster: Cluster) -> None:
    add_hosts(cluster, 3, slots=2)
    run = Supervised(
        cluster,
        "judged",
        """
with Context() as ctx:
    mine, other = ctx.request_hosts(2)
    me = os.environ["HOLDFAST_HOST_NAME"]
    names = {h.hostname().result(): h for h in (mine, other)}
    other = next(h for name, h in names.items() if name != me)
    seen = [other.hostname().result()]
    for _ in range(2):
        (other,) = ctx.replace_hosts([other], "its matrix product is slow")
        seen.append(other.hostname().result())
    group = ctx.create_process_group([other], ["true"])
    tell("seen", [me, seen, group[0].returncode().result()])
    while not (ME / "go").exists():
        time.sleep(0.02)
""",
        2,
    )
    me, seen, code = run.told("seen")
    # Each once, and where nothing else is left, beside the script: there are no other machines.
    assert (set(seen[:2]), seen[2], code) == (set(cluster.hosts) - {me}, me, 0)
    job = cluster.client.job(run.id)
    assert (job.infra_charged, job.retries_charged) == (0, 0)
    finish(run)


def test_a_host_manager_that_is_killed_is_replaced_at_a_charge(cluster: Cluster) -> None:
    add_hosts(cluster, 3)
    run = Supervised(cluster, "killed", POLICY, 2)
    first = run.told("start-0")
    before = host_of(run, 1)
    task = next(t for t in cluster.client.tasks(run.id) if t.rank == 1)
    os.kill(find_first(run.id, 1), signal.SIGKILL)
    second = run.told("start-1")
    assert first["names"] != second["names"]
    after = wait_until(
        lambda: (name := host_of(run, 1)) != before and name, SECONDS, what="another host"
    )
    assert after in second["names"]
    found = next(t for t in cluster.client.tasks(run.id) if t.rank == 1)
    assert (found.attempt, found.epoch > task.epoch) == (1, True)
    assert cluster.client.job(run.id).infra_charged >= 1
    wait_until(
        lambda: not is_alive(first["pids"][first["names"].index(before)]),
        SECONDS,
        what="the old rank to be dead",
    )
    finish(run)


def test_a_host_that_is_drained_is_replaced_at_no_charge(cluster: Cluster) -> None:
    add_hosts(cluster, 3)
    run = Supervised(cluster, "drained", POLICY, 2)
    first = run.told("start-0")
    before = host_of(run, 1)
    done = cluster.cli("hosts", "drain", before, "--scale-down")
    assert done.returncode == 0, done.stderr
    assert before in first["names"]
    # A start in the moment between the end of the rank and that of its host manager may come to
    # nothing.
    starts = [run.folder / f"start-{start}" for start in range(1, 9)]
    wait_until(
        lambda: any(path.exists() and before not in path.read_text() for path in starts),
        SECONDS,
        what="a start elsewhere",
    )
    assert "SIGTERM" in run.output(
        0, "stderr"
    )  # its manager said why it went, so no silence had to be waited for
    job = cluster.client.job(run.id)
    assert (job.infra_charged, job.retries_charged, job.watchdog_charged) == (0, 0, 0)
    finish(run)


def test_the_loss_of_rank_0_ends_the_attempt(cluster: Cluster) -> None:
    add_hosts(cluster, 3)
    run = Supervised(
        cluster,
        "headless",
        """
run = json.load(open(os.environ["HOLDFAST_SUPERVISOR_RUN"]))
with Context() as ctx:
    hosts = ctx.request_hosts(2)
    group = ctx.create_process_group(hosts, ["sleep", "6000"] if ATTEMPT == 1 else ["true"])
    tell(f"attempt-{ATTEMPT}", [run["keys"]["run"], [p.pid().result() for p in group]])
    codes = [p.returncode().result() for p in group]
""",
        2,
        "--lease-ttl",
        f"{TTL:g}s",
    )
    key, pids = run.told("attempt-1")
    head = host_of(run, 0)
    kill_host(cluster.hosts[head])
    other, _ = run.told("attempt-2")
    assert other != key
    assert head not in {t.host_name for t in cluster.client.tasks(run.id)}
    run.until("succeeded")
    assert next((a.number, a.charged_to) for a in cluster.client.attempts(run.id)) == (1, "infra")
    charged = set(cluster.client.job(run.id).rank_charges)
    assert charged == {"0"}, (
        "the other manager heard nothing of the script and ended, which is no failure of its own"
    )
    wait_until(
        lambda: not any(is_alive(pid) for pid in pids),
        SECONDS,
        what="the first attempt's processes to be dead",
    )
    run.wait_nothing_left()
