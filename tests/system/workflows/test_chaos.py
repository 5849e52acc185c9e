"""Runs of jobs and calls while all that runs them is killed at random: each effect is there once,
and each result.

Which victim comes next, and after how long, is drawn from a seed. The small run is one of the
ordinary tests; `make soak` runs the large one.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from holdfast.client.workflows.build import Workflow, WorkflowRun
from holdfast.errors import HoldfastError
from holdfast.store.embedded.postgres import EmbeddedPostgres
from tests.system.cluster import Cluster, Controller, Host
from tests.system.workflows.steps import add, count, mark
from tests.waits import stretch, wait_until

ROOT = Path(__file__).parents[3]
WIDTH = 20
# The file is written whole under its name, so a second attempt has no second effect.
WORK = (
    "exec 9<$HOLDFAST_OUT_DIR; flock -n 9 || touch $HOLDFAST_OUT_DIR/overlap; "
    "echo $HOLDFAST_NODE > $HOLDFAST_OUT_DIR/.part.$$; "
    "mv $HOLDFAST_OUT_DIR/.part.$$ $HOLDFAST_OUT_DIR/effect"
)
VICTIMS = ("leader", "server", "agent", "executor", "database", "guardian")


@dataclass(frozen=True)
class Size:
    """jobs: nodes that are jobs. maps: chains of three nodes, with so many calls in each, of so many
    seconds. rounds: how often each kind of victim is killed. pauses: seconds between two kills, the
    shortest and the longest. patience: seconds until the run must be over."""

    jobs: int
    maps: int
    calls: int
    call_seconds: float
    rounds: int
    pauses: tuple[float, float]
    patience: float
    seed: int = 20261122

    def build(self, folder: Path) -> Workflow:
        """Chains of count → mark → add, beside jobs in layers that each follow two of the layer
        above."""
        rng = random.Random(self.seed)
        wf = Workflow("chaos", out_dir=str(folder))
        for number in range(self.jobs):
            first = (number // WIDTH - 1) * WIDTH
            above = {f"n{first + rng.randrange(WIDTH)}" for _ in range(2)} if first >= 0 else ()
            retry = {"max_retries": 50, "retry_delay": 0}
            wf.job(f"n{number}", shell=WORK, after=sorted(above), retry=retry)
        for number in range(self.maps):
            counted = wf.add(count, self.calls, name=f"count{number}")
            marked = wf.map(mark, counted.out, seconds=self.call_seconds, name=f"mark{number}")
            wf.add(add, marked.out, name=f"add{number}")
        return wf


class Reaper:
    """Kills with SIGKILL, and starts again what nothing else starts."""

    def __init__(self, cluster: Cluster, database: EmbeddedPostgres, size: Size) -> None:
        self.kills: Counter[str] = Counter()
        self.fallen = 0
        self._cluster, self._database, self._size = cluster, database, size
        self._rng = random.Random(size.seed)
        self._victims = self._draw()

    def _draw(self) -> Iterator[str]:
        for _ in range(self._size.rounds):
            yield from self._rng.sample(VICTIMS, len(VICTIMS))

    def kill_one(self) -> None:
        """Wait a while, then kill the next victim, if there is one to kill."""
        time.sleep(self._rng.uniform(*self._size.pauses))
        self._revive()
        what = next(self._victims, None)
        if what is None:
            return
        host = self._cluster.hosts[self._rng.choice(sorted(self._cluster.hosts))]
        if what in ("leader", "server"):
            self._kill_server(leader=what == "leader")
        elif what == "database":
            os.kill(self._database.pid or 0, signal.SIGKILL)
            self._database.wait(10)
            self._database.start()
        elif what == "guardian":
            host.kill_guardian()
            host.start()
        elif what == "agent":
            host.kill_agent()
        elif what == "executor":
            self._kill_executor(host)
        self.kills[what] += 1

    def _kill_server(self, *, leader: bool) -> None:
        first, *others = sorted(self._cluster.controllers, key=led_at, reverse=True)
        victim = first if leader else self._rng.choice(others)
        victim.kill()
        victim.start(wait=False)

    def _kill_executor(self, host: Host) -> None:
        found = wait_until(host.executor_pids, what="an executor")
        with suppress(ProcessLookupError):
            os.kill(self._rng.choice(sorted(found)), signal.SIGKILL)

    def _revive(self) -> None:
        """Start the servers that ended by themselves, as an init does."""
        for controller in self._cluster.controllers:
            if controller.process is not None and controller.process.poll() is not None:
                controller.start(wait=False)
                self.fallen += 1


def led_at(controller: Controller) -> str:
    """When this server began to lead, as it says; empty: never."""
    said = [line["at"] for line in controller.lines() if "this server leads" in line["message"]]
    return max(said, default="")


def has_ended(cluster: Cluster, run: WorkflowRun) -> bool:
    """True once the run is over; a server that is away cannot say so."""
    with suppress(HoldfastError):
        return bool(cluster.client.workflow(run.id).state.terminal)
    return False


def check(size: Size, cluster: Cluster, run: WorkflowRun, home: Path) -> None:
    """Each node ended once, with one piece of work; each effect is there, and each result."""
    client = cluster.client
    view = client.workflow(run.id)
    assert view.state == "succeeded", view.reason
    assert view.counts == {"succeeded": size.jobs + 3 * size.maps}
    submitted = list(client.jobs(labels={"workflow/run": run.id}))
    assert len(submitted) == size.jobs
    for number in range(size.jobs):
        assert (home / f"n{number}" / "effect").read_text() == f"n{number}\n"
    nodes = {node.name: node for node in run.nodes()}
    again = 0
    for number in range(size.maps):
        set_id = str(nodes[f"mark{number}"].ref)
        calls = client.call_set(set_id)
        assert (calls.state, calls.succeeded, calls.failed) == ("ended", size.calls, 0)
        results = list(client.each_result(set_id))
        assert [int(result.value) for result in results] == list(range(size.calls))
        again += sum(result.attempts > 1 for result in results)
        assert run.result(f"add{number}") == sum(range(size.calls))
        effects = {e.parent.name: e.read_text() for e in home.glob(f"mark{number}/*/effect")}
        assert effects == {str(n): f"{n}\n" for n in range(size.calls)}
    assert not list(home.rglob("overlap"))
    ends = Counter(e.data["set"] for e in client.events() if e.kind == "calls.succeeded")
    assert sorted(ends.values()) == [1] * 3 * size.maps
    print(f"{size.jobs + size.maps * size.calls} effects; {again} calls were tried again")


def run_chaos(size: Size, database: EmbeddedPostgres, folder: Path) -> None:
    """Run a workflow of this size through the kills, and check all that it left."""
    with ExitStack() as stack:
        cluster = Cluster(folder, database.dsn(), settings={"blobs": str(folder / "blobs")})
        stack.callback(cluster.close)
        cluster.add_controller()
        cluster.add_controller()
        for name in ("one", "two"):
            cluster.add_host(name, cpu_slots=3, apps=["tests"], app_path=str(ROOT))
        reaper = Reaper(cluster, database, size)
        began = time.monotonic()
        run = size.build(folder / "out").submit(cluster.client)
        while time.monotonic() < began + size.patience and not has_ended(cluster, run):
            reaper.kill_one()
        cluster.client.wait_workflow(run.id, stretch(120))
        seconds = time.monotonic() - began
        print(f"{seconds:.0f} s; killed: {dict(reaper.kills)}; servers that fell: {reaper.fallen}")
        assert set(reaper.kills) == set(VICTIMS)
        check(size, cluster, run, folder / "out" / run.id)


@pytest.mark.longest
@pytest.mark.heavy
@pytest.mark.slow
def test_a_small_run_through_kills_of_each_kind(
    own_database: EmbeddedPostgres, tmp_path: Path
) -> None:
    size = Size(
        jobs=24, maps=2, calls=1000, call_seconds=0.05, rounds=1, pauses=(0.5, 1.5), patience=120.0
    )
    run_chaos(size, own_database, tmp_path)


@pytest.mark.soak
def test_a_large_run_through_kills_of_each_kind(
    own_database: EmbeddedPostgres, tmp_path: Path
) -> None:
    size = Size(
        jobs=470,
        maps=10,
        calls=5000,
        call_seconds=0.02,
        rounds=12,
        pauses=(1.0, 4.0),
        patience=900.0,
    )
    run_chaos(size, own_database, tmp_path)
