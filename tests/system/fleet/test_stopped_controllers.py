"""Real controllers over real `local` machines, killed or frozen at the steps of a spawn and of an end:
exactly the right machines are there afterwards (RENT-1, RENT-6…8, LEAK-1, LEAD-3)."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from holdfast.core.fleet.instances import Machine, MachineState
from holdfast.core.fleet.leaks import ASKED_SECONDS
from holdfast.providers.local import LocalConfig, LocalProvider
from tests.system.cluster import Cluster, Controller
from tests.waits import wait_exit, wait_until

pytestmark = pytest.mark.heavy
SERVER = str(Path(__file__).with_name("stopping_server.py"))


class Fleet:
    """A cluster with one pool of local machines."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.folder = cluster.folder / "machines"

    def make_pool(self, least: int) -> None:
        self.cluster.client.put_pool(
            "p",
            {
                "provider": "local",
                "config": {"folder": str(self.folder), "grace_seconds": 20},
                "offers": [{"name": "one"}],
                "min": least,
                "max": least,
                "poll_seconds": 0.5,
                "checks": {"enabled": False},
            },
        )

    def list_alive(self) -> list[Machine]:
        """Every machine that lives, of any installation."""
        homes = self.folder.iterdir() if self.folder.exists() else ()
        config = LocalConfig(folder=str(self.folder))
        found = [asyncio.run(LocalProvider(config, home.name).list_machines()) for home in homes]
        return [m for machines in found for m in machines if m.state is not MachineState.GONE]

    def read_record(self) -> list[tuple[str, str, str]]:
        """What is on record of machines that are not gone: host, its state, its machine's."""
        query = (
            "select i.host_id, h.state, i.state from instances i join hosts h on h.id = i.host_id "
            "where i.state <> 'gone' order by 1"
        )
        with psycopg.connect(self.cluster.dsn) as connection:
            return connection.execute(query).fetchall()

    def let_time_pass(self) -> None:
        """The lead of a controller that was killed runs out, and an answer that is outstanding is
        as old as one that is given up (leaks.ASKED_SECONDS)."""
        with psycopg.connect(self.cluster.dsn, autocommit=True) as connection:
            connection.execute("update leadership set expires_at = clock_timestamp()")
            connection.execute(
                "update instances set asked_at = asked_at - interval '120 seconds' where state = 'asked'"
            )

    def restart(self, *program: str) -> None:
        """Kill the controller where it lives, and start it, or a program in its place, on its
        port."""
        self.cluster.controller.kill()
        self.let_time_pass()
        self.cluster.controller.program = program or Controller.program
        self.cluster.controller.start()

    def is_right(self, hosts: int) -> bool:
        """Whether so many hosts serve, each on a machine of its own, and nothing else is there."""
        alive = sorted(machine.intent for machine in self.list_alive())
        record = self.read_record()
        right = record == [(intent, "active", "made") for intent in alive]
        return right and len(alive) == hosts

    def wait_right(
        self, hosts: int, client_of: Controller | None = None, seconds: float = 40
    ) -> None:
        """Wait until it is right, and see that three more cycles leave it so."""
        tell = self.tell
        wait_until(lambda: self.is_right(hosts), seconds, what=f"{hosts} hosts: {tell()}")
        client = self.cluster.client_of(client_of or self.cluster.controller)
        seen = client.pool_cycles("p")[0].timestamp if client.pools() else None
        if seen is not None:
            wait_until(
                lambda: sum(c.timestamp > seen for c in client.pool_cycles("p")) >= 3,
                what="three more cycles",
            )
        assert self.is_right(hosts), tell()

    def tell(self) -> str:
        return f"{self.list_alive()} {self.read_record()} {self.cluster.controller.log()[-3000:]}"

    def close(self) -> None:
        config = LocalConfig(folder=str(self.folder), grace_seconds=20)
        for home in self.folder.iterdir() if self.folder.exists() else ():
            provider = LocalProvider(config, home.name)
            for machine in asyncio.run(provider.list_machines()):
                asyncio.run(provider.terminate(machine.ref))


@pytest.fixture
def fleet(cluster: Cluster) -> Iterator[Fleet]:
    fleet = Fleet(cluster)
    yield fleet
    for controller in cluster.controllers:
        controller.close()
    fleet.close()


def wait_stopped(controller: Controller) -> None:
    assert controller.process is not None
    assert wait_exit(controller.process, 40) == -signal.SIGKILL


@pytest.mark.parametrize(
    ("spawn_step", "end_step"),
    [
        ("after intend", "after want_end"),
        ("after ask", "before terminate"),
        ("after create", "after terminate"),
        ("after note_made", "before note_gone"),
        ("after promote_host", "after note_gone"),
    ],
)
def test_the_right_machines_are_there_after_a_kill(
    fleet: Fleet, spawn_step: str, end_step: str
) -> None:
    controller, kill = fleet.cluster.controller, str(int(signal.SIGKILL))
    fleet.restart(SERVER, kill, spawn_step)
    fleet.make_pool(least=1)
    wait_stopped(controller)
    fleet.restart()
    fleet.wait_right(hosts=1)
    fleet.restart(SERVER, kill, end_step)
    fleet.cluster.client.delete_pool("p")
    wait_stopped(controller)
    fleet.restart()
    wait_until(lambda: not fleet.cluster.client.pools(), 40, what=f"its end: {fleet.tell()}")
    fleet.wait_right(hosts=0)
    hosts = fleet.cluster.client.hosts(include_terminated=True)
    assert {host.state for host in hosts} == {"terminated"}


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("step", ["after ask", "after create"])
def test_a_standby_spawns_nothing_twice(fleet: Fleet, number: signal.Signals, step: str) -> None:
    """The leader is killed or frozen within a cycle; what it had begun and what the standby finds
    come to as many machines as were wanted."""
    cluster, seconds = fleet.cluster, 40.0
    fleet.restart(SERVER, str(int(number)), step)
    cluster.controller.wait_lead()
    standby = cluster.add_controller()
    assert not standby.messages("this server leads")
    fleet.make_pool(least=2)
    wait_until(lambda: standby.messages("this server leads"), 40, what="the standby to lead")
    if number == signal.SIGSTOP:
        process = cluster.controller.process
        assert process is not None
        wait_until(
            lambda: cluster.client_of(standby).pool_cycles("p"), what="a cycle of the standby"
        )
        process.send_signal(signal.SIGCONT)
        wait_until(
            lambda: cluster.controller.messages("does not lead any more"), what="it to notice"
        )
        # A frozen leader may not hear that its question was written; then it asks for no machine,
        # and the standby gives that question up in its time.
        seconds += ASKED_SECONDS
    else:
        wait_stopped(cluster.controller)
        cluster.controller.program = Controller.program
        cluster.controller.start()  # the machines call the server that asked for them
        fleet.let_time_pass()
    fleet.wait_right(hosts=2, client_of=standby, seconds=seconds)
    made = [path.parent.name for path in fleet.folder.glob("*/*/process")]
    assert len(made) == 2, "no machine was made beside these"
