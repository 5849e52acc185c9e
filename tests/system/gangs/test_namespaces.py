"""Gangs over several machines: each host has a network of its own, and reaches the others by a wire
that can be cut."""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.store.pg_fixture import PgServer
from tests.system.cluster import TTL
from tests.system.gangs.journal import Line, check_one_at_a_time, find_pid, read_journal
from tests.system.gangs.machines import CONTROL, DATA, Machine, MachineCluster, machines
from tests.system.gangs.rig import SECONDS, Gang
from tests.system.gangs.trainer import CODE, load_example
from tests.waits import is_alive, wait_until

pytestmark = pytest.mark.slow

RANKS, STEPS, EVERY = 3, 60, 5
_ESTABLISHED = "01"


@pytest.fixture
def spread(
    tmp_path: Path, pg_server: PgServer, monkeypatch: pytest.MonkeyPatch
) -> Iterator[MachineCluster]:
    """Three machines with room for two ranks of two gangs each, so that two of them are enough for
    all."""
    monkeypatch.setenv("NO_PROXY", "*")  # the controller is not on loopback here
    name = pg_server.create_database(pg_server.migrated)
    try:
        with machines(tmp_path, pg_server.dsn_of(name), RANKS, slots=4) as cluster:
            yield cluster
    finally:
        pg_server.drop_database(name)


class Training:
    """The sockets training of three ranks, one a machine, and its journal."""

    def __init__(self, cluster: MachineCluster, *, keep_files: bool, step_seconds: float) -> None:
        self.cluster = cluster
        self.journal = cluster.folder / "training.journal"
        state = str(cluster.folder / "state") if keep_files else "-"
        self.id = cluster.submit(
            sys.executable,
            CODE,
            str(self.journal),
            state,
            str(STEPS),
            str(EVERY),
            str(step_seconds),
            tasks=RANKS,
            env={"OPENBLAS_NUM_THREADS": "1"},
            retry={"max_retries": 1, "retry_delay": 0.0},
            placement="spread",
            lease_ttl=TTL,
        )

    def lines(self) -> list[Line]:
        return read_journal(self.journal, self.id)

    def wait_step(self, step: int) -> None:
        """Wait until every rank of the first attempt has made that step."""
        try:
            wait_until(
                lambda: (
                    {n.rank for n in self.lines() if n.word == f"step-{step}"} == set(range(RANKS))
                ),
                SECONDS,
                what=f"step {step} of all ranks",
            )
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.cluster.tell(self.id)}") from None

    def pid(self, rank: int) -> int:
        return find_pid(self.journal, self.id, rank, 1)

    def finish(self) -> str:
        """See it reach its result, the one it reaches alone, and no two attempts alive at once.
        Returns what it printed."""
        self.cluster.until(self.id, "succeeded", seconds=SECONDS)
        expected = hashlib.sha256(load_example().train_alone(STEPS, RANKS).tobytes()).hexdigest()
        output = self.cluster.output(self.id).decode()
        assert output.count(f"digest {expected}") == RANKS, output
        check_one_at_a_time(self.journal, self.id)
        return output


def machines_of(cluster: MachineCluster, job: str) -> dict[int, Machine]:
    """Where each rank is."""
    return {task.rank: cluster.machines[task.host_name or ""] for task in cluster.client.tasks(job)}


def read_environment(pid: int) -> dict[str, str]:
    """What a process was started with."""
    words = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
    return dict(word.split("=", 1) for word in words if "=" in word)


def find_peers(pid: int, port: int) -> set[tuple[str, str]]:
    """Own and other address of every connection that was made to `port`, in the network of this
    process."""
    found = set()
    for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]:
        mine, theirs, state = line.split()[1:4]
        if state == _ESTABLISHED and int(mine.split(":")[1], 16) == port:
            ours, others = (
                socket.inet_ntoa(bytes.fromhex(end.split(":")[0])[::-1]) for end in (mine, theirs)
            )
            found.add((ours, others))
    return found


def test_a_training_over_three_machines(spread: MachineCluster) -> None:
    """Rank 0 is reached by the address its machine advertises, or where it says none, by the one
    that leads to the controller."""
    training = Training(spread, keep_files=False, step_seconds=0.1)
    training.wait_step(1)
    pids = [training.pid(rank) for rank in range(RANKS)]
    networks = {os.readlink(f"/proc/{pid}/ns/net") for pid in pids}
    seen = [read_environment(pid) for pid in pids]
    master, port = seen[0]["MASTER_ADDR"], int(seen[0]["MASTER_PORT"])
    connections = find_peers(pids[0], port)
    where = machines_of(spread, training.id)

    assert len({machine.name for machine in where.values()}) == RANKS
    assert len(networks) == RANKS, "ranks share a network: nothing was tested"
    assert os.readlink("/proc/thread-self/ns/net") not in networks
    addresses = {rank: machine.address for rank, machine in where.items()}
    assert sorted(address.rpartition(".")[0] for address in addresses.values()) == [
        CONTROL,
        DATA,
        DATA,
    ]
    for rank, environment in enumerate(seen):
        peers = {
            peer["rank"]: peer["address"] for peer in json.loads(environment["HOLDFAST_PEERS"])
        }
        assert peers == addresses
        assert (environment["MASTER_ADDR"], environment["MASTER_PORT"]) == (addresses[0], str(port))
        told = [
            environment[name] for name in ("RANK", "LOCAL_RANK", "GROUP_RANK", "GROUP_WORLD_SIZE")
        ]
        assert told == [str(rank), "0", str(rank), str(RANKS)]
    prefix = master.rpartition(".")[0]
    assert connections == {(master, f"{prefix}.{where[rank].number}") for rank in (1, 2)}, (
        "not over the bridge"
    )
    training.finish()
    assert spread.client.job(training.id).attempts == 1


def test_a_rank_is_killed_on_one_machine(spread: MachineCluster) -> None:
    """What was saved goes to the controller and comes back over the wire; only the rank that was
    killed is charged."""
    training = Training(spread, keep_files=False, step_seconds=0.1)
    training.wait_step(2 * EVERY)
    wait_until(
        lambda: spread.client.checkpoints(training.id),
        SECONDS,
        what="a checkpoint at the controller",
    )
    pids = [training.pid(rank) for rank in range(RANKS)]
    os.kill(pids[1], signal.SIGKILL)
    output = training.finish()

    assert not any(is_alive(pid) for pid in pids)
    (resumed,) = {int(text) for text in re.findall(r"goes on from step (\d+)", output)}
    assert resumed >= EVERY, "nothing was kept"
    first, second = spread.client.attempts(training.id)
    assert (first.trigger_rank, first.cause, first.exit_code) == (1, "nonzero_exit", 137)
    assert second.outcome == "succeeded"
    # The machine it failed on is avoided; the others are still more than one.
    assert {member.host for member in second.members} == {
        m.host for m in first.members if not m.trigger
    }
    charged = {rank: c.retries for rank, c in spread.client.job(training.id).rank_charges.items()}
    assert charged == {"1": 1}, "only the rank that was killed is charged"


@pytest.mark.longest
def test_a_machine_is_cut_off(spread: MachineCluster) -> None:
    """Its ranks live on until their lease is over, and only then their gangs on the others.

    One is the training, whose ranks hang in a receive that nothing will ever answer. The other
    one's ranks write all the time.
    """
    training = Training(spread, keep_files=True, step_seconds=0.15)
    gang = Gang(spread, "writers", RANKS, placement="spread", lease_ttl=TTL)
    gang.wait_all(1)
    training.wait_step(2 * EVERY)
    where = machines_of(spread, training.id)
    lost = where[0]  # rank 0's, that all others talk to
    (writer,) = [rank for rank, machine in machines_of(spread, gang.id).items() if machine is lost]
    there = [pid for job in (training.id, gang.id) for pid in lost.task_pids(job)]
    assert {training.pid(0), gang.pid(writer)} <= set(there)
    others = [training.pid(1), training.pid(2)]
    cut_at = gang.lines()[-1].at
    spread.network.plug(lost.number, "down")

    # No message reaches it now: its tasks are ended by its own guardian.
    wait_until(
        lambda: not any(is_alive(pid) for pid in there),
        TTL + SECONDS,
        what="the lease's end over there",
    )
    said = "a task's lease ended without word from the controller; it is killed"
    assert lost.log().count(said) == 2, lost.log()
    last = max(line.at for line in gang.lines() if (line.rank, line.attempt) == (writer, 1))
    assert last - cut_at > TTL / 2, "it was stopped by something else than its lease's end"
    gang.wait_all(2, seconds=TTL + SECONDS)
    assert lost not in machines_of(spread, gang.id).values()
    output = training.finish()
    assert not any(is_alive(pid) for pid in others)
    (resumed,) = {int(text) for text in re.findall(r"goes on from step (\d+)", output)}
    assert resumed >= 2 * EVERY
    assert lost.name not in {
        member.host for member in spread.client.attempts(training.id)[1].members
    }
    for job, rank in ((training.id, 0), (gang.id, writer)):
        first = spread.client.attempts(job)[0]
        assert (first.trigger_rank, first.cause, first.charged_to) == (
            rank,
            "agent_transient",
            "infra",
        )
        charged = {r: (c.retries, c.infra) for r, c in spread.client.job(job).rank_charges.items()}
        assert charged == {str(rank): (0, 1)}, "no retry is charged for a cable"

    # The cable is back. What that machine then says of its old ranks is stale, and it is a host as
    # before.
    before = spread.snapshot(training.id)
    spread.network.plug(lost.number, "up")
    wait_until(
        lambda: spread.controller.messages("a stale report was refused"),
        SECONDS,
        what="the stale report",
    )
    wait_until(
        lambda: (
            not spread.client.host(lost.name).dead and not spread.client.host(lost.name).running
        ),
        SECONDS,
        what="the machine to be a host again",
    )
    assert spread.snapshot(training.id) == before
    gang.finish()
    assert [attempt.number for attempt in gang.attempts()] == [1, 2]
