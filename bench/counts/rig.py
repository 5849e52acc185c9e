"""A real controller, PostgreSQL and hosts, and what an act costs them."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import psycopg

from bench.counts.calls_of_host import count_calls, trace
from bench.counts.counts import Counts
from bench.counts.statements import (
    LOG_SETTINGS,
    OWN_NAME,
    count_names,
    count_transactions,
    read_statements,
)
from bench.counts.still import GOES_ON, LONG_SECONDS, ORDER_FILE
from bench.counts.wal import RowCounter
from bench.counts.wire import Relay
from bench.processes import list_family, read_command, read_state
from bench.scale import wait_until
from bench.system import Place, Scratch, choose_port, clean_environment, holdfast_command, is_ready
from holdfast.client import Client
from holdfast.store.embedded.postgres import EmbeddedPostgres

STILL_SECONDS = 0.35
"""How long nothing must have been said before an act counts as over: longer than the pauses in
which an agent gathers news."""
OLD_SECONDS = 60.0
"""After so long nothing that the controller remembers for a while is fresh: an act is by itself."""
SETTINGS = {
    **LOG_SETTINGS,
    "fsync": "off",  # the waits for a disk are counted, and not waited for
    "autovacuum": "off",
}
STILL = ("-m", "bench.counts.still")
SYNC_SECONDS = 29.0
"""How long a host's call waits: longer than an act takes, and not as long as anything else waits."""
STILL_CONFIG = {
    "sync_interval_seconds": SYNC_SECONDS,
    "dead_host_seconds": 3600.0,
    "lease_ttl_seconds": 3600.0,
    "gang_lease_ttl_seconds": 3600.0,
    "reservation_seconds": 3600.0,
    "health_check_seconds": "off",
    "stall_sample_interval_seconds": 60.0,
    "health_sample_interval_seconds": 600.0,
}

RHYTHM_SECONDS = 5.0
"""After which the loops of a controller whose time goes on again look each in its turn."""

APP = """
import holdfast

@holdfast.task
def double(n: int) -> int:
    return 2 * n
"""


def crowding() -> float:
    """Return how many times longer than alone things take on this machine now, at least 1."""
    words = Path("/proc/loadavg").read_text().split()
    running = int(words[3].split("/")[0])
    return max(1.0, max(float(words[0]), running) / (os.cpu_count() or 1))


class Rig:
    """One PostgreSQL, one still controller and its hosts in a scratch folder. program: what runs the
    controller's words, in place of `STILL`."""

    def __init__(self, scratch: Scratch, *, program: Sequence[str] = STILL) -> None:
        self._scratch, self._program = scratch, program
        self.folder = scratch.folder
        self._log = self.folder / "statements.json"
        self._postgres = EmbeddedPostgres(
            self.folder / "postgres", settings={**SETTINGS, "log_directory": str(self.folder)}
        )
        dsn = self._postgres.start()
        self._orders = self.folder / "orders"
        self.place = self._start_controller(dsn)
        self.client = Client(self.place.url, self.place.token)
        self._own = psycopg.connect(dsn, autocommit=True, application_name=OWN_NAME)
        self._rows = RowCounter(self._own)
        self._own.execute("listen holdfast_hints")
        self._marks = 0
        self._acts: dict[int, bool] = {}
        self._ticks = 1000
        self.settle()
        time.sleep(LONG_SECONDS)
        # The HTTP server's own, which come again and again.
        self._ticks = max(self.pass_time()[1] for _ in range(10))
        self.hosts: list[str] = []
        self.kept: dict[str, Any] = {}
        """The values that one step of an act keeps for a later step."""
        self.ends = ExitStack()
        """The things that are closed together with the rig."""
        change = {"set": STILL_CONFIG, "unset": []}
        self.place.connection.call("PATCH", "/v1/config", change)
        self.place.make_queue("nowhere")

    def close(self) -> None:
        """End PostgreSQL; the scratch folder ends the others."""
        self.ends.close()
        self.client.close()
        self._own.close()
        self.relay.close()
        self._postgres.stop()

    def _start_controller(self, dsn: str) -> Place:
        port, token_file = choose_port(), self.folder / "token"
        self.relay = Relay(port)
        relayed = f"http://127.0.0.1:{self.relay.port}"
        words = ["server", "--port", str(port), "--token-file", str(token_file)]
        words += ["--advertise", relayed]  # hosts learn where controllers are
        words += ["--dashboard-url", f"http://holdfast.localhost:{self.relay.port}"]
        environment = clean_environment(HOLDFAST_DSN=dsn, **{ORDER_FILE: str(self._orders)})
        process = self._scratch.start(
            [sys.executable, *self._program, *words],
            "controller",
            environ=environment,
            cwd=Path.cwd(),
        )
        url = f"http://127.0.0.1:{port}"
        self._metrics_url = f"{url}/metrics"

        def look() -> Place | None:
            if process.poll() is not None:
                raise RuntimeError(f"the controller ended: {self._scratch.read_log('controller')}")
            with suppress(FileNotFoundError):
                token = token_file.read_text().strip()
                if token and is_ready(url):
                    return Place(relayed, token, process, self.folder)
            return None

        return wait_until(look, "the controller is ready", 60 * crowding())

    def need_hosts(self, hosts: Mapping[str, int]) -> None:
        """Start those of these real hosts, each with its slots and a queue of its own name, that are
        not there yet, and wait until they rest."""
        for name, slots in hosts.items():
            if name not in self.hosts:
                self.hosts.append(name)
                self._add_host(name, slots)
        self.settle()

    def _add_host(self, name: str, slots: int) -> None:
        self.place.make_queue(name)
        token = self.folder / f"{name}.join"
        token.write_text(self.client.create_token("join").secret)
        words = ["agent", "--join", self.place.url, "--token-file", str(token), "--name", name]
        words += ["--slots", str(slots), "--gpus", "0", "--state", str(self.folder / name)]
        words += ["--queues", "cpu" if name == "calls" else name]
        if name == "calls":
            (self.folder / "countedcalls.py").write_text(APP)
            words += ["--app", "countedcalls", "--app-path", str(self.folder)]
        command = trace([*holdfast_command(), *words], self.folder / f"{name}.strace")
        self._scratch.start(command, name)
        wait_until(
            lambda: any(h.name == name and h.state == "active" for h in self.client.hosts()),
            f"host {name} is active",
            60 * crowding(),
        )

    # ---- counting

    def settle(self) -> None:
        """Wait until an act is over: nothing was said to PostgreSQL for `STILL_SECONDS`, the
        controller waits for no short time, and none of the processes has work."""
        size, since = -1, time.monotonic()
        give_up_at = since + 60 * crowding()
        while True:
            time.sleep(0.02)
            now = self._log.stat().st_size
            if now != size:
                size, since = now, time.monotonic()
            elif time.monotonic() - since > STILL_SECONDS and not (
                self.pass_time()[1] > self._ticks or self._is_at_work()
            ):
                return
            if time.monotonic() > give_up_at:
                raise RuntimeError(f"statements do not end: {self._tell(size - 20_000, size)}")

    def _is_at_work(self) -> bool:
        """Return whether one of the processes runs, or would if a core were free, in one of a few
        looks: then a busy machine cannot make an act seem to be over."""
        roots = [self._postgres.pid or 0, *(process.pid for process in self._scratch.processes)]
        pids = [pid for root in roots for pid in list_family(root) if self._may_act(pid)]
        for _ in range(3):
            if any(read_state(pid) in "RD" for pid in pids):
                return True
            time.sleep(0.01)
        return False

    def _may_act(self, pid: int) -> bool:
        """Return whether a process does what others ask for: all but PostgreSQL's own ones."""
        if pid not in self._acts:
            words = read_command(pid)
            self._acts[pid] = not words.startswith("postgres: ") or ": holdfast " in words
        return self._acts[pid]

    def _tell(self, begin: int, end: int) -> str:
        log = self._log.read_bytes()[max(0, begin) : end]
        return str(count_names(read_statements(log[log.find(b"\n") + 1 : log.rfind(b"\n") + 1])))

    def _mark(self) -> int:
        """Return the place in the log that all statements until now stand before."""
        self._marks += 1
        word = f"mark {self._marks} of the counts"
        begin = self._log.stat().st_size
        self._own.execute(f"select '{word}'")
        while True:
            with self._log.open("rb") as log:
                log.seek(begin)
                text = log.read()
            if (found := text.find(f"statement: select '{word}'".encode())) >= 0:
                return begin + text.find(b"\n", found) + 1
            time.sleep(0.002)

    def _take_notifies(self) -> int:
        return len(list(self._own.notifies(timeout=0)))

    def _read_wakes(self) -> int:
        """Return how often loops have looked."""
        request = Request(
            self._metrics_url, headers={"Authorization": f"Bearer {self.place.token}"}
        )
        with urlopen(request, timeout=60) as answer:
            text = answer.read().decode()
        return sum(
            int(float(n)) for n in re.findall(r"holdfast_loop_seconds_count\{.*?\} (\S+)", text)
        )

    def count(self, act: Callable[[], object]) -> Counts:
        """Do an act, wait until all that follows of it is over, and return what it cost."""
        self.pass_time(OLD_SECONDS)
        with self._counting() as counts:
            act()
            self.settle()
        return counts[0]

    def count_seconds(self, seconds: float) -> Counts:
        """Return what so many seconds cost in which nothing is asked for and time goes on as ever."""
        self.pass_time(low=GOES_ON)
        time.sleep(RHYTHM_SECONDS)
        with self._counting() as counts:
            time.sleep(seconds)
        self.pass_time()
        self.settle()
        return counts[0]

    @contextmanager
    def _counting(self) -> Iterator[list[Counts]]:
        """Count all that is done in the block, and add it to the list."""
        found_counts: list[Counts] = []
        wakes = self._read_wakes()
        self._take_notifies()
        traces = {path: path.stat().st_size for path in self.folder.glob("*.strace")}
        requests, moved = self.relay.requests, self.relay.moved_bytes
        place, begin = self._rows.read_place(), self._mark()
        yield found_counts
        end = self._mark()
        requests, moved = self.relay.requests - requests, self.relay.moved_bytes - moved
        rows = self._rows.count(place, self._rows.read_place())
        found = read_statements(_read_part(self._log, begin, end))
        begun, waits = count_transactions(found)
        columns = {
            "statements": len(found),
            "transactions": begun,
            "waits": waits,
            "rows": rows,
            "notifies": self._take_notifies(),
            "wakes": self._read_wakes() - wakes,
            "requests": requests,
            "kilobytes": moved / 1000,
        }
        if shutil.which("strace"):
            traced = b"".join(_read_part(path, size) for path, size in traces.items())
            columns |= count_calls(traced)
        found_counts.append(
            Counts({k: float(v) for k, v in columns.items()}, dict(count_names(found)))
        )

    def pass_time(
        self, seconds: float = 0.0, low: float = math.inf, high: float = math.inf
    ) -> tuple[int, int]:
        """Let time go on in the still controller: `seconds` for what it remembers, and the timers
        come due whose delay is from `low` to `high`. Return how many these were, and how many
        short ones will come due."""
        done = self._orders.with_suffix(".done")
        done.unlink(missing_ok=True)
        self._orders.write_text(f"{seconds} {low} {high}")
        os.kill(self.place.process.pid, signal.SIGUSR1)
        wait_until(done.exists, "the timers", 60 * crowding(), every_seconds=0.002)
        due, short = json.loads(done.read_text())
        return int(due), int(short)

    def read_job_state(self, job_id: str) -> str:
        """Return a job's state, by a connection that is not counted."""
        row = self._own.execute("select state from jobs where id = %s", (job_id,)).fetchone()
        return str(row[0]) if row else ""

    def until_empty(self, queue: str) -> None:
        """Wait until no job of the queue is left that has not ended."""
        query = (
            "select not exists (select from jobs where queue = %s and state in"
            " ('waiting', 'queued', 'reserved', 'running', 'draining'))"
        )

        def look() -> bool:
            row = self._own.execute(query, (queue,)).fetchone()
            return bool(row and row[0])

        wait_until(look, f"queue {queue} is empty", 120 * crowding(), every_seconds=0.1)

    def until_attempt(self, job_id: str, number: int) -> None:
        """Wait until so many attempts of a job have been begun, and the last one runs."""
        query = "select state = 'running' and attempts = %s from jobs where id = %s"

        def look() -> bool:
            row = self._own.execute(query, (number, job_id)).fetchone()
            return bool(row and row[0])

        wait_until(look, f"attempt {number} of {job_id}", 60 * crowding())

    def until(self, job_id: str, state: str) -> None:
        """Wait until the job has that state."""
        wait_until(
            lambda: self.read_job_state(job_id) == state, f"{job_id} is {state}", 60 * crowding()
        )


def _read_part(path: Path, begin: int, end: int = -1) -> bytes:
    with path.open("rb") as file:
        file.seek(begin)
        return file.read(-1 if end < 0 else end - begin)


@contextmanager
def start_rig(*, program: Sequence[str] = STILL) -> Iterator[Rig]:
    """Start a rig, and end all of it."""
    with Scratch() as scratch:
        rig = Rig(scratch, program=program)
        try:
            yield rig
        finally:
            rig.close()
