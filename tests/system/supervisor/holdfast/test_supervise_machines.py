"""A supervised job over machines with networks of their own: advertised addresses, and a cable that
is pulled."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.store.pg_fixture import PgServer
from tests.system.cluster import TTL
from tests.system.gangs.machines import MachineCluster, machines
from tests.system.supervisor.holdfast.holdfast_rig import SECONDS, Supervised
from tests.waits import is_alive, wait_until

pytestmark = pytest.mark.slow

# The script listens where it was told to at another site; ranks reach each other at the addresses
# of their hosts' handles.
POLICY = """
MEET = '''
import os, socket, sys, time
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
where = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
if rank == 0:
    server = socket.create_server(where)
    for _ in range(world - 1):
        server.accept()[0].send(b"met")
else:
    while True:
        try:
            assert socket.create_connection(where, 5).recv(3) == b"met"
            break
        except ConnectionRefusedError:
            time.sleep(0.05)
open(sys.argv[1] + f".rank{rank}", "w").close()
while not os.path.exists(sys.argv[2]):
    time.sleep(0.05)
'''
with Context(port=55555, bind="127.0.0.1") as ctx:
    hosts = ctx.request_hosts(ctx.given_hosts)
    for start in range(9):
        names = [h.hostname().result() for h in hosts]
        addresses = [h.facts.address for h in hosts]
        env = {"MASTER_ADDR": addresses[0], "MASTER_PORT": str(23000 + start)}
        group = ctx.create_process_group(hosts, python(MEET, ME / f"start-{start}", ME / "go"), env=env)
        try:
            pids = [p.pid().result() for p in group]
            while not all((ME / f"start-{start}.rank{p.rank}").exists() for p in group):
                time.sleep(0.02)
            tell(f"start-{start}", {"names": names, "addresses": addresses, "pids": pids, "dialled": ctx.address})
            codes = [f.result() for f in as_completed([p.returncode() for p in group])]
            break
        except HostLost as error:
            print("lost:", error, flush=True)
        for ended in group.end():
            ended.exception()
        group.forget()
        lost = [h for h in hosts if h.connection_lost()]
        hosts = [h for h in hosts if not h.connection_lost()] + ctx.replace_hosts(lost)
sys.exit(0 if codes == [0] * len(hosts) else 1)
"""


@pytest.fixture
def spread(
    tmp_path: Path, pg_server: PgServer, monkeypatch: pytest.MonkeyPatch
) -> Iterator[MachineCluster]:
    """Three machines; all but the last advertise the address of the ranks' own network."""
    monkeypatch.setenv("NO_PROXY", "*")  # the controller is not on loopback here
    name = pg_server.create_database(pg_server.migrated)
    try:
        with machines(tmp_path, pg_server.dsn_of(name), 3, slots=1) as cluster:
            yield cluster
    finally:
        pg_server.drop_database(name)


def test_a_machine_whose_cable_is_pulled_is_replaced(spread: MachineCluster) -> None:
    run = Supervised(spread, "cut", POLICY, 2, "--lease-ttl", f"{TTL:g}s")
    first = run.told("start-0")
    places = {
        task.rank: spread.machines[task.host_name or ""] for task in spread.client.tasks(run.id)
    }
    advertised = {machine.name: machine.address for machine in spread.machines.values()}
    assert dict(zip(first["names"], first["addresses"], strict=True)).items() <= advertised.items()
    assert first["dialled"].startswith(f"tcp://{places[0].address}:")
    cut = places[1]
    (spare,) = set(spread.machines) - {place.name for place in places.values()}
    there = first["pids"][first["names"].index(cut.name)]
    spread.network.plug(cut.number, "down")
    # Behind the cut the host manager hears nothing either, and ends what it runs by itself.
    wait_until(lambda: not is_alive(there), SECONDS, what="the ranks behind the cut to end")
    second = run.told("start-1", 120.0)
    assert set(second["names"]) == {places[0].name, spare}
    assert f"lost: host {cut.name} is lost" in run.output(0)
    spread.network.plug(cut.number, "up")
    wait_until(
        lambda: not spread.hosts[cut.name].task_pids(run.id),
        SECONDS,
        what="the manager behind the cut to be gone",
    )
    (run.folder / "go").touch()
    run.until("succeeded")
    assert [attempt.number for attempt in spread.client.attempts(run.id)] == [1]
    run.wait_nothing_left()
