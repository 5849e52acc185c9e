"""Starts the real thing in a scratch folder, and takes all of it away again."""

from __future__ import annotations

import functools
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

from bench.http import Connection
from bench.processes import end_process, list_family, read_command, wait_gone
from bench.scale import wait_until

ROOT = Path(__file__).resolve().parent.parent
QUEUE = "bench"
_TAIL_BYTES = 2000
ROLES = ("controller", "up", "guardian", "agent", "postgres", "other")
# A part of a command line, and what the process is. The guardian is the process that the agent's
# part becomes.
_MARKS = (
    ("holdfast.cli.up.run_part controller", "controller"),
    ("holdfast.cli.up.run_part agent", "guardian"),
    ("-m holdfast.agent ", "agent"),
    ("postgres", "postgres"),
)


def holdfast_command() -> list[str]:
    """How the CLI is called: the installed script, because that is what a user waits for."""
    script = Path(sys.executable).parent / "holdfast"
    return [str(script)] if script.exists() else [sys.executable, "-m", "holdfast.cli"]


def clean_environment(**more: str) -> dict[str, str]:
    """The environment without anything of another Holdfast in it."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
    if kept.pop("PYTHONDONTWRITEBYTECODE", ""):
        # An installed program has its byte code; without it, a start would be the compiler's time
        # and not the program's.
        kept["PYTHONPYCACHEPREFIX"] = _byte_code_folder().name
    return {**kept, **more}


@functools.cache
def _byte_code_folder() -> tempfile.TemporaryDirectory[str]:
    """A folder for byte code, deleted when this process ends."""
    return tempfile.TemporaryDirectory(prefix="holdfast-bench-bytecode-")


def copy_cluster(folder: Path) -> None:
    """Put a copy of the stopped database that $BENCH_CLUSTER names into `folder`, which needs none
    made then: for runs that look at no figure."""
    made = os.environ.get("BENCH_CLUSTER")
    if made:
        folder.mkdir(parents=True)
        subprocess.run(["cp", "-a", made, folder / "data"], check=True)


class Scratch:
    """A folder, and the processes started in it. Leaving ends them, last first, and deletes the
    folder."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="holdfast-bench-"))
        self._started: list[tuple[subprocess.Popen[bytes], signal.Signals]] = []

    def __enter__(self) -> Scratch:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            while self._started:
                self.end(self._started[-1][0])
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def processes(self) -> list[subprocess.Popen[bytes]]:
        """The processes that were started here and not ended yet."""
        return [process for process, _ in self._started]

    def start(
        self,
        command: Sequence[str],
        name: str,
        *,
        environ: Mapping[str, str] | None = None,
        end_signal: signal.Signals = signal.SIGTERM,
        cwd: Path | None = None,
    ) -> subprocess.Popen[bytes]:
        """Start a process in a session of its own, its output in `<name>.log`."""
        with (self.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=cwd or self.folder,
                env=dict(environ) if environ is not None else clean_environment(),
                start_new_session=True,
            )
        self._started.append((process, end_signal))
        return process

    def end(self, process: subprocess.Popen[bytes], patience_seconds: float = 30.0) -> list[int]:
        """End one process started here, and see its family go. Returns pids that outlived it; they
        are killed."""
        found = [pair for pair in self._started if pair[0] is process]
        if not found:
            return []
        self._started.remove(found[0])
        family = list_family(process.pid)[1:]
        end_process(process, found[0][1], patience_seconds)
        left = wait_gone(family, 5)
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass  # gone meanwhile
        return left

    def read_log(self, name: str) -> str:
        """The end of what a process of that name wrote."""
        try:
            return (
                (self.folder / f"{name}.log").read_bytes()[-_TAIL_BYTES:].decode(errors="replace")
            )
        except FileNotFoundError:
            return ""


class Place:
    """A running controller: its address, the admin's token, and the process that was started."""

    def __init__(
        self, url: str, token: str, process: subprocess.Popen[bytes], folder: Path
    ) -> None:
        self.url, self.token, self.process, self.folder = url, token, process, folder
        self.connection = Connection(url, token)

    def environ(self) -> dict[str, str]:
        """What the CLI needs to find it."""
        return clean_environment(HOLDFAST_URL=self.url, HOLDFAST_TOKEN=self.token)

    def unfinished(self, queue: str) -> int:
        """Jobs of the queue that are not over."""
        record = self.connection.call("GET", f"/v1/queues/{queue}")
        return int(record["waiting"]) + int(record["queued"]) + int(record["running"])

    def submit_many(self, specs: Sequence[Mapping[str, object]], batch: int = 1000) -> None:
        """Submit in batches, each all or none."""
        for first in range(0, len(specs), batch):
            self.connection.call(
                "POST", "/v1/jobs/batch", {"jobs": list(specs[first : first + batch])}
            )

    def make_queue(self, name: str = QUEUE) -> None:
        """Make a lane without limits."""
        self.connection.call("PUT", f"/v1/queues/{name}", {"set": {}, "unset": []})

    def pause(self, name: str = QUEUE) -> None:
        """Let nothing more start from the lane."""
        self.connection.call("POST", f"/v1/queues/{name}/pause", {})

    def resume(self, name: str = QUEUE) -> None:
        """Let the lane start jobs again."""
        self.connection.call("POST", f"/v1/queues/{name}/resume", {})


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except FileNotFoundError:
        return ""


def is_ready(url: str) -> bool:
    """Whether the controller and its database answer."""
    try:
        with Connection(url, timeout_seconds=5) as connection:
            return connection.request("GET", "/readyz")[0] == 200
    except OSError:
        return False


def await_place(
    scratch: Scratch,
    process: subprocess.Popen[bytes],
    data: Path,
    name: str,
    timeout_seconds: float = 60.0,
) -> Place:
    """Wait until the controller that keeps its files in `data` answers."""

    def check() -> Place | None:
        if process.poll() is not None:
            raise RuntimeError(
                f"{name} ended with status {process.returncode}:\n{scratch.read_log(name)}"
            )
        url, token = _read(data / "url"), _read(data / "token")
        return Place(url, token, process, data) if url and token and is_ready(url) else None

    try:
        return wait_until(check, f"{name} is ready", timeout_seconds, every_seconds=0.005)
    except TimeoutError as error:
        raise TimeoutError(f"{error}\n{scratch.read_log(name)}") from None


def has_active_host(place: Place) -> bool:
    """Whether a host takes work."""
    items = place.connection.call("GET", "/v1/hosts")["items"]
    return any(host["state"] == "active" for host in items)


def start_up(
    scratch: Scratch,
    slots: int = 2,
    name: str = "up",
    environ: Mapping[str, str] | None = None,
    more: Sequence[str] = (),
) -> Place:
    """`holdfast up` in a folder of its own, ready to run jobs. more: of its options."""
    data = scratch.folder / name / "holdfast-data"
    copy_cluster(data / "postgres")
    data.parent.mkdir(exist_ok=True)
    command = [*holdfast_command(), "up", "--port", "0", "--slots", str(slots), "--data", str(data)]
    command += more
    process = scratch.start(
        command, name, environ=environ, end_signal=signal.SIGINT, cwd=data.parent
    )
    place = await_place(scratch, process, data, name)
    wait_until(lambda: has_active_host(place), "a host is active", 30, every_seconds=0.005)
    return place


def name_role(command: str, is_root: bool) -> str:
    """What a process of `holdfast up` is, by its command line."""
    if is_root:
        return "up"
    return next((role for mark, role in _MARKS if mark in command), "other")


def list_role(place: Place, role: str) -> list[int]:
    """The processes of a running `holdfast up` that have this role."""
    root = place.process.pid
    return [pid for pid in list_family(root) if name_role(read_command(pid), pid == root) == role]


class Database:
    """An embedded PostgreSQL with its settings as they are for users, for the limit and the
    controller alike."""

    def __init__(self, scratch: Scratch) -> None:
        from holdfast.store.embedded.postgres import EmbeddedPostgres

        copy_cluster(scratch.folder / "postgres")
        self._server = EmbeddedPostgres(scratch.folder / "postgres")
        self._server.start()

    @property
    def pid(self) -> int:
        """The postmaster."""
        return self._server.pid or 0

    def make(self, name: str) -> str:
        """Create a database; returns how to connect, over loopback as a user's own server would
        be."""
        import psycopg

        with psycopg.connect(self._server.dsn(), autocommit=True) as connection:
            # That of a copied cluster has all tables.
            template = connection.info.dbname if "BENCH_CLUSTER" in os.environ else "template1"
            connection.execute(f'create database "{name}" template {template}'.encode())
        return self._server.dsn(name)

    def __enter__(self) -> Database:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop()


def choose_port() -> int:
    """A port of loopback that was free a moment ago."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def start_server(scratch: Scratch, dsn: str, name: str = "server") -> Place:
    """`holdfast server` on a database of the bench's own."""
    token_file = scratch.folder / f"{name}-token"
    port = choose_port()
    url = f"http://127.0.0.1:{port}"
    command = [*holdfast_command(), "server", "--port", str(port), "--token-file", str(token_file)]
    process = scratch.start(command, name, environ=clean_environment(HOLDFAST_DSN=dsn))

    def check() -> Place | None:
        if process.poll() is not None:
            raise RuntimeError(
                f"{name} ended with status {process.returncode}:\n{scratch.read_log(name)}"
            )
        token = _read(token_file)
        return Place(url, token, process, scratch.folder) if token and is_ready(url) else None

    return wait_until(check, f"{name} is ready", 60)
