"""Boxes over a real ssh: real agents, boxes that are busy, dead or away, and what may be read there."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from holdfast.core.fleet.instances import MachineState, Offer
from holdfast.providers.interface import NoCapacity, ProviderDown
from tests.providers.rig import SECRET, make_order, open_rig
from tests.providers.sshd import MISSING, Sshd, SshRig, serve_ssh
from tests.providers.test_local import join_order
from tests.system.cluster import Cluster
from tests.waits import is_alive, wait_until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(MISSING, reason="there is no sshd; `make tools` brings one"),
]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Sshd]:
    with serve_ssh(tmp_path / "sshd") as made:
        yield made


@pytest.fixture
def rig(tmp_path: Path, server: Sshd) -> SshRig:
    return SshRig(tmp_path, server)


def pid_on(folder: Path) -> int:
    return int((folder / "machine" / "process").read_text().split()[0])


async def test_a_real_agent_over_ssh(rig: SshRig, cluster: Cluster, tmp_path: Path) -> None:
    provider = open_rig(rig, python=sys.executable, gpus="2")
    order = join_order(cluster, Offer(name="box", gpus=2, cpu_slots=3))
    machine = await provider.create(order)
    pid = pid_on(tmp_path / "b0")
    try:
        (host,) = wait_until(
            lambda: [h for h in cluster.client.hosts() if h.name == order.name and h.state == "active"],
            40, what="the box to join",
        )  # fmt: skip
        assert (len(host.gpus), host.cpu_slots, host.pool) == (2, 3, "spot")
        job = cluster.submit("sleep", "600", queue="gpu", gpus=1)
        cluster.until(job, "running")
    finally:
        await provider.terminate(machine.ref)
    assert not is_alive(pid)
    assert await provider.get_machine(machine.ref) is None


async def test_a_full_inventory_and_a_dead_agent(rig: SshRig, tmp_path: Path) -> None:
    """A box holds one machine, also of another installation. A box whose agent died is lost, and is
    free for the next."""
    ours, theirs = open_rig(rig), open_rig(rig, "there")
    first = await ours.create(make_order(offer=rig.offer))
    second = await theirs.create(make_order("there", offer=rig.offer))
    assert (first.ref.split(":")[0], second.ref.split(":")[0]) == ("b0", "b1")
    with pytest.raises(NoCapacity):
        await ours.create(make_order(offer=rig.offer))
    (quote,) = await ours.quote((rig.offer,))
    assert quote.available is False
    pid = pid_on(tmp_path / "b0")
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not is_alive(pid), what="its end")
    lost = await ours.get_machine(first.ref)
    assert lost is not None
    assert (lost.state, lost.lost) == (MachineState.GONE, "node_failure")
    only = msgspec.structs.replace(rig.offer, config={"only": ["b1"]})
    with pytest.raises(NoCapacity):
        await ours.create(make_order(offer=only))
    third = await ours.create(make_order(offer=rig.offer))
    assert third.ref.startswith("b0:")
    await ours.terminate(first.ref)  # an old machine's end is not the new one's
    assert is_alive(pid_on(tmp_path / "b0"))
    await ours.terminate(third.ref)
    await theirs.terminate(second.ref)


@pytest.mark.parametrize("changed", ["start", "boot"])
async def test_another_process_with_the_pid_is_left_alone(
    rig: SshRig, tmp_path: Path, changed: str
) -> None:
    """By the time of its start, and by the boot that it was recorded in."""
    provider = open_rig(rig)
    machine = await provider.create(make_order(offer=rig.offer))
    pid, record = pid_on(tmp_path / "b0"), tmp_path / "b0" / "machine" / "process"
    line, boot = record.read_text().splitlines()
    start = line.rpartition(")")[2].split()[19]
    if changed == "start":
        line = line.replace(f" {start} ", f" {int(start) - 7} ")
    else:
        boot = boot[::-1]
    record.write_text(f"{line}\n{boot}\n")
    shown = await provider.get_machine(machine.ref)
    assert shown is not None
    assert shown.state is MachineState.GONE
    await provider.terminate(machine.ref)
    assert is_alive(pid)
    os.kill(pid, signal.SIGKILL)


async def test_a_box_that_is_away_is_unknown_and_the_others_serve(rig: SshRig) -> None:
    """RENT-3, LEAK-4; until the operator takes it out."""
    away = {"name": "away", "address": "127.0.0.1", "port": 9}
    provider = open_rig(rig, boxes=[away, *rig.config["boxes"]])
    (unknown,) = await provider.list_machines()
    assert (unknown.ref, unknown.intent, unknown.state) == ("away:", "", MachineState.UNKNOWN)
    assert "box away cannot be reached by ssh" in unknown.reason
    machines = [await provider.create(make_order(offer=rig.offer)) for _ in range(2)]
    listed = await provider.list_machines()
    assert {m.ref for m in listed} == {"away:", *(m.ref for m in machines)}
    with pytest.raises(NoCapacity, match="box away cannot be reached"):
        await provider.create(make_order(offer=rig.offer))
    for machine in machines:
        await provider.terminate(machine.ref)
    provider = open_rig(rig, boxes=[*rig.config["boxes"], away | {"down": True}])
    assert await provider.list_machines() == ()
    with pytest.raises(ProviderDown, match="none of 1 boxes can be read"):
        await open_rig(rig, boxes=[away]).list_machines()


async def test_an_unknown_host_key_is_refused(rig: SshRig, tmp_path: Path) -> None:
    (tmp_path / "nothing").touch()
    provider = open_rig(rig, known_hosts=str(tmp_path / "nothing"))
    with pytest.raises(ProviderDown, match="Host key verification failed"):
        await provider.list_machines()


async def test_the_join_token_is_in_no_words_and_no_record(rig: SshRig, tmp_path: Path) -> None:
    wrapper = Path(rig.config["ssh"])
    wrapper.write_text(f'#!/bin/sh\necho "$@" >>{tmp_path}/words\nexec ssh "$@"\n')
    provider = open_rig(rig)
    machine = await provider.create(make_order(offer=rig.offer))
    wait_until(lambda: rig.env_of(machine), what="the agent")
    words = [tmp_path / "words", *(tmp_path / "stubs").glob("*.words")]
    files = [p for p in (tmp_path / "b0").rglob("*") if p.is_file()]
    assert len(files) > 3
    assert not [p for p in [*words, *files] if SECRET in p.read_text()]
    await provider.terminate(machine.ref)
