"""Policy scripts under a real Holdfast: hosts with agents, `holdfast supervise`, and a folder that
scripts tell things in."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

from holdfast.process import table
from tests.system.cluster import KEEPER_NAME, Cluster, Host, signal_all
from tests.waits import wait_until

SECONDS = 90.0  # for what must happen at all, on the slowest machine
POLICIES = Path(__file__).parents[4] / "examples" / "policies"
PREAMBLE = """
import json, logging, os, signal, sys, time
from pathlib import Path
from holdfast.supervisor import Context, HostLost, as_completed
logging.basicConfig(level=logging.INFO, format="policy: %(message)s")
ME = Path.cwd()
ATTEMPT = int(os.environ["HOLDFAST_ATTEMPT"])
def tell(name, value):
    (ME / f"{name}.part").write_text(json.dumps(value))
    (ME / f"{name}.part").rename(ME / name)
def python(code, *args):
    return [sys.executable, "-c", code, *map(str, args)]
"""


class Supervised:
    """One job of `holdfast supervise`, with a folder of its own."""

    def __init__(
        self,
        cluster: Cluster,
        name: str,
        script: str,
        hosts: int,
        *options: str,
        args: tuple[str, ...] = (),
    ) -> None:
        self.cluster = cluster
        self.folder = cluster.folder / name
        self.folder.mkdir()
        (self.folder / "policy.py").write_text(PREAMBLE + script)
        words = [
            "supervise",
            "policy.py",
            "--hosts",
            str(hosts),
            "--cwd",
            str(self.folder),
            *options,
            "--",
            *args,
        ]
        done = cluster.cli(*words)
        assert done.returncode == 0, done.stderr
        self.id = done.stdout.decode().strip()

    def told(self, name: str, seconds: float = SECONDS) -> Any:
        """What the script told by that name, once it did."""
        path = self.folder / name
        try:
            wait_until(path.exists, seconds, what=f"the script to tell {name}")
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.tell()}") from None
        return json.loads(path.read_text())

    def until(self, *states: str, seconds: float = SECONDS) -> Any:
        try:
            return self.cluster.until(self.id, *states, seconds=seconds)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.tell()}") from None

    def tell(self) -> str:
        """The job's story and what its ranks said."""
        words = [self.cluster.tell(self.id)]
        for rank in range(self.cluster.client.job(self.id).tasks):
            for stream in ("stdout", "stderr"):
                text = b"".join(
                    self.cluster.client.logs(self.id, rank=rank, stream=stream)
                ).decode()[-3000:]
                words.append(f"-- rank {rank} {stream}\n{text}")
        return "\n".join(words)

    def output(self, rank: int, stream: str = "stdout", attempt: int | None = None) -> str:
        return b"".join(
            self.cluster.client.logs(self.id, rank=rank, stream=stream, attempt=attempt)
        ).decode()

    def host_of(self, rank: int) -> Host:
        """The host that a rank is on now."""
        found: str = wait_until(
            lambda: next(
                (
                    t.host_name
                    for t in self.cluster.client.tasks(self.id)
                    if t.rank == rank and t.state == "running"
                ),
                "",
            ),
            SECONDS,
            what=f"rank {rank} to run",
        )
        return self.cluster.hosts[found]

    def pids(self, rank: int | None = None) -> list[int]:
        """Every living process of this job (of one rank) on this machine, of every host."""
        prefix = f"{self.id}:" if rank is None else f"{self.id}:{rank}:"
        return [
            entry.pid
            for entry in table.read_table().values()
            if entry.alive and (table.read_marks(entry.pid)[0] or "").startswith(prefix)
        ]

    def wait_nothing_left(self) -> None:
        wait_until(lambda: not self.pids(), SECONDS, what="the job's processes to be gone")


def find_first(job_id: str, rank: int) -> int:
    """The first process of a rank: of those with its mark the one whose parent is its keeper, or the
    guardian, which has none."""
    for entry in table.read_table().values():
        mine = entry.alive and (table.read_marks(entry.pid)[0] or "").startswith(
            f"{job_id}:{rank}:"
        )
        if not mine or table.read_name(entry.pid) == KEEPER_NAME:
            continue
        if table.read_name(entry.ppid) == KEEPER_NAME or table.read_marks(entry.ppid)[0] is None:
            return entry.pid
    raise AssertionError(f"rank {rank} of {job_id} does not run")


def kill_host(host: Host) -> None:
    """kill -9 of guardian and agent at once: the machine is gone, as far as anybody can see."""
    signal_all([host.agent_pid(), host.guardian.pid], signal.SIGKILL)
    host.guardian.wait()
