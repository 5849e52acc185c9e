"""The shipped Slurm scripts as a user submits them, against nodes and daemons that die."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.process.table import read_entry
from tests.system.slurm.cluster import PATIENCE, Cluster, wait_for
from tests.waits import is_alive, wait_exit

# Says where it is, and stays until the file `finish` is there. On the node named in `bad` it fails;
# on TERM it saves.
WORKER = """
import os, signal, sys, time
folder = sys.argv[1]
def say(word):
    line = [word, os.environ["RANK"], os.environ["SLURMD_NODENAME"], os.environ["TORCHELASTIC_RESTART_COUNT"], os.getpid()]
    with open(f"{folder}/said", "a") as file:
        file.write(" ".join(map(str, line)) + "\\n")
def save(*_):
    say("saved")
    sys.exit(3)
signal.signal(signal.SIGTERM, save)
assert os.environ["MASTER_ADDR"] and os.environ["WORLD_SIZE"] == "2"
say("began")
bad = os.path.exists(f"{folder}/bad") and open(f"{folder}/bad").read() == os.environ["SLURMD_NODENAME"]
while not bad and not os.path.exists(f"{folder}/finish"):
    time.sleep(0.05)
sys.exit(9 if bad else 0)
"""

pytestmark = pytest.mark.slow


class Rank:
    """What a rank wrote."""

    def __init__(self, line: str) -> None:
        self.word, rank, self.node, restart, pid = line.split()
        self.rank, self.restart, self.pid = int(rank), int(restart), int(pid)


class Run:
    """A folder with the scripts in it, what the ranks say, and the policy's and Slurm's words."""

    def __init__(self, folder: Path, slurm: Cluster) -> None:
        self.folder = folder
        self._slurm = slurm
        self.command = [
            *"--hosts 2 --grace 5 --".split(),
            sys.executable,
            "-c",
            WORKER,
            str(folder),
        ]

    def submit(self, nodes: int, *more: str) -> str:
        """The run as one allocation."""
        words = [f"--nodes={nodes}", "supervised.sbatch", *more, *self.command]
        return self._slurm.submit(self.folder, *words, PYTHON=sys.executable)

    def said(self, word: str, restart: int) -> list[Rank]:
        """By rank."""
        path = self.folder / "said"
        ranks = [Rank(line) for line in path.read_text().splitlines()] if path.exists() else []
        return sorted(
            (r for r in ranks if (r.word, r.restart) == (word, restart)), key=lambda rank: rank.rank
        )

    def wait_began(self, restart: int) -> list[Rank]:
        """Both ranks of an attempt, or of a later one: a rank that was killed with its host may be
        told of before the host is lost, and the attempt in between then has one rank.
        """
        attempts = range(restart, restart + 5)
        found = wait_for(
            lambda: [r for r in attempts if len(self.said("began", r)) == 2],
            f"attempt {restart}",
            tell=self.tell,
        )
        return self.said("began", found[0])

    def read_output(self) -> str:
        """Everything that policy and jobs printed."""
        return "\n".join(path.read_text() for path in sorted(self.folder.glob("*.txt")))

    def tell(self) -> str:
        """All there is to know when something did not happen."""
        return "\n".join(
            [self.read_output(), self._slurm.read_logs(), *self._slurm.describe_processes()]
        )

    def finish(self) -> None:
        """Let the ranks end."""
        (self.folder / "finish").touch()

    def count_starts(self) -> int:
        return (self.folder / "said").read_text().count("began")


@pytest.fixture
def run(examples: Path, slurm: Cluster) -> Run:
    return Run(examples, slurm)


def find_manager(rank: int) -> int:
    """The host manager above a rank: its child, the warden, is the rank's parent."""
    entry = read_entry(rank)
    warden = read_entry(entry.ppid) if entry is not None else None
    assert warden is not None
    return warden.ppid


def kill_policy(slurm: Cluster, run: Run) -> None:
    """kill -9 of the script, and of nothing else."""
    found = [
        int(line.split()[0])
        for line in slurm.describe_processes()
        if " policy.py --run" in line and "sh -c" not in line and "slurmstepd" not in line
    ]
    assert len(found) == 1, slurm.describe_processes()
    os.kill(found[0], signal.SIGKILL)
    wait_for(lambda: not is_alive(found[0]), "the end of the policy")


def test_a_killed_policy_goes_on_with_its_ranks_once_it_is_mended(slurm: Cluster, run: Run) -> None:
    job = run.submit(2)
    ranks = run.wait_began(0)
    policy = run.folder / "policy.py"
    words = policy.read_text()
    policy.write_text("raise RuntimeError('a mistake')")
    kill_policy(slurm, run)
    wait_for(
        lambda: "the policy ended with 1, the run did not" in run.read_output(),
        "the mistake",
        tell=run.tell,
    )
    policy.write_text(words)
    wait_for(
        lambda: "the ranks of the script before this one are waited for" in run.read_output(),
        "the next policy",
    )
    assert all(is_alive(rank.pid) for rank in ranks)
    run.finish()
    assert slurm.wait_job(job, "COMPLETED")["ExitCode"] == "0:0", run.read_output()
    assert run.count_starts() == 2, run.read_output()


def test_a_node_that_freezes_is_given_up_and_told_to_end_when_it_wakes(
    slurm: Cluster, run: Run
) -> None:
    """The spare takes its place; what wakes up again ends, and then waits as the next spare."""
    job = run.submit(3)
    ranks = run.wait_began(0)
    first_node = slurm.describe_job(job)["BatchHost"]
    frozen = next(rank for rank in ranks if rank.node != first_node)
    stopped = slurm.find_processes(frozen.node)
    assert frozen.pid in [entry.pid for entry in stopped]
    for entry in stopped:
        os.kill(entry.pid, signal.SIGSTOP)
    after = run.wait_began(1)
    assert frozen.node not in {rank.node for rank in after}
    for entry in stopped:
        with contextlib.suppress(ProcessLookupError):  # the first that woke has ended it
            os.kill(entry.pid, signal.SIGCONT)
    wait_for(
        lambda: f"the manager on {frozen.node} ended with 73" in run.read_output(),
        "the end of the frozen manager",
    )
    assert not is_alive(frozen.pid), "nothing runs twice"
    assert all(is_alive(rank.pid) for rank in after)
    run.finish()
    assert slurm.wait_job(job, "COMPLETED")["ExitCode"] == "0:0", run.read_output()
    assert run.count_starts() == 4, run.read_output()


def test_a_bad_node_is_not_used_again_in_its_allocation(slurm: Cluster, run: Run) -> None:
    job = run.submit(3)
    ranks = run.wait_began(0)
    bad = ranks[0].node
    (run.folder / "bad").write_text(bad)
    os.kill(ranks[1].pid, signal.SIGKILL)  # one failure is not its own: attempts 1 and 2 are
    after = run.wait_began(3)
    assert bad not in {rank.node for rank in after}
    wait_for(
        lambda: f"the manager on {bad} ended with 72" in run.read_output(),
        "the end of the bad node's manager",
    )
    killed = next(rank for rank in after if rank.node != slurm.describe_job(job)["BatchHost"])
    os.kill(
        find_manager(killed.pid), signal.SIGKILL
    )  # it is started again later than one on the bad node would be
    assert bad not in {rank.node for rank in run.wait_began(4)}
    assert run.read_output().count(f'"host":"{killed.node}"') == 2
    run.finish()
    assert slurm.wait_job(job, "COMPLETED")["ExitCode"] == "0:0", run.read_output()
    assert run.read_output().count(f'"host":"{bad}"') == 1, "one manager was ever started there"


def test_before_the_time_limit_ranks_save_and_the_job_is_queued_again(
    slurm: Cluster, run: Run
) -> None:
    job = run.submit(2)
    run.wait_began(0)
    slurm.ask(
        "scancel", "--batch", "--signal=USR1", job
    )  # what --signal=B:USR1@120 does, at another time
    wait_for(lambda: len(run.said("saved", 0)) == 2, "both ranks to save", tell=run.tell)
    wait_for(lambda: slurm.describe_job(job).get("Restarts") == "1", "the job to be queued again")
    (run.folder / "finish").touch()
    assert slurm.wait_job(job, "COMPLETED")["ExitCode"] == "0:0", run.read_output()
    assert run.count_starts() == 4
    assert {path.name for path in run.folder.glob(f"supervised-{job}.*") if path.is_dir()} == {
        f"supervised-{job}.0",
        f"supervised-{job}.1",
    }


def test_scancel_ends_policy_managers_and_ranks(slurm: Cluster, run: Run) -> None:
    job = run.submit(2)
    ranks = run.wait_began(0)
    slurm.ask("scancel", job)
    wait_for(lambda: not slurm.find_processes(), "the end of everything", tell=run.tell)
    assert not any(is_alive(rank.pid) for rank in ranks)
    assert {rank.rank for rank in run.said("saved", 0)} == {0, 1}
    assert "policy: told to end" in run.read_output()
    slurm.wait_job(job, "CANCELLED")
    assert run.count_starts() == 2


def test_the_first_node_dies_and_the_job_is_queued_again(slurm: Cluster, run: Run) -> None:
    """With --no-kill Slurm would leave an allocation without a batch script."""
    job = run.submit(2, "--orphan-grace", "3")
    ranks = run.wait_began(0)
    slurm.kill_node(slurm.describe_job(job)["BatchHost"])
    wait_for(
        lambda: slurm.describe_job(job).get("Restarts") == "1",
        "the job to be queued again",
        tell=run.tell,
    )
    wait_for(
        lambda: not any(is_alive(rank.pid) for rank in ranks),
        "the end of the first attempt",
        tell=run.tell,
    )
    wait_for(lambda: len(run.said("began", 0)) == 4, "the second", tell=run.tell)
    run.finish()
    assert slurm.wait_job(job, "COMPLETED")["ExitCode"] == "0:0", run.tell()


class Policy:
    """The policy script on a machine of its own, and its hosts one job each."""

    def __init__(self, slurm: Cluster, run: Run) -> None:
        self.run, self.folder = run, run.folder / "run"
        with (run.folder / "policy.txt").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "policy.py", "--run", str(self.folder), *run.command],
                cwd=run.folder,
                env=slurm.env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self.array = slurm.submit(run.folder, "--array=1-2", "hosts.sbatch", str(self.folder))

    def finish(self) -> None:
        """It is done, and well."""
        self.run.finish()
        assert wait_exit(self.process, PATIENCE) == 0, self.run.read_output()

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture
def policy(slurm: Cluster, run: Run) -> Iterator[Policy]:
    made = Policy(slurm, run)
    yield made
    made.close()


def find_jobs(slurm: Cluster) -> dict[str, dict[str, str]]:
    """Every job of hosts.sbatch that Slurm remembers."""
    lines = slurm.ask("scontrol", "--oneliner", "show", "job").splitlines()
    jobs = [dict(word.split("=", 1) for word in line.split() if "=" in word) for line in lines]
    return {job["JobId"]: job for job in jobs if job.get("JobName") == "supervised-host"}


def test_a_killed_slurmd_disturbs_nothing_until_it_returns(
    slurm: Cluster, run: Run, policy: Policy
) -> None:
    """Its slurmstepd, manager and ranks live on, so no rank is lost. Slurm queues the job again:
    that is a spare. When the slurmd returns it ends what it finds, and the spare takes over.
    """
    ranks = run.wait_began(0)
    hit = ranks[1]
    slurm.kill_slurmd(hit.node)
    restarted = wait_for(
        lambda: [
            j
            for j in find_jobs(slurm).values()
            if j.get("Restarts") == "1" and j["JobState"] == "RUNNING"
        ],
        "the job to run again elsewhere",
    )
    assert len(restarted) == 1
    spare = restarted[0]["NodeList"]
    wait_for(lambda: run.read_output().count(f'"host":"{spare}"') == 1, "the manager there")
    assert all(is_alive(rank.pid) for rank in ranks)
    assert run.count_starts() == 2, run.read_output()
    slurm.start_slurmd(hit.node)
    after = run.wait_began(1)
    assert {rank.node for rank in after} == {ranks[0].node, spare}
    assert not any(is_alive(rank.pid) for rank in ranks), "nothing runs twice"
    policy.finish()
    wait_for(lambda: not slurm.ask("squeue", "--noheader"), "the end of the jobs")


def test_a_bad_hosts_job_fails_with_72_and_another_takes_its_place(
    slurm: Cluster, run: Run, policy: Policy
) -> None:
    ranks = run.wait_began(0)
    bad = ranks[0].node
    (run.folder / "bad").write_text(bad)
    os.kill(ranks[1].pid, signal.SIGKILL)  # one failure is not its own: attempts 1 and 2 are
    after = run.wait_began(3)
    assert bad not in {rank.node for rank in after}
    failed = [job for job in find_jobs(slurm).values() if job["ExitCode"] == "72:0"]
    assert [(job["JobState"], job["NodeList"]) for job in failed] == [("FAILED", bad)]
    (heir,) = [job for job in find_jobs(slurm).values() if job.get("ExcNodeList") == bad]
    assert heir["ArrayTaskId"] == failed[0]["ArrayTaskId"]
    policy.finish()
    wait_for(lambda: not slurm.ask("squeue", "--noheader"), "the end of the jobs")
    assert slurm.describe_job(heir["JobId"])["ExitCode"] == "0:0"
    late = slurm.submit(run.folder, "--array=3", "hosts.sbatch", str(policy.folder))
    assert slurm.wait_job(late, "COMPLETED")["ExitCode"] == "0:0", (
        "the run is over: no node is held for it"
    )
