"""`holdfast supervise` with a real controller and real agents: a job like any other, whose hosts
its script holds."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import urllib.request
from pathlib import Path

import pytest

from holdfast.core.run_seed import SEED_VARIABLE
from holdfast.process import table
from tests.system.cluster import KEEPER_NAME, Cluster
from tests.system.conftest import shared
from tests.system.supervisor.holdfast.holdfast_rig import POLICIES, SECONDS, Supervised
from tests.waits import wait_until

__all__ = ["shared"]

pytestmark = pytest.mark.slow

WORK = """
import holdfast, json, os, signal, sys, time
rank = int(os.environ["RANK"])
with holdfast.section("load"):
    pass
holdfast.beat(rank + 5, 100)
holdfast.checkpoint.save(b"of rank %d" % rank, step=rank + 5)
print("work of", rank, "on", os.environ["HOLDFAST_HOST_NAME"], flush=True)
with open(sys.argv[1] + f"/rank{rank}.part", "w") as file: file.write(json.dumps(dict(os.environ)))
os.rename(file.name, sys.argv[1] + f"/rank{rank}")  # whole, once it is there
while not os.path.exists(sys.argv[1] + "/go"):
    time.sleep(0.02)
"""


@pytest.fixture(scope="module")
def cluster(shared: Cluster) -> Cluster:
    """Three hosts for everything here that breaks none."""
    for number in range(3):
        shared.add_host(f"box{number}", labels={"number": str(number)}, cpu_slots=1, wait=False)
    for number in range(3):
        shared.wait_host(f"box{number}", seconds=SECONDS)
    return shared


def test_a_supervised_run_is_a_job_like_any_other(cluster: Cluster) -> None:
    run = Supervised(
        cluster,
        "plain",
        f"""
with Context(port=55555) as ctx:
    hosts = ctx.request_hosts(ctx.given_hosts)
    tell("names", {{h.hostname().result(60): h.facts.labels for h in hosts}})
    for index, host in enumerate(sorted(hosts, key=str)):
        assert host.facts.gpus == 0
    group = ctx.create_process_group(hosts, python({WORK!r}, ME))
    tell("started", [p.pid().result(60) for p in group])
    codes = [p.returncode().result() for p in group]
print("codes", codes, sys.argv[1:])
sys.exit(0 if codes == [0, 0, 0] else 1)
""",
        3,
        "--label",
        "team=a",
        "--secret",
        "TOKEN=hush-hush-hush",
        args=("--lr", "3e-4"),
    )
    assert run.told("names") == {f"box{n}": {"number": str(n)} for n in range(3)}
    run.told("started")
    work = []
    for rank in range(3):
        wait_until((run.folder / f"rank{rank}").exists, SECONDS, what=f"the work of {rank}")
        work.append(json.loads((run.folder / f"rank{rank}").read_text()))
    tasks = cluster.client.tasks(run.id)
    placed = sorted((int(w["HOLDFAST_RANK"]), w["HOLDFAST_HOST_NAME"]) for w in work)
    assert placed == sorted((t.rank, t.host_name) for t in tasks)
    # Beats and checkpoints of what managers start reach their host's agent, under the task they
    # belong to.
    by_host = {w["HOLDFAST_HOST_NAME"]: int(w["RANK"]) + 5 for w in work}
    wait_until(
        lambda: {t.host_name: t.step for t in cluster.client.tasks(run.id)} == by_host,
        SECONDS,
        what=f"beats of {by_host}",
    )
    saved = wait_until(
        lambda: len(found := list(cluster.client.checkpoints(run.id))) == 3 and found, SECONDS
    )
    assert sorted(c.step for c in saved) == [5, 6, 7]
    # The seed is shown nowhere: not to the script's processes, by the API, in the logs or by the
    # database's own answers.
    assert not [w for w in work if SEED_VARIABLE in w]
    seeds = {s for pid in run.pids() for s in find_seeds(pid)}
    assert len(seeds) == 1
    (seed,) = seeds
    (run.folder / "go").touch()
    job = run.until("succeeded")
    assert (job.name, job.exit_code, job.spec.supervised, job.spec.labels) == (
        "policy.py",
        0,
        True,
        {"team": "a"},
    )
    run.wait_nothing_left()
    said = run.tell() + cluster.cli("show", run.id, "--json").stdout.decode()
    assert seed not in said
    assert SEED_VARIABLE not in said
    assert "codes [0, 0, 0] ['--lr', '3e-4']" in run.output(0)
    for host, step in by_host.items():
        rank = next(t.rank for t in tasks if t.host_name == host)
        assert f"work of {step - 5} on {host}" in run.output(rank)
    assert "port" in run.output(0, "stderr")  # one line of what the script's own port became
    assert [a.number for a in cluster.client.attempts(run.id)] == [1]


def find_seeds(pid: int) -> set[str]:
    """The seed, of the one process of each rank that was started with it."""
    try:
        found = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return set()
    return {
        text.decode() for text in re.findall(SEED_VARIABLE.encode() + b"=([0-9a-f]{64})", found)
    }


def test_the_scripts_code_comes_out_and_the_next_attempt_has_other_keys(cluster: Cluster) -> None:
    (cluster.folder / "again").mkdir()
    script = cluster.folder / "again" / "policy.py"
    script.write_text("""
import json, os, sys
from holdfast.supervisor import Context
run = json.load(open(os.environ["HOLDFAST_SUPERVISOR_RUN"]))
with Context() as ctx:
    hosts = ctx.request_hosts(ctx.given_hosts)
    group = ctx.create_process_group(hosts, ["true"])
    print("codes", [p.returncode().result(60) for p in group], "run", run["keys"]["run"], flush=True)
    assert json.loads(ctx.key_file.read_text())["run"] == run["keys"]["run"]
sys.exit(40 + int(os.environ["HOLDFAST_ATTEMPT"]))
""")
    done = cluster.cli(
        "supervise",
        "-f",
        str(script),
        *"--hosts 2 --name again --max-retries 1 --retry-delay 0s".split(),
        seconds=SECONDS,
    )
    assert done.returncode == 42, done.stderr
    runs = re.findall(rb"codes \[0, 0\] run ([0-9a-f]{32})", done.stdout)
    assert len(set(runs)) == 2, (done.stdout, done.stderr)
    (job,) = cluster.client.jobs(name="again")
    first, second = cluster.client.attempts(job.id)
    assert (first.cause, first.exit_code, second.exit_code) == ("nonzero_exit", 41, 42)
    assert second.retry_count == 1
    cluster.client.retry(job.id)  # its seed is there as long as it is
    third = cluster.until_attempt(job.id, 3, "ended", seconds=SECONDS)
    assert third.exit_code == 43
    assert (
        len(
            set(re.findall(r"run ([0-9a-f]{32})", cluster.output(job.id, attempt=3).decode()))
            - {r.decode() for r in runs}
        )
        == 1
    )


STUBBORN = """
import os, subprocess, sys, time
subprocess.Popen(["sh", "-c", "trap '' TERM; while :; do sleep 0.1; done"], start_new_session=True)
open(sys.argv[1], "w").close()
time.sleep(6000)
"""
HOLD = f"""
with Context() as ctx:
    hosts = ctx.request_hosts(ctx.given_hosts)
    group = ctx.create_process_group(hosts, python({STUBBORN!r}, ME / "up-{{}}".format(ATTEMPT)))
    tell("pids", [p.pid().result(60) for p in group])
    [p.returncode().result() for p in group]
"""


def test_cancel_leaves_nothing(cluster: Cluster) -> None:
    run = Supervised(cluster, "cancelled", HOLD, 3)
    pids = run.told("pids")
    wait_until((run.folder / "up-1").exists, SECONDS)
    assert len(pids) == 3
    assert set(pids) <= set(run.pids())
    cluster.client.cancel(run.id)
    run.until("cancelled")
    run.wait_nothing_left()
    assert find_leftovers(cluster, run.id) == []


def find_leftovers(cluster: Cluster, job_id: str) -> list[str]:
    """Files with keys in the job's folders on the hosts."""
    return [
        str(path)
        for host in cluster.hosts.values()
        for path in host.state.glob(f"work/{job_id}/.supervise-*")
    ]


def test_a_drain_lets_the_ranks_save_for_longer_than_a_host_managers_own_grace(
    cluster: Cluster,
) -> None:
    saver = """
import holdfast, os, sys, time
@holdfast.on_drain
def save():
    time.sleep(6.0)
    open(sys.argv[1] + "/saved-" + os.environ["RANK"], "w").close()
open(sys.argv[1] + "/ready-" + os.environ["RANK"], "w").close()
while True:
    time.sleep(0.1)
"""
    run = Supervised(
        cluster,
        "saves",
        f"""
with Context() as ctx:
    group = ctx.create_process_group(ctx.request_hosts(2), python({saver!r}, ME))
    [p.returncode().result() for p in group]
""",
        2,
        "--grace",
        "30s",
    )
    for rank in range(2):
        wait_until((run.folder / f"ready-{rank}").exists, SECONDS)
    cluster.client.cancel(run.id)
    run.until("cancelled")
    assert sorted(path.name for path in run.folder.glob("saved-*")) == ["saved-0", "saved-1"]
    run.wait_nothing_left()


def test_kill_of_rank_0_ends_all_of_it(cluster: Cluster) -> None:
    run = Supervised(cluster, "orphaned", HOLD, 3)
    run.told("pids")
    wait_until((run.folder / "up-1").exists, SECONDS)
    tasks = [pid for pid in run.pids(rank=0) if table.read_name(pid) != KEEPER_NAME]
    firsts = [pid for pid in tasks if find_seeds(pid)]
    assert len(firsts) == 1
    os.kill(firsts[0], signal.SIGKILL)
    job = run.until("failed")
    assert (job.cause, job.exit_code) in (
        ("nonzero_exit", 137),
        ("unknown", 137),
        ("oom_killed", 137),
    ), job
    run.wait_nothing_left()


@pytest.mark.parametrize(
    ("policy", "args"),
    [("restart_on_failure.py", ("--hosts", "3", "--per-host", "2", "--first-delay", "0.1")), ("spare_hosts.py", ("--hosts", "2", "--spares", "1"))],
    ids=["restart_on_failure", "spare_hosts"],
)  # fmt: skip
def test_policies_run_unchanged(cluster: Cluster, policy: str, args: tuple[str, ...]) -> None:
    folder = cluster.folder / policy
    folder.mkdir()
    work = "import os, sys; sys.exit(9 if (os.environ['RANK'], os.environ['TORCHELASTIC_RESTART_COUNT']) == ('1', '0') else 0)"
    command = (
        "supervise",
        "-f",
        str(POLICIES / policy),
        "--hosts",
        "3",
        "--cwd",
        str(folder),
        "--",
        *args,
    )
    done = cluster.cli(*command, "--", sys.executable, "-c", work, seconds=SECONDS)
    assert done.returncode == 0, done.stderr
    assert b"done after 1 restarts" in done.stderr


def test_metrics_are_where_supervise_says(cluster: Cluster) -> None:
    run = Supervised(
        cluster,
        "metrics",
        """
import urllib.request
with Context() as ctx:
    ctx.request_hosts(1)[0].hostname().result(60)
    with urllib.request.urlopen(f"http://127.0.0.1:{ctx.metrics_port}/metrics") as answer:
        tell("metrics", answer.read().decode())
""",
        1,
        "--metrics-port",
        "0",
    )
    assert 'holdfast_supervisor_hosts{state="attached"} 1' in run.told("metrics")
    run.until("succeeded")


def test_a_host_that_has_nothing_to_run_is_not_stalled(cluster: Cluster) -> None:
    """IDLE-1: after a group that beat, neither the pause of a policy nor the silent load of the
    next group is a stall."""
    run = Supervised(
        cluster,
        "pauses",
        """
with Context() as ctx:
    hosts = ctx.request_hosts(2)
    for code in ("holdfast.beat(1)", "time.sleep(4)"):
        group = ctx.create_process_group(hosts, python("import holdfast, time; " + code))
        assert [p.returncode().result(60) for p in group] == [0, 0]
        time.sleep(4)
    others = [h for h in hosts if h.hostname().result() != os.environ["HOLDFAST_HOST_NAME"]]
    group = ctx.create_process_group(others, python("import holdfast, time; holdfast.beat(1); time.sleep(600)"))
    started = group[0].pid().result(60)
    tell("lost", str(group[0].returncode().exception(60)))
""",
        2,
        "--stall-timeout",
        "2s",
        "--watchdog-cap",
        "2",
    )
    # The watch is there all the same: the last rank beat and hangs, and its host is stopped for it.
    assert "is lost" in run.told("lost")
    events = list(cluster.client.events(job_id=run.id))
    begun = next(event.at for event in events if event.kind == "job.started")
    fallen = next(event for event in events if "no beat for" in event.message)
    assert (fallen.at - begun).total_seconds() > 12, (
        run.tell()
    )  # not in the pauses, nor in the silent group
    assert cluster.client.job(run.id).watchdog_charged == 1
    run.until("succeeded")


def test_what_a_run_counts_is_among_the_controllers_metrics(cluster: Cluster) -> None:
    run = Supervised(
        cluster,
        "counted",
        """
with Context() as ctx:
    hosts = ctx.request_hosts(ctx.given_hosts)
    group = ctx.create_process_group(hosts, ["sleep", "6000"])
    for process in group:
        process.pid().result(60)
    ctx.return_hosts(hosts[1:])
    tell("running", True)
    while not (ME / "go").exists():
        time.sleep(0.05)
""",
        2,
    )
    run.told("running")

    def count(name: str) -> float:
        with urllib.request.urlopen(f"{cluster.controller.url}/metrics") as page:
            lines = page.read().decode().splitlines()
        found = f"holdfast_supervisor_{name}_total "
        return sum(float(line.split()[1]) for line in lines if line.startswith(found))

    wait_until(lambda: count("frames_in") > 3, SECONDS, what="the run's frames among the metrics")
    assert count("messages_in") >= 0
    assert count("busy_seconds") > 0
    steps = [task.step for task in cluster.client.tasks(run.id)]
    assert steps == [None, None], "counts are no beats"
    (run.folder / "go").touch()
    run.until("succeeded")
