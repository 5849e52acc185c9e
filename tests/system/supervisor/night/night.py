"""A bad night on one machine: host managers behind proxies, a scheduler that replaces what is gone,
and a thread that carries out what ranks ask for."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.system.proxy import Proxy
from tests.waits import Patience

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[3]
POLICY, RANK = HERE / "night_policy.py", HERE / "night_rank.py"
SPARES = 1
ORPHAN_GRACE_SECONDS = 12.0
CHECK_SECONDS = 8.0
LEAST_SECONDS = 10.0  # a step may take so long; a hang is found after it
FIRST_SECONDS = 120.0  # on a loaded machine torch alone takes its time
_TURN_SECONDS = 0.05


class Node:
    """A host manager and the cable to it."""

    def __init__(self, number: int, port: int, key: Path) -> None:
        self.name = f"node{number}"
        self.frozen = False
        self.proxy = Proxy(port)
        self.proxy.__enter__()
        url = f"tcp://127.0.0.1:{self.proxy.port}"
        command = [
            sys.executable,
            "-m",
            "holdfast",
            "host-manager",
            url,
            "--key-file",
            str(key),
            "--name",
            self.name,
        ]
        self.manager = subprocess.Popen(
            [*command, "--usage-interval", "0"], stderr=subprocess.DEVNULL
        )

    @property
    def healthy(self) -> bool:
        """True while it may be given work."""
        return self.manager.poll() is None and not self.frozen and not self.proxy.black_hole

    def close(self) -> None:
        """End it, however it is."""
        if self.manager.poll() is None:
            self.manager.send_signal(signal.SIGCONT)
            self.manager.kill()
        self.manager.wait()
        self.proxy.__exit__()


class Night:
    """The machine room. `trainer` is the first words of the ranks' command."""

    def __init__(
        self, folder: Path, hosts: int, trainer: Sequence[str], env: dict[str, str], *more: str
    ) -> None:
        self.folder = folder
        self.state = folder / "state"
        self.nodes: list[Node] = []
        self.done: list[str] = []  # what ranks asked for
        self.scripts = 0
        self._wanted = hosts + SPARES
        self._env = {**os.environ, **env}
        check = [sys.executable, str(RANK), "check", str(folder)]
        numbers = {"--grace": ORPHAN_GRACE_SECONDS, "--check-seconds": CHECK_SECONDS}
        numbers |= {"--least": LEAST_SECONDS, "--first": FIRST_SECONDS}
        words = [word for name, value in numbers.items() for word in (name, str(value))]
        self._command = [
            sys.executable,
            str(POLICY),
            "--hosts",
            str(hosts),
            "--state",
            str(self.state),
            *words,
        ]
        self._command += [*more, "--check", *check, "--", *trainer]
        self.script = self._start_script()

    def _start_script(self) -> subprocess.Popen[bytes]:
        self.scripts += 1
        with (self.folder / "said").open("a") as file:
            return subprocess.Popen(self._command, cwd=self.folder, stderr=file, env=self._env)

    def said(self) -> str:
        """Everything the scripts logged."""
        return (self.folder / "said").read_text()

    def run(self, seconds: float) -> int:
        """Until the script ends by itself; its exit code."""
        patience = Patience(seconds)
        while not patience.over:
            code = self.script.poll()
            if code is not None:
                return code
            self._replace_nodes()
            for order in self._read_orders()[len(self.done) :]:
                self._obey(order)
            time.sleep(_TURN_SECONDS)
        raise AssertionError(
            f"not over after {seconds:g} s; done: {self.done}; it said:\n{self.said()}"
        )

    def _replace_nodes(self) -> None:
        """What a cluster's scheduler does."""
        file = self.state / "run.json"
        key = self.state / "manager-key"
        if not file.exists() or not key.exists():
            return
        port = json.loads(file.read_bytes())["port"]
        while port and sum(node.healthy for node in self.nodes) < self._wanted:
            self.nodes.append(Node(len(self.nodes), port, key))

    def _read_orders(self) -> list[dict[str, Any]]:
        file = self.folder / "asked"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    def _obey(self, order: dict[str, Any]) -> None:
        kind = order["kind"]
        node = next(node for node in self.nodes if node.manager.pid == order["manager"])
        if kind == "manager killed":
            node.manager.kill()
        elif kind == "manager frozen":
            node.frozen = True
            node.manager.send_signal(signal.SIGSTOP)
        elif kind == "black hole":
            node.proxy.black_hole = True
        elif kind == "script killed":
            self.script.kill()
            self.script.wait()
            self.script = self._start_script()
        else:
            raise AssertionError(f"nobody knows how to do {order}")
        self.done.append(kind)

    def close(self) -> None:
        """Leave nothing behind."""
        if self.script.poll() is None:
            self.script.kill()
        self.script.wait()
        for node in self.nodes:
            node.close()


@contextmanager
def begin_night(
    folder: Path,
    hosts: int,
    trainer: Sequence[str],
    env: dict[str, str],
    faults: Sequence[tuple[str, int, int]],
    *more: str,
) -> Iterator[Night]:
    """A night with these faults: what, which rank, at which step."""
    plan = [{"kind": kind, "rank": rank, "step": step} for kind, rank, step in faults]
    (folder / "faults.json").write_text(json.dumps(plan))
    night = Night(folder, hosts, trainer, env, *more)
    try:
        yield night
    finally:
        night.close()
