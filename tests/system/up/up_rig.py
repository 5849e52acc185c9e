"""A real `holdfast up` in a folder of a test: started, spoken to, killed, and never left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import psutil

from holdfast.client import Client
from tests.waits import run_patiently, wait_exit, wait_until

SECONDS = 40.0


def wait_for(what: str, check: Callable[[], Any], seconds: float = SECONDS) -> Any:
    """Poll until `check` gives something; fail saying what did not come."""
    return wait_until(check, seconds, what=what)


def environment(import_path: Sequence[str] = ()) -> dict[str, str]:
    """Ours without Holdfast's variables. `import_path`: for a Python that is not this one."""
    kept = {
        k: v for k, v in os.environ.items() if not k.startswith("HOLDFAST_") and k != "NO_COLOR"
    }
    return kept | ({"PYTHONPATH": os.pathsep.join(import_path)} if import_path else {})


def own_import_path() -> list[str]:
    """Where Holdfast and what it needs are."""
    import click

    import holdfast

    return [str(Path(module.__path__[0]).parent) for module in (holdfast, click)]


class Rig:
    """One `holdfast up`; `say()` is what it printed so far. `cluster`: a database with all
    migrations, of which it gets a copy before its first start. `prefix`: a command that runs
    another."""

    def __init__(
        self,
        folder: Path,
        *words: str,
        cluster: Path | None = None,
        prefix: Sequence[str] = (),
        python: str = sys.executable,
    ) -> None:
        self.folder = folder
        self.data = folder / "holdfast-data"
        self._words = words or ("--port", "0")
        self._cluster = cluster
        self._prefix = prefix
        self._python = python
        self._env = environment(own_import_path() if python != sys.executable else ())
        self.process: subprocess.Popen[bytes] | None = None
        self._known: dict[int, psutil.Process] = {}

    def command(self, *words: str) -> list[str]:
        """The argv of a command."""
        return [self._python, "-P", "-m", "holdfast.cli", *words]

    def run_python(self, *words: str, env: Mapping[str, str] = MappingProxyType({})) -> str:
        """Run a user's Python in this folder; return what it printed."""
        done = run_patiently(
            [self._python, *words],
            cwd=self.folder,
            env=self._env | dict(env),
            capture_output=True,
            seconds=180,
        )
        assert done.returncode == 0, done.stderr.decode() + self.say()
        return done.stdout.decode()

    def start(self, wait: bool = True) -> Rig:
        """Start it, and wait until it is ready."""
        self._copy_cluster()
        before = self.times_ready()  # the address of one that was killed is still there
        with (self.folder / "said").open("ab") as said:
            self.process = subprocess.Popen(
                [*self._prefix, *self.command("up", "--slots", "2", "--gpus", "0", *self._words)],
                cwd=self.folder,
                env=self._env,
                stdout=said,
                stderr=said,
                start_new_session=True,
            )
        if wait:
            process = self.process
            wait_for(
                "up is ready", lambda: self.times_ready() > before or process.poll() is not None
            )
            assert self.times_ready() > before, self.say()
        return self

    def _copy_cluster(self) -> None:
        place = self.data / "postgres"
        if self._cluster is not None and not place.exists():
            for folder in (self.data, place):
                folder.mkdir(mode=0o700, exist_ok=True)
            subprocess.run(["cp", "-a", self._cluster, place / "data"], check=True)

    def client(self) -> Client:
        """A client of its controller, which waits while that is away: a command of the CLI costs a
        start of Python."""
        token = (self.data / "token").read_text().strip()
        return Client(self.url(), token, retry_seconds=SECONDS)

    def times_ready(self) -> int:
        """How often it has said that it is ready."""
        return self.say().count("ready at")

    def url(self) -> str:
        """Its address, empty unless it is ready."""
        try:
            return (self.data / "url").read_text().strip()
        except OSError:
            return ""

    def say(self) -> str:
        """Everything it printed, also before a restart."""
        said = self.folder / "said"
        return said.read_text() if said.exists() else ""

    def can_start_children(self) -> bool:
        """Whether its Python runs at all, finds what it needs, and may start itself once more."""
        code = "import subprocess, sys, holdfast, psycopg, uvloop; subprocess.run([sys.executable, '-c', ''], check=True)"
        command = [*self._prefix, self._python, "-P", "-c", code]
        try:
            done = subprocess.run(
                command, cwd=self.folder, env=self._env, capture_output=True, check=False
            )
        except OSError:
            return False
        return done.returncode == 0

    def run(self, *words: str, seconds: float = SECONDS) -> subprocess.CompletedProcess[bytes]:
        """Run a command of the CLI in its folder."""
        return run_patiently(
            [*self._prefix, *self.command(*words)],
            cwd=self.folder,
            env=self._env,
            capture_output=True,
            seconds=seconds,
        )

    def tree(self) -> dict[int, psutil.Process]:
        """Every process of it now, by pid; remembered, so that `gone` can look for them."""
        assert self.process is not None
        try:
            me = psutil.Process(self.process.pid)
            found = {p.pid: p for p in [me, *me.children(recursive=True)]}
        except psutil.NoSuchProcess:
            found = {}
        self._known.update(found)
        return found

    def part(self, name: str) -> int:
        """The pid of `controller`, `agent` (the guardian) or `postgres`."""
        for pid, process in self.tree().items():
            try:
                line = process.cmdline()
                if (
                    name == "postgres"
                    and process.name() == "postgres"
                    and process.ppid() == self.process.pid
                ):  # type: ignore[union-attr]  # it was started above
                    return pid
            except psutil.Error:
                continue
            if "holdfast.cli.up.run_part" in line and name in line:
                return pid
        return 0

    def living(self) -> list[str]:
        """Processes of it, of any time, that are still there."""
        left = []
        for process in self._known.values():
            try:
                if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                    left.append(f"{process.pid} {' '.join(process.cmdline())[:80]}")
            except psutil.Error:
                pass
        return left

    def stop(self) -> int:
        """Ctrl-C, and everything of it is gone; its exit code."""
        assert self.process is not None
        self.tree()
        self.process.send_signal(signal.SIGINT)
        code = wait_exit(self.process, SECONDS)
        wait_for(f"nothing is left: {self.living()}", lambda: not self.living(), 10)
        return code

    def kill_everything(self) -> None:
        """kill -9 of all its processes, the supervisor first."""
        for process in self.tree().values():
            try:
                process.kill()
            except psutil.Error:
                pass
        assert self.process is not None
        wait_exit(self.process, 10)
        wait_for("the killed are dead", lambda: not self.living(), 10)

    def close(self) -> None:
        """End what is left of a test that failed."""
        if self.process is None:
            return
        if self.process.poll() is None:
            self.tree()
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        for process in self._known.values():
            try:
                if process.is_running():
                    process.kill()
            except psutil.Error:
                pass
