"""A Slurm of its own on this machine: munged, slurmctld and four slurmds under node names of their
own, talking over loopback.

Nothing of it is the machine's: key, sockets, spool and pid files are in one folder. What it runs is
known by the configuration's path, which daemons, slurmstepds and tasks have in their environment.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import random
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from holdfast.process.table import ProcessEntry, read_environ, read_table
from tests.waits import Patience, run_patiently

T = TypeVar("T")
TOOLS = ("setpriv", "munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol")
NODES = ("n1", "n2", "n3", "n4")
PATIENCE = 120.0  # for anything that must happen on a loaded machine
_PATH = os.environ["PATH"] + ":/usr/sbin:/sbin"
# SlurmdTimeout: a dead slurmd is noticed in half a minute; it takes Slurm no less, however low this
# is. cred_expire is also how long a job that is queued again has to wait.
_CONFIGURATION = """
ClusterName=holdfast
SlurmctldHost={box}(127.0.0.1)
SlurmctldPort={port}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock,cred_expire=5
{binding}
SlurmUser={user}
SlurmdUser={user}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
MpiDefault=none
ReturnToService=2
SlurmdTimeout=5
SlurmdParameters=config_overrides
DefMemPerCPU=100
SchedulerParameters=batch_sched_delay=1,sched_interval=2,bf_interval=2
PartitionName=main Nodes=n[1-4] Default=YES MaxTime=INFINITE State=UP
"""
_NODE = "NodeName={name} NodeHostname={box} NodeAddr=127.0.0.1 Port={port} CPUs=2 RealMemory=4000 State=UNKNOWN\n"


def find_missing() -> list[str]:
    """Programs that are not installed."""
    return [tool for tool in TOOLS if shutil.which(tool, path=_PATH) is None]


def wait_for(
    look: Callable[[], T], what: str, patience: float = PATIENCE, tell: Callable[[], object] = str
) -> T:
    """The first true answer of `look`; what `tell` knows when there is none."""
    limit = Patience(patience)
    while not (found := look()):
        assert not limit.over, f"waited {patience:g} s for {what}\n{tell()}"
        time.sleep(0.1)
    return found


def _find_ports(count: int) -> list[int]:
    """Free ports outside of the kernel's range for clients, because a slurmd that was killed must
    find its port free again."""
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    found: list[int] = []
    while len(found) < count:
        port = random.randrange(lowest // 2, lowest)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            found += [port] if port not in found else []
    return found


def _find_binding(box: str) -> str:
    """The setting that has Slurm listen on loopback alone. It then takes what the machine's name
    resolves to, so where that is another address, as in most containers, it must listen everywhere;
    a client without the munge key is refused.
    """
    with contextlib.suppress(OSError):
        if socket.gethostbyname(box) == "127.0.0.1":
            return "CommunicationParameters=NoInAddrAny,NoCtldInAddrAny"
    return ""


class Cluster:
    """The daemons and the commands."""

    def __init__(self, folder: Path, *, settings: str = "") -> None:
        """`settings`: more lines for slurm.conf, before those of the nodes."""
        self.folder = folder
        self._settings = settings
        self.configuration = folder / "slurm.conf"
        self.env = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("SLURM", "SBATCH"))
        }
        self.env |= {"SLURM_CONF": str(self.configuration), "PATH": _PATH}
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}

    # ---- the daemons

    def start(self) -> None:
        """Start everything and wait until all nodes are idle."""
        self.folder.chmod(0o755)  # munge wants its socket's folder to be open
        (self.folder / "state").mkdir()
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        box = socket.gethostname().split(".")[0]
        port, *ports = _find_ports(1 + len(NODES))
        user = pwd.getpwuid(os.getuid()).pw_name
        fields = {"box": box, "binding": _find_binding(box), "folder": self.folder, "user": user}
        text = _CONFIGURATION.format(port=port, **fields)
        nodes = [
            _NODE.format(name=name, box=box, port=own)
            for name, own in zip(NODES, ports, strict=True)
        ]
        head, _, partition = text.rstrip().rpartition("\n")
        lines = [head.lstrip(), "\n", self._settings, *nodes, partition, "\n"]
        self.configuration.write_text("".join(lines))
        words = [
            "--foreground",
            "--force",
            f"--key-file={key}",
            f"--socket={self.folder}/munge.sock",
        ]
        words += [f"--pid-file={self.folder}/munged.pid", f"--seed-file={self.folder}/munged.seed"]
        self._start("munged", "munged", *words)
        wait_for((self.folder / "munge.sock").is_socket, "munged")
        self._start("slurmctld", "slurmctld", "-D")
        # A slurmd that finds no slurmctld tries again only after a minute or more.
        wait_for(lambda: "UP" in self.ask("scontrol", "ping", check=False), "slurmctld")
        for node in NODES:
            self.start_slurmd(node)
        wait_for(lambda: self.states() == dict.fromkeys(NODES, "idle"), "idle nodes")

    def _start(self, name: str, *words: str) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            # A session of its own, so that a Ctrl-C in the terminal does not end the cluster before
            # its jobs; and no longer than us.
            self._daemons[name] = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", *words],
                env=self.env,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def start_slurmd(self, node: str) -> None:
        """Start the daemon of a node."""
        self._start(node, "slurmd", "-D", "-N", node)

    def kill_slurmd(self, node: str) -> None:
        """kill -9."""
        self._daemons[node].kill()
        self._daemons[node].wait()

    def restore(self) -> None:
        """Have no job, a daemon on every node, and every node idle again."""
        for entry in self.find_processes():
            os.kill(entry.pid, signal.SIGCONT)
        for node in NODES:
            if self._daemons[node].poll() is not None:
                self.start_slurmd(node)
        jobs = self.ask("squeue", "--noheader", "--array", "--format=%A").split()
        if jobs:
            self.ask("scancel", *jobs, check=False)  # some may have ended by now
        wait_for(lambda: not self.ask("squeue", "--noheader"), "the end of every job")
        wait_for(lambda: self.states() == dict.fromkeys(NODES, "idle"), "idle nodes")

    def end(self) -> None:
        """End every daemon and every process that is left."""
        for process in reversed(self._daemons.values()):
            process.terminate()
        for process in self._daemons.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(10)
            process.kill()
            process.wait()
        for entry in self.find_processes():
            os.kill(entry.pid, signal.SIGKILL)

    # ---- the commands

    def ask(self, *words: str, check: bool = True) -> str:
        """What a command of Slurm's printed."""
        done = run_patiently(words, env=self.env, capture_output=True, text=True, seconds=60)
        assert not check or done.returncode == 0, f"{words}: {done.stderr}\n{self.read_logs()}"
        return done.stdout

    def submit(self, folder: Path, *words: str, **env: str) -> str:
        """`sbatch` in a folder; the number of the job."""
        words = ("sbatch", "--parsable", *words)
        done = subprocess.run(
            words, env={**self.env, **env}, cwd=folder, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{words}: {done.stderr}\n{self.read_logs()}"
        return done.stdout.strip()

    def start_srun(self, log: Path, *words: str, **env: str) -> subprocess.Popen[bytes]:
        """`srun` in the background, its output in `log`."""
        with log.open("ab") as output:
            return subprocess.Popen(
                ["srun", *words],
                env={**self.env, **env},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )

    def states(self) -> dict[str, str]:
        """Of each node, as `sinfo` names it."""
        lines = self.ask(
            "sinfo", "--noheader", "--Node", "--format=%N %T", check=False
        ).splitlines()
        return {line.split()[0]: line.split()[1] for line in lines}

    def describe_job(self, job: str) -> dict[str, str]:
        """The fields of `scontrol show job`."""
        words = self.ask("scontrol", "--oneliner", "show", "job", job, check=False).split()
        return dict(word.split("=", 1) for word in words if "=" in word)

    def wait_job(self, job: str, state: str) -> dict[str, str]:
        """Wait until a job is in a state."""
        wait_for(
            lambda: self.describe_job(job).get("JobState") == state, f"job {job} to be {state}"
        )
        return self.describe_job(job)

    def read_logs(self) -> str:
        """The end of every daemon's log."""
        return "\n".join(
            f"{log.name}: {log.read_text()[-1500:]}" for log in sorted(self.folder.glob("*.log"))
        )

    # ---- what runs

    def describe_processes(self) -> list[str]:
        """The command of everything that `find_processes` finds."""
        commands = []
        for entry in self.find_processes():
            with contextlib.suppress(OSError):  # ended meanwhile
                words = (
                    Path(f"/proc/{entry.pid}/cmdline")
                    .read_bytes()
                    .replace(b"\0", b" ")
                    .decode(errors="replace")
                )
                commands.append(f"{entry.pid} {words}")
        return commands

    def find_processes(self, node: str | None = None) -> list[ProcessEntry]:
        """Everything of this cluster but its daemons: slurmstepds, srun, tasks; on one node where
        one is named."""
        daemons = {process.pid for process in self._daemons.values()}
        ours, there = [], []
        for entry in read_table().values():
            if (
                entry.alive and not {entry.pid, entry.ppid} & daemons
            ):  # slurmctld has a child of its own
                words = (read_environ(entry.pid) or b"").split(b"\0")
                if b"SLURM_CONF=" + os.fsencode(self.configuration) in words:
                    ours.append(entry)
                    there += (
                        [entry] if node and b"SLURMD_NODENAME=" + node.encode() in words else []
                    )
        if node is None:
            return ours
        parents = {entry.ppid for entry in there}  # a slurmstepd names no node, but its tasks do
        return [entry for entry in ours if entry.pid in parents and entry not in there] + there

    def kill_node(self, node: str) -> None:
        """What a power cut does: kill -9 of its slurmd and of everything that runs there, in an
        order in which no process reports another's end: slurmstepds, then children before their
        parents (a child of srun ends the step when srun dies).
        """
        self.kill_slurmd(node)
        there = self.find_processes(node)
        parent = {entry.pid: entry.ppid for entry in there}

        def find_depth(pid: int) -> int:
            return 1 + find_depth(parent[pid]) if pid in parent else 0

        steps = [entry.pid for entry in there if entry.ppid not in parent]
        rest = sorted((pid for pid in parent if pid not in steps), key=find_depth, reverse=True)
        for pid in [*steps, *rest]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
