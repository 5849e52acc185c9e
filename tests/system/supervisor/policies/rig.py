"""Runs an example policy as a user does: the script as it ships, in a process of its own, managers
and ranks under it."""

from __future__ import annotations

import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.waits import run_patiently, wait_until

POLICIES = Path(__file__).resolve().parents[4] / "examples" / "policies"
PATIENCE = 100.0
STEP_PATIENCE = 40.0


def run_policy(name: str, folder: Path, *words: str) -> tuple[int, str]:
    """Its exit code, and what it said."""
    command = [sys.executable, str(POLICIES / name), *words]
    done = run_patiently(command, cwd=folder, capture_output=True, text=True, seconds=PATIENCE)
    return done.returncode, done.stderr


class RunningPolicy:
    """A policy, and the host managers that the test starts for it one by one, as a scheduler
    would."""

    def __init__(self, name: str, folder: Path, *words: str) -> None:
        self._said = folder / "said"
        command = [sys.executable, str(POLICIES / name), *words]
        with self._said.open("w") as file:
            self.process = subprocess.Popen(command, cwd=folder, stderr=file)
        self.managers: dict[str, subprocess.Popen[bytes]] = {}

    def said(self) -> str:
        return self._said.read_text()

    def start_manager(self, name: str) -> None:
        mark = "start a host manager on each machine: "
        wait_until(
            lambda: any(
                mark in line
                for line in self.said().splitlines(keepends=True)
                if line.endswith("\n")
            ),
            STEP_PATIENCE,
        )
        command = shlex.split(
            next(line for line in self.said().splitlines() if mark in line).split(mark)[1]
        )
        command = [
            f"tcp://127.0.0.1:{word.rpartition(':')[2]}" if word.startswith("tcp:") else word
            for word in command
        ]
        self.managers[name] = subprocess.Popen(
            [*command, "--name", name], stderr=subprocess.DEVNULL
        )

    def kill_manager(self, name: str) -> None:
        self.managers[name].kill()
        self.managers[name].wait()

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        for manager in self.managers.values():
            try:
                manager.wait(20)
            except subprocess.TimeoutExpired:
                manager.kill()
                manager.wait()


@contextmanager
def running(name: str, folder: Path, *words: str) -> Iterator[RunningPolicy]:
    """One that is ended with its managers, also when the test fails."""
    policy = RunningPolicy(name, folder, *words)
    try:
        yield policy
    finally:
        policy.close()
