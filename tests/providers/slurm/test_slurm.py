"""Agents in the jobs of a real Slurm: work, preemption, a node that fails, and a queue that is full."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.core.fleet.instances import Machine, MachineState, Offer
from holdfast.providers.interface import Provider, ProviderDown, Refused
from tests.providers.rig import SECRET, make_order, open_rig
from tests.providers.slurm.rig import SlurmRig
from tests.providers.test_local import join_order
from tests.system.cluster import Cluster
from tests.system.slurm.cluster import PATIENCE
from tests.system.slurm.cluster import Cluster as SlurmCluster
from tests.waits import wait_until, within

pytestmark = pytest.mark.slow
NODE = Offer(name="node", cpu_slots=2)


async def wait_for(provider: Provider, ref: str, state: MachineState) -> Machine:
    async with within(PATIENCE):
        while (machine := await provider.get_machine(ref)) is None or machine.state is not state:
            await asyncio.sleep(0.2)
    return machine


async def test_an_agent_in_a_job_works_and_ends(rig: SlurmRig, cluster: Cluster) -> None:
    """With the GPUs that the job asked Slurm for."""
    provider = open_rig(rig, python=sys.executable, gpus="2")
    order = join_order(cluster, Offer(name="node", gpus=2, cpu_slots=2))
    machine = await provider.create(order)
    wait_until(
        lambda: [h for h in cluster.client.hosts() if h.name == order.name and h.state == "active"],
        60, what="the agent to join",
    )  # fmt: skip
    job = cluster.submit("sleep", "600", queue="gpu", gpus=1)
    cluster.until(job, "running")
    await provider.terminate(machine.ref)
    gone = await wait_for(provider, machine.ref, MachineState.GONE)
    assert (gone.lost, gone.reason.split()[0]) == ("", "CANCELLED")


async def test_a_preempted_job_is_told_from_a_failed_node(
    rig: SlurmRig, slurm: SlurmCluster
) -> None:
    """An urgent job takes one machine's node; another machine's node dies."""
    provider = open_rig(rig)
    offers = [
        msgspec.structs.replace(NODE, config={"options": [f"--nodelist={n}"]}) for n in ("n1", "n2")
    ]
    first, second = [await provider.create(make_order(offer=offer)) for offer in offers]
    for machine in (first, second):
        await wait_for(provider, machine.ref, MachineState.RUNNING)
    slurm.submit(
        slurm.folder, "--partition=urgent", "--nodelist=n1", "--cpus-per-task=2", "--wrap=sleep 1"
    )
    assert (await wait_for(provider, first.ref, MachineState.GONE)).lost == "preempted"
    slurm.kill_node("n2")
    gone = await wait_for(provider, second.ref, MachineState.GONE)
    assert (gone.lost, gone.state) == ("node_failure", MachineState.GONE)


async def test_a_job_that_waits_says_why(rig: SlurmRig) -> None:
    provider = open_rig(rig)
    whole = msgspec.structs.replace(NODE, config={"options": ["--nodelist=n1"]})
    first = await provider.create(make_order(offer=whole))
    await wait_for(provider, first.ref, MachineState.RUNNING)
    second = await provider.create(make_order(offer=whole))
    async with within(PATIENCE):
        while "Resources" not in (shown := await provider.get_machine(second.ref)).reason:  # type: ignore[union-attr]  # it is there
            await asyncio.sleep(0.2)
    assert shown is not None
    assert shown.state is MachineState.STARTING
    await provider.terminate(second.ref)
    await provider.terminate(first.ref)


async def test_the_text_of_squeue_does_where_there_is_no_json(
    rig: SlurmRig, slurm: SlurmCluster
) -> None:
    """An old squeue, or one without the plugin, refuses --json."""
    wrapper = Path(rig.config["env"]["PATH"].split(":")[0]) / "squeue"
    wrapper.write_text(
        '#!/bin/sh\ncase "$*" in *--json*) echo "squeue: unrecognized option" >&2; exit 1;; esac\n'
        f'PATH="{slurm.env["PATH"]}" exec squeue "$@"\n'
    )
    wrapper.chmod(0o700)
    provider = open_rig(rig)
    order = make_order(offer=rig.offer)
    machine = await provider.create(order)
    running = await wait_for(provider, machine.ref, MachineState.RUNNING)
    assert (running.intent, running.pool, running.name) == (order.intent, "spot", order.name)
    await provider.terminate(machine.ref)


@pytest.mark.parametrize(
    ("config", "error"),
    [
        ({"partition": "nowhere"}, Refused),
        ({"gres": "gpu:99"}, Refused),
        ({"options": ["--no-such-option"]}, Refused),
        ({"env": {"SLURM_CONF": "/nowhere/slurm.conf"}}, ProviderDown),
    ],
)
async def test_what_sbatch_refuses(
    rig: SlurmRig, config: dict[str, Any], error: type[Exception]
) -> None:
    env = rig.config["env"] | config.get("env", {})
    provider = open_rig(rig, **(config | {"env": env}))
    with pytest.raises(error) as caught:
        await provider.create(make_order(offer=rig.offer))
    assert SECRET not in str(caught.value)


async def test_preemption_by_slurm_is_charged_to_nothing_and_the_queue_says_its_reason(
    rig: SlurmRig, slurm: SlurmCluster, cluster: Cluster
) -> None:
    """A pool's job loses its node to an urgent one, waits for it with Slurm's own word, and runs
    again."""
    client = cluster.client
    client.put_pool(
        "batch",
        {
            "provider": "slurm",
            "config": rig.config | {"python": sys.executable},
            "offers": [{"name": "n3", "cpu_slots": 2, "config": {"options": ["--nodelist=n3"]}}],
            "max": 2,
            "poll_seconds": 1.0,
            "checks": {"enabled": False},
        },
    )
    try:
        job = cluster.submit("sleep", "600", retry={"max_retries": 0})
        cluster.until(job, "running", seconds=60)
        slurm.submit(
            slurm.folder, "--partition=urgent", "--nodelist=n3", "--cpus-per-task=2",
            "--wrap=sleep 15",
        )  # fmt: skip

        def ended() -> list[str]:
            return [str(a.cause) for a in client.attempts(job) if a.cause is not None]

        wait_until(lambda: ended(), 60, what="the attempt's end")
        assert ended()[0] in ("preempted", "host_drained")
        wait_until(
            lambda: "PREEMPTED" in client.attempts(job)[0].reason, 30, what="Slurm's word for it"
        )
        wait_until(
            lambda: any("Resources" in said for said in client.pool("batch").provider_says),
            30,
            what="Slurm's own word",
        )
        assert any("PENDING (Resources)" in line.message for line in client.why(job).lines)
        found = cluster.until(job, "running", seconds=120)
        assert (found.attempts, found.infra_charged, found.counted_retries) == (2, 0, 0)
        client.cancel(job)
    finally:
        client.delete_pool("batch")
        wait_until(lambda: client.pools() == [], 60, what="the pool to be gone")
