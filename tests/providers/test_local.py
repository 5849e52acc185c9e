"""Machines of the local provider: real agents at a real controller, and the deaths of either."""

from __future__ import annotations

import asyncio
import fcntl
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from holdfast.core.fleet.instances import CreateOrder, MachineState, Offer
from holdfast.process import table
from holdfast.providers.interface import ProviderDown
from holdfast.providers.local import LocalConfig, LocalProvider, end_machines
from tests.providers.rig import make_order, write_stub
from tests.system.cluster import Cluster
from tests.waits import is_alive, wait_until

pytestmark = pytest.mark.slow
# Creates a machine and dies in the same moment, as a controller does that is killed.
_CREATE_AND_DIE = """
import asyncio, os, signal, sys, msgspec
from holdfast.core.fleet.instances import CreateOrder
from holdfast.providers.locate import open_provider
order = msgspec.json.decode(sys.argv[2], type=CreateOrder)
provider = open_provider("local", msgspec.json.decode(sys.argv[1]), "here")
asyncio.run(provider.create(order))
os.kill(os.getpid(), signal.SIGKILL)
"""


def join_order(cluster: Cluster, offer: Offer) -> CreateOrder:
    """An order whose agent joins the cluster's controller."""
    token = cluster.client.create_token("join").secret
    return make_order(offer=offer, HOLDFAST_URL=cluster.controller.url, HOLDFAST_JOIN_TOKEN=token)


def pid_of(folder: Path, intent: str) -> int:
    return int((folder / "here" / intent / "process").read_text().split()[0])


async def test_a_machine_joins_works_and_ends(cluster: Cluster, tmp_path: Path) -> None:
    """The devices that the offer declares, the labels and the pool; a task ends with its host."""
    provider = LocalProvider(LocalConfig(folder=str(tmp_path / "m")), "here")
    order = join_order(cluster, Offer(name="two", gpus=2, cpu_slots=3))
    machine = await provider.create(order)
    try:
        (host,) = wait_until(
            lambda: [h for h in cluster.client.hosts() if h.name == order.name and h.state == "active"],
            what="the machine to join",
        )  # fmt: skip
        assert host.pool == "spot"
        assert host.labels == {"rack": "7", "zone": "a b"}
        assert (len(host.gpus), host.cpu_slots) == (2, 3)
        job = cluster.submit("sleep", "600", queue="gpu", gpus=1)
        cluster.until(job, "running")
        guardian = pid_of(tmp_path / "m", order.intent)
        agents = table.read_children(guardian)
        assert agents
    finally:
        await provider.terminate(machine.ref)
    shown = await provider.get_machine(machine.ref)
    assert shown is not None
    assert (shown.state, shown.lost) == (MachineState.GONE, "")
    assert not is_alive(guardian)
    wait_until(lambda: not any(is_alive(pid) for pid in agents), what="the agent's end")


async def test_a_machine_outlives_its_controller(tmp_path: Path) -> None:
    """Killed with -9 right after the creation; another controller finds the machine and ends it."""
    folder = tmp_path / "m"
    config = {"folder": str(folder), "python": str(write_stub(tmp_path / "stubs"))}
    order = make_order()
    words = [msgspec.json.encode(config).decode(), msgspec.json.encode(order).decode()]
    done = subprocess.run([sys.executable, "-c", _CREATE_AND_DIE, *words], check=False)
    assert done.returncode == -signal.SIGKILL
    provider = LocalProvider(LocalConfig(**config), "here")
    (machine,) = await provider.list_machines()
    pid = pid_of(folder, order.intent)
    assert (machine.intent, machine.state) == (order.intent, MachineState.RUNNING)
    assert is_alive(pid)
    await provider.terminate(machine.ref)
    assert not is_alive(pid)


async def test_an_agent_that_died_is_lost(tmp_path: Path) -> None:
    provider = LocalProvider(
        LocalConfig(folder=str(tmp_path / "m"), python=str(write_stub(tmp_path / "stubs"))), "here"
    )
    order = make_order()
    machine = await provider.create(order)
    pid = pid_of(tmp_path / "m", order.intent)
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not is_alive(pid), what="its end")
    (lost,) = await provider.list_machines()
    assert (lost.state, lost.lost) == (MachineState.GONE, "node_failure")
    assert (await provider.create(order)).state is MachineState.GONE, "an intent is used once"
    await provider.terminate(machine.ref)


async def test_creations_at_once_see_the_same_dead_machines(tmp_path: Path) -> None:
    """Each notes when a machine was first seen to be dead; none stumbles over another's note."""
    config = LocalConfig(folder=str(tmp_path / "m"), python=str(write_stub(tmp_path / "stubs")))
    provider, dead = LocalProvider(config, "here"), make_order()
    await provider.create(dead)
    os.kill(pid_of(tmp_path / "m", dead.intent), signal.SIGKILL)
    home = tmp_path / "m" / "here"
    wait_until(lambda: not is_alive(pid_of(tmp_path / "m", dead.intent)), what="its end")
    for number in range(100):
        shutil.copytree(home / dead.intent, home / f"{dead.intent}{number}")
    try:
        made = await asyncio.gather(*(provider.create(make_order()) for _ in range(12)))
        assert {machine.state for machine in made} == {MachineState.RUNNING}
    finally:
        await asyncio.to_thread(end_machines, tmp_path / "m")


async def test_a_start_that_was_given_up_starts_nothing_later(tmp_path: Path) -> None:
    """The lock is free right after the deadline; the thread that waited for it leaves it alone."""
    stubs = tmp_path / "stubs"
    config = LocalConfig(
        folder=str(tmp_path / "m"), python=str(write_stub(stubs)), deadline_seconds=0.3
    )
    provider, order = LocalProvider(config, "here"), make_order()
    folder = tmp_path / "m" / "here" / order.intent
    folder.mkdir(parents=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(ProviderDown):
            await provider.create(order)
    await asyncio.get_running_loop().shutdown_default_executor()
    assert not (folder / "process").exists()


async def test_an_agent_that_ignores_term_is_killed(tmp_path: Path) -> None:
    stub = tmp_path / "stub"
    stub.write_text("#!/bin/sh\ntrap '' TERM\nwhile :; do sleep 0.1; done\n")
    stub.chmod(0o700)
    provider = LocalProvider(
        LocalConfig(folder=str(tmp_path / "m"), python=str(stub), grace_seconds=0.3), "here"
    )
    order = make_order()
    machine = await provider.create(order)
    await provider.terminate(machine.ref)
    assert not is_alive(pid_of(tmp_path / "m", order.intent))


@pytest.mark.parametrize("same", ["start", "intent"])
async def test_another_process_with_the_pid_is_left_alone(tmp_path: Path, same: str) -> None:
    """The pid was used again: by a process that started then and has another environment, or by one
    with the environment that started later."""
    folder = tmp_path / "m"
    provider = LocalProvider(
        LocalConfig(folder=str(folder), python=str(write_stub(tmp_path / "stubs"))), "here"
    )
    order = make_order()
    machine = await provider.create(order)
    record, pid = folder / "here" / order.intent / "process", pid_of(folder, order.intent)
    os.kill(pid, signal.SIGKILL)
    env = {"HOLDFAST_INTENT": order.intent} if same == "intent" else {}
    with subprocess.Popen(["sleep", "600"], env=os.environ | env) as other:
        try:
            wait_until(lambda: table.read_environ(other.pid), what="the end of its exec")
            line = Path(f"/proc/{other.pid}/stat").read_text()
            if same == "intent":
                words = line.rpartition(")")[2].split()
                line = line.replace(f" {words[19]} ", f" {int(words[19]) - 7} ")
            record.write_text(line)
            shown = await provider.get_machine(machine.ref)
            assert shown is not None
            assert shown.state is MachineState.GONE
            await provider.terminate(machine.ref)
            assert other.poll() is None
        finally:
            other.kill()
