"""A whole Holdfast of real processes over the real wire: controllers, hosts, and proxies that
misbehave between them.

Every process is started from here, signalled by its pid, and gone at `close`; what is left then
fails the test.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from holdfast.agent.config import MARK_FILE
from holdfast.agent.guardian.guardian_folder import (
    LOCK_FILE,
    SOCKET_RECORD,
    GuardianFolder,
    read_group_homes,
)
from holdfast.client import Client
from holdfast.core.records import AttemptRecord, JobRecord
from holdfast.process import table
from holdfast.process.files import read_bound
from holdfast.process.sweep import sweep
from tests.system.forks import READ_AT_START, find_origin
from tests.system.proxy import Proxy
from tests.waits import crowding, free_port, is_alive, run_patiently, wait_exit, wait_until

# Seconds instead of minutes. Everything else is as it comes.
FAST = {
    "sync_interval_seconds": 0.5,
    "grace_seconds": 1.0,
    "stall_sample_interval_seconds": 0.2,
    "health_sample_interval_seconds": 0.2,
    "forensics_seconds": 6.0,
}
TTL = 15.0  # the shortest lease there is
MARGIN = 1.0
KEEPER_NAME = "task-keeper"


def clean_environment(**more: str) -> dict[str, str]:
    """Ours without Holdfast's variables: a test run under Holdfast must not talk to that one."""
    return {k: v for k, v in os.environ.items() if not k.startswith("HOLDFAST_")} | more


def read_words(pid: int) -> list[bytes]:
    """The command of a process; none where it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return []


def signal_all(pids: list[int], number: int) -> None:
    """Signal each that is still there."""
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass


class Controller:
    """One `holdfast server` process. Its port stays the same over restarts, so that agents find it
    again. program: the arguments of Python that run the command line; without, it is forked
    (tests/system/forks.py)."""

    program: tuple[str, ...] = ()

    def __init__(self, folder: Path, name: str, dsn: str, environment: dict[str, str]) -> None:
        self.log_path = folder / f"{name}.log"
        self.token_file = folder / "token"
        self.dsn = dsn
        self._environment = environment
        self.port = free_port()
        self._begins = 0  # where the log of its last start begins
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self, *, wait: bool = True) -> Controller:
        """Start it and wait until it serves."""
        self._begins = self.log_path.stat().st_size if self.log_path.exists() else 0
        words = ["server", "--port", str(self.port), "--log-format", "json"]
        words += ["--token-file", str(self.token_file)]
        environment = clean_environment(HOLDFAST_DSN=self.dsn, **self._environment)
        with self.log_path.open("ab") as log:
            if self.program:
                self.process = subprocess.Popen(
                    [sys.executable, *self.program, *words], stdout=log, stderr=log, env=environment
                )
            else:
                self.process = find_origin("cli").start(words, environment, log.fileno())
        if wait:
            self.port = wait_until(
                self._find_port, 30, what=f"the controller to serve: {self.log()}"
            )
        return self

    def wait_lead(self) -> None:
        """Wait until it leads, which it may only after it serves."""
        wait_until(self._leads, 30, what=f"the controller to lead: {self.log()}")

    def _leads(self) -> bool:
        return any("this server leads" in line["message"] for line in self.lines(self._begins))

    def _find_port(self) -> int:
        assert self.process is not None
        assert self.process.poll() is None, f"the controller ended by itself: {self.log()}"
        for line in self.lines(self._begins):
            if line["message"].startswith("serving http"):
                return urlsplit(line["message"].split()[1].rstrip(";")).port or 0
        return 0

    def lines(self, begins: int = 0) -> list[dict[str, Any]]:
        """Its log, from a byte on."""
        found = []
        for line in self.log_path.read_bytes()[begins:].splitlines():
            try:
                found.append(json.loads(line))
            except ValueError:
                continue  # a line that is still being written
        return found

    def messages(self, word: str) -> list[str]:
        """The log's messages with `word` in them."""
        return [line["message"] for line in self.lines() if word in line["message"]]

    def log(self) -> str:
        return self.log_path.read_text(errors="replace")[-6000:] if self.log_path.exists() else ""

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Signal it and wait for its end."""
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(number)
        wait_exit(self.process, 15)

    def close(self) -> None:
        """End it, also when it is stopped."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.terminate()
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


def _start_really(
    words: list[str], environment: Mapping[str, str], output: int
) -> subprocess.Popen[bytes]:
    """Start a host by an exec, because its environment has what an interpreter reads then."""
    program = "import sys; from holdfast.agent.config import read_config, run_host; "
    program += "sys.exit(run_host(read_config(sys.argv[1])))"
    return subprocess.Popen(
        [sys.executable, "-P", "-c", program, *words],
        env=dict(environment),
        stdout=output,
        stderr=output,
        start_new_session=True,
    )


class Host:
    """One host: a guardian and its agent, with a folder and an identity of their own."""

    def __init__(
        self,
        folder: Path,
        name: str,
        options: dict[str, Any],
        proxy: Proxy | None = None,
        *,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self._environment = environment or {}
        self.proxy = proxy
        self.state = folder / name
        self.log_path = folder / f"{name}.log"
        self._options_path = folder / f"{name}.json"
        self._options_path.write_text(json.dumps(options))
        self.guardians: list[subprocess.Popen[bytes]] = []

    def start(self) -> Host:
        """Start a guardian on its folder; an earlier one must be gone."""
        with self.log_path.open("ab") as log:
            environment = {**clean_environment(), **self._environment}
            words = [str(self._options_path)]
            if any(name.startswith(READ_AT_START) for name in self._environment):
                self.guardians.append(_start_really(words, environment, log.fileno()))
            else:
                self.guardians.append(find_origin("host").start(words, environment, log.fileno()))
        return self

    @property
    def guardian(self) -> subprocess.Popen[bytes]:
        return self.guardians[-1]

    @property
    def mark(self) -> str:
        """What the tasks of this host carry in their environment."""
        return read_bound(self.state / MARK_FILE)[0]

    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    def agent_pid(self) -> int:
        """The agent's pid, 0 while there is none."""
        for pid in table.read_children(self.guardian.pid) or []:
            if b"holdfast.agent" in read_words(pid) and is_alive(pid):
                return pid
        return 0

    def task_pids(self, job_id: str) -> list[int]:
        """Living processes of one job's tasks, but not their keepers."""
        pids = self.marked_pids(job_id)
        return [pid for pid in pids if table.read_name(pid) != KEEPER_NAME]

    def marked_pids(self, job_id: str = "") -> list[int]:
        """Living processes of all tasks and of the agent, or of one job's tasks."""
        try:
            mark = self.mark
        except OSError:
            return []
        found = []
        for entry in table.read_table().values():
            task, host = table.read_marks(entry.pid) if entry.alive else (None, None)
            if host == mark and task is not None and task.startswith(job_id):
                found.append(entry.pid)
        return found

    def executor_pids(self) -> list[int]:
        """Living processes that run calls."""
        return [
            pid for pid in self.marked_pids() if b"holdfast.functions.executor" in read_words(pid)
        ]

    def kill_guardian(self) -> None:
        """kill -9 of the guardian alone."""
        self.guardian.kill()
        self.guardian.wait()

    def kill_agent(self) -> int:
        """kill -9 of the agent; its pid."""
        pid = int(wait_until(self.agent_pid, what="an agent"))
        os.kill(pid, signal.SIGKILL)
        return pid

    def freeze(self, number: int = signal.SIGSTOP) -> list[int]:
        """SIGSTOP (or another signal to) guardian and agent, the tasks go on."""
        pids = [self.guardian.pid, int(wait_until(self.agent_pid, what="an agent"))]
        signal_all(pids, number)
        return pids

    def thaw(self) -> None:
        self.freeze(signal.SIGCONT)

    def begin_close(self) -> None:
        """Tell it to shut down; every process of it may be stopped or dead."""
        for guardian in self.guardians:
            if guardian.poll() is None:
                signal_all(
                    [guardian.pid, *(table.read_children(guardian.pid) or [])], signal.SIGCONT
                )
                guardian.terminate()

    def finish_close(self, seconds: float) -> list[str]:
        """Wait for its end and return what an orderly shutdown left: processes, folders outside of
        the test's."""
        orderly = bool(self.guardians) and self.guardian.poll() is None
        for patience in (seconds, 5.0):
            try:
                if self.guardians:
                    self.guardian.wait(patience)
                break
            except subprocess.TimeoutExpired:
                self.guardian.terminate()
        else:
            self.guardian.kill()
            self.guardian.wait()
        if not self.state.is_dir() or not (self.state / MARK_FILE).exists():
            return []
        left = (
            [f"process {pid} of a task or of the agent" for pid in self.marked_pids()]
            if orderly
            else []
        )
        left += [f"folder {p}" for p in self._outside() if p.exists()] if orderly else []
        if self.guardian.returncode not in (0, -signal.SIGKILL) and orderly:
            left.append(f"the guardian's exit status {self.guardian.returncode}")
        homes = read_group_homes(self.state)
        survivors = sweep(self.mark, group_homes=homes)
        for home in homes:
            if os.path.isdir(home):
                os.rmdir(home)
        if (self.state / LOCK_FILE).exists():
            GuardianFolder(
                self.state
            ).close()  # removes what a killed guardian left outside its folder
        return [
            f"{self.name}: {what}" for what in [*left, *(f"survivor {pid}" for pid in survivors)]
        ]

    def _outside(self) -> list[Path]:
        homes = [Path(home) for home in read_group_homes(self.state)]
        try:
            return [*homes, Path((self.state / SOCKET_RECORD).read_text())]
        except OSError:
            return homes


class Cluster:
    """Controllers over one database, hosts, and a client."""

    def __init__(self, folder: Path, dsn: str, *, settings: dict[str, Any] | None = None) -> None:
        self.folder = folder
        self.dsn = dsn
        self._environment = {
            f"HOLDFAST_{k.upper()}": str(v) for k, v in {**FAST, **(settings or {})}.items()
        }
        self.controllers: list[Controller] = []
        self.hosts: dict[str, Host] = {}
        self.proxies: list[Proxy] = []
        self._clients: dict[int, Client] = {}

    @property
    def controller(self) -> Controller:
        return self.controllers[0]

    def add_controller(self, *, wait: bool = True) -> Controller:
        name = f"controller{len(self.controllers)}"
        self.controllers.append(Controller(self.folder, name, self.dsn, self._environment))
        return self.controllers[-1].start(wait=wait)

    def client_of(self, controller: Controller) -> Client:
        if controller.port not in self._clients:
            token = controller.token_file.read_text().strip()
            self._clients[controller.port] = Client(controller.url, token, retry_seconds=30.0)
        return self._clients[controller.port]

    @property
    def client(self) -> Client:
        return self.client_of(self.controller)

    def add_host(
        self,
        name: str,
        *,
        proxied: bool = False,
        wait: bool = True,
        environment: Mapping[str, str] | None = None,
        **options: Any,
    ) -> Host:
        """Start a host that joins with a token of its own. `environment`: more of it. `options`:
        fields of `AgentConfig`."""
        proxy = None
        if proxied:
            proxy = Proxy(self.controller.port).__enter__()
            self.proxies.append(proxy)
        token = self.folder / f"{name}.join"
        token.write_text(self.client.create_token("join").secret)
        token.chmod(0o600)
        port = proxy.port if proxy else self.controller.port
        options = {
            "url": f"http://127.0.0.1:{port}",
            "state_dir": str(self.folder / name),
            "name": name,
            "cpu_slots": 2,
            "gpus": 0,
            "memory_bytes": 4 << 30,
            "join_token_file": str(token),
            "learn_controllers": proxy is None,  # a line that is cut stays cut
            **options,
        }
        host = self.hosts[name] = Host(
            self.folder, name, options, proxy, environment=environment
        ).start()
        if wait:
            self.wait_host(name)
        return host

    def wait_host(self, name: str, state: str = "active", seconds: float = 20.0) -> None:
        """Wait until the host has that state."""
        wait_until(
            lambda: [h for h in self.client.hosts() if h.name == name and h.state == state],
            seconds,
            what=f"host {name} to be {state}: {self.hosts[name].log()[-3000:]}",
        )

    # ---- jobs

    def submit(self, *argv: str, **fields: Any) -> str:
        """Submit argv (or fields of a spec) and return the job's id."""
        return (
            self.client.submit(argv=list(argv), **fields).id
            if argv
            else self.client.submit(**fields).id
        )

    def until(self, job_id: str, *states: str, seconds: float = 20.0) -> JobRecord:
        """Wait until the job has one of these states."""

        def look() -> JobRecord | None:
            job = self.client.job(job_id)
            assert not job.state.terminal or job.state in states, (
                f"{job.state}: {job.reason}\n{self.tell(job_id)}"
            )
            return job if job.state in states else None

        try:
            found: JobRecord = wait_until(
                look, seconds, what=f"job {job_id} to be {' or '.join(states)}"
            )
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.tell(job_id)}") from None
        return found

    def until_attempt(
        self, job_id: str, number: int, state: str = "running", seconds: float = 20.0
    ) -> AttemptRecord:
        """Wait until the job's attempt `number` is in that state."""

        def look() -> AttemptRecord | None:
            return next(
                (
                    a
                    for a in self.client.attempts(job_id)
                    if a.number == number and a.state == state
                ),
                None,
            )

        try:
            found: AttemptRecord = wait_until(
                look, seconds, what=f"attempt {number} of {job_id} to be {state}"
            )
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.tell(job_id)}") from None
        return found

    def tell(self, job_id: str) -> str:
        """A job's story, for the message of a failed test."""
        try:
            lines = [
                f"{e.at:%H:%M:%S.%f} {e.kind} {e.message}"
                for e in self.client.events(job_id=job_id)
            ]
        except Exception as error:
            lines = [f"no events: {error}"]
        return "\n".join(
            [*lines, "-- controller", self.controller.log()[-2500:], *self._tell_hosts()]
        )

    def _tell_hosts(self) -> Iterator[str]:
        for host in self.hosts.values():
            yield f"-- {host.name}\n{host.log()[-2500:]}"

    def snapshot(self, job_id: str) -> tuple[Any, ...]:
        """Everything the API says of a job, to be compared with what it says later. Beats and
        heartbeats apart."""
        client = self.client
        return client.job(job_id), client.attempts(job_id), list(client.events(job_id=job_id))

    def output(self, job_id: str, stream: str = "stdout", attempt: int | None = None) -> bytes:
        return b"".join(self.client.logs(job_id, stream=stream, attempt=attempt))

    def host_of(self, job_id: str) -> Host:
        """The host that the job's current attempt is on."""
        tasks = self.client.tasks(job_id)
        return self.hosts[tasks[0].host_name or ""]

    def set_queue(self, name: str, **settings: Any) -> str:
        """Make or change a queue; its name."""
        self.client.put_queue(name, settings)
        return name

    # ---- the CLI

    def cli(
        self, *words: str, seconds: float = 60.0, **more: Any
    ) -> subprocess.CompletedProcess[bytes]:
        """Run a command of the CLI against the first controller."""
        token = self.controller.token_file.read_text().strip()
        return run_patiently(
            [sys.executable, "-P", "-m", "holdfast.cli", *words],
            cwd=self.folder,
            capture_output=True,
            env=clean_environment(HOLDFAST_URL=self.controller.url, HOLDFAST_TOKEN=token),
            seconds=seconds,
            **more,
        )

    # ---- the end

    def close(self) -> None:
        """End everything. Raises AssertionError when something is left that should not be."""
        for proxy in self.proxies:
            proxy.restore()
        for host in self.hosts.values():
            host.begin_close()
        give_up_at = time.monotonic() + 12.0 * crowding()
        left = [
            w
            for host in self.hosts.values()
            for w in host.finish_close(max(0.1, give_up_at - time.monotonic()))
        ]
        for client in self._clients.values():
            client.close()
        for controller in self.controllers:
            controller.close()
        for proxy in self.proxies:
            proxy.__exit__(None, None, None)
        assert not left, f"left behind: {left}"
