"""The policy for Slurm without Slurm: managers are started by hand, from the words that it leaves
for them."""

from __future__ import annotations

import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system.supervisor.policies.rig import STEP_PATIENCE
from tests.waits import wait_until

POLICY = Path(__file__).resolve().parents[4] / "examples" / "slurm" / "policy.py"
PATIENCE = 100.0  # a fence takes some 30 s of them

# Says over and over that it runs, and ends when it is let go: file name and lines are
# `attempt-rank-pid`, and times.
WORKER = """
import os, sys, time
folder, attempt = sys.argv[1], os.environ["TORCHELASTIC_RESTART_COUNT"]
with open(f"{folder}/ran-{attempt}-{os.environ['RANK']}-{os.getpid()}", "a", buffering=1) as file:
    while not os.path.exists(f"{folder}/finish"):
        file.write(f"{time.monotonic()}\\n")
        time.sleep(0.02)
"""


class Run:
    """Scripts and managers of one run folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.run = folder / "run"
        self.started: list[subprocess.Popen[bytes]] = []

    def start_policy(self, *words: str) -> subprocess.Popen[bytes]:
        command = [
            sys.executable,
            str(POLICY),
            "--run",
            str(self.run),
            *words,
            "--",
            sys.executable,
            "-c",
            WORKER,
        ]
        with (self.folder / "said").open("ab") as said:
            self.started.append(
                subprocess.Popen([*command, str(self.folder)], cwd=self.folder, stderr=said)
            )
        return self.started[-1]

    def start_manager(self, name: str) -> subprocess.Popen[bytes]:
        words = self.run / "manager-command"
        wait_until(lambda: words.exists() and words.read_text().endswith("\n"), STEP_PATIENCE)
        command = [
            f"tcp://127.0.0.1:{word.rpartition(':')[2]}" if word.startswith("tcp:") else word
            for word in shlex.split(words.read_text())
        ]
        self.started.append(subprocess.Popen([*command, "--name", name], stderr=subprocess.DEVNULL))
        return self.started[-1]

    def said(self) -> str:
        return (self.folder / "said").read_text()

    def spans(self, attempt: int) -> dict[str, tuple[float, float]]:
        """Rank by rank, when an attempt ran: its first and last word."""
        found = {}
        for file in self.folder.glob(f"ran-{attempt}-*"):
            times = [float(line) for line in file.read_text().splitlines() if "." in line]
            if times:
                found[file.name.split("-")[2]] = (times[0], times[-1])
        return found

    def close(self) -> None:
        for process in self.started:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
            process.wait()


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    made = Run(tmp_path)
    yield made
    made.close()


@pytest.mark.longest
@pytest.mark.slow
def test_a_fence_holds_through_the_death_of_the_script(run: Run) -> None:
    """A frozen manager's ranks run on until its warden ends them; the script that waits for that is
    killed meanwhile."""
    words = ("--hosts", "2", "--fence", "--orphan-grace", "10", "--grace", "1")
    script = run.start_policy(*words)
    managers = {name: run.start_manager(name) for name in ("n0", "n1")}
    wait_until(lambda: run.spans(0).keys() == {"0", "1"}, STEP_PATIENCE)
    run.start_manager("spare")
    managers["n1"].send_signal(signal.SIGSTOP)
    wait_until(lambda: "its processes may still run on n1" in run.said(), STEP_PATIENCE)
    script.kill()
    script.wait()
    script = run.start_policy(*words)
    wait_until(lambda: run.spans(1).keys() == {"0", "1"}, PATIENCE, what=run.said())
    assert run.said().count("its processes may still run on n1") == 2, run.said()
    last = max(end for _, end in run.spans(0).values())
    first = min(begin for begin, _ in run.spans(1).values())
    assert last < first, "two attempts ran at once"
    (run.folder / "finish").touch()
    assert script.wait(STEP_PATIENCE) == 0, run.said()


@pytest.mark.slow
def test_two_scripts_on_one_run_are_one_too_many(run: Run) -> None:
    first = run.start_policy("--hosts", "1", "--orphan-grace", "1")
    run.start_manager("n0")
    wait_until(lambda: run.spans(0).keys() == {"0"}, STEP_PATIENCE)
    words = (run.run / "manager-command").read_text()
    second = run.start_policy("--hosts", "1", "--orphan-grace", "1")
    assert second.wait(STEP_PATIENCE) not in (0, -9)
    assert "another script" in run.said()
    assert (run.run / "manager-command").read_text() == words, (
        "the one that runs is cut off from its managers"
    )
    assert not run.spans(1)
    (run.folder / "finish").touch()
    assert first.wait(STEP_PATIENCE) == 0, run.said()
