"""Agents in pods of a real Kubernetes: GPUs, images that are not there, too little room and memory,
and the rights that the manifest gives."""

from __future__ import annotations

import asyncio
import base64
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from holdfast.core.fleet.instances import Machine, MachineState, Offer
from holdfast.providers.interface import NoCapacity, Provider, ProviderDown, Refused
from tests.providers.kubernetes.rig import Kubernetes, KubernetesRig
from tests.providers.rig import ROOT, SECRET, make_order, open_rig
from tests.providers.test_local import join_order
from tests.system.cluster import Cluster
from tests.waits import wait_until, within

pytestmark = pytest.mark.slow
PATIENCE = 90.0


async def wait_for(provider: Provider, ref: str, **fields: Any) -> Machine:
    """Wait until the machine has these fields."""
    shown: Machine | None = None
    try:
        async with within(PATIENCE):
            while True:
                shown = await provider.get_machine(ref)
                if shown is not None and all(getattr(shown, k) == v for k, v in fields.items()):
                    return shown
                await asyncio.sleep(0.2)
    except TimeoutError:
        raise AssertionError(f"waited in vain for {fields}: {shown}") from None


async def end(provider: Provider, *refs: str) -> None:
    for ref in refs:
        await provider.terminate(ref)
    for ref in refs:
        async with within(PATIENCE):
            while await provider.get_machine(ref) is not None:
                await asyncio.sleep(0.2)
    await provider.close()


async def test_an_agent_in_a_pod_works_and_ends(rig: KubernetesRig, cluster: Cluster) -> None:
    """With cards that the scheduler counted; its end is graceful, and its task ends with it."""
    provider = open_rig(
        rig, entry=[sys.executable, "-P", "-m", "holdfast"], gpus="2", grace_seconds=20
    )
    order = join_order(cluster, Offer(name="pod", gpus=2, cpu_slots=1))
    machine = await provider.create(order)
    try:
        wait_until(
            lambda: [h for h in cluster.client.hosts() if h.name == order.name and h.state == "active"],
            60, what="the agent to join",
        )  # fmt: skip
        job = cluster.submit("sleep", "600", queue="gpu", gpus=1)
        cluster.until(job, "running")
    finally:
        await end(provider, machine.ref)


async def test_why_a_pod_does_not_start(rig: KubernetesRig) -> None:
    """A card too many, and an image that is not there."""
    provider = open_rig(rig)
    large = await provider.create(make_order(offer=Offer(name="large", gpus=99, cpu_slots=0)))
    shown = await wait_for(provider, large.ref, lost="unschedulable")
    assert shown.state is MachineState.STARTING
    assert "Insufficient nvidia.com/gpu" in shown.reason
    absent = Offer(name="absent", cpu_slots=0, config={"image": "nowhere:1"})
    missing = await provider.create(make_order(offer=absent))
    assert (
        await wait_for(provider, missing.ref, lost="image_pull_failure")
    ).state is MachineState.STARTING
    await end(provider, large.ref, missing.ref)


async def test_a_pod_that_uses_too_much_memory(rig: KubernetesRig, tmp_path: Path) -> None:
    hungry = tmp_path / "hungry"
    hungry.write_text(f"#!/bin/sh\nexec {sys.executable} -c 'x = bytearray(400 << 20)'\n")
    hungry.chmod(0o755)
    provider = open_rig(rig, entry=[str(hungry)])
    machine = await provider.create(
        make_order(offer=Offer(name="small", cpu_slots=0, memory_bytes=60 << 20))
    )
    gone = await wait_for(provider, machine.ref, state=MachineState.GONE)
    assert gone.lost == "oom_killed"
    await end(provider, machine.ref)


async def test_the_manifests_rights_are_enough(
    rig: KubernetesRig, kubernetes: Kubernetes, tmp_path: Path
) -> None:
    """A controller with nothing but the service account of examples/kubernetes makes, lists and ends
    pods, and may do nothing else."""
    manifest = ROOT / "examples" / "kubernetes" / "rbac.yaml"
    subprocess.run(
        ["kubectl", "--kubeconfig", str(kubernetes.kubeconfig), "apply", "-f", str(manifest)], check=True, capture_output=True
    )  # fmt: skip
    account = kubernetes.ask("-n", "holdfast", "get", "serviceaccount", "holdfast")
    secret = kubernetes.ask("-n", "holdfast", "get", "secret", account["secrets"][0]["name"])
    token = base64.b64decode(secret["data"]["token"]).decode()
    config = yaml.safe_load(Path(rig.config["kubeconfig"]).read_text())
    config["users"] = [{"name": "admin", "user": {"token": token}}]
    Path(rig.config["kubeconfig"]).write_text(yaml.safe_dump(config))
    provider = open_rig(rig, namespace="holdfast")
    machine = await provider.create(make_order(offer=rig.offer))
    (listed,) = await provider.list_machines()
    assert listed.ref == machine.ref
    await end(provider, machine.ref)
    elsewhere = open_rig(rig, namespace="default")
    with pytest.raises(Refused, match="forbidden"):
        await elsewhere.list_machines()
    await elsewhere.close()


async def test_a_quota_is_no_capacity(rig: KubernetesRig, kubernetes: Kubernetes) -> None:
    for words in (
        ["create", "namespace", "full"],
        ["-n", "full", "create", "quota", "none", "--hard=pods=0"],
    ):
        kubernetes.ask(*words)
    wait_until(
        lambda: kubernetes.ask("-n", "full", "get", "quota", "none")["status"].get("hard"),
        30,
        what="the quota",
    )
    provider = open_rig(rig, namespace="full")
    wait_until(
        lambda: kubernetes.ask("-n", "full", "get", "serviceaccounts")["items"],
        30,
        what="the account",
    )
    with pytest.raises(NoCapacity, match="exceeded quota"):
        await provider.create(make_order(offer=rig.offer))
    await provider.close()


async def test_a_cluster_that_cannot_be_reached(rig: KubernetesRig, tmp_path: Path) -> None:
    order = make_order(offer=rig.offer)
    with rig.hang(order):
        lines = Path(rig.config["kubeconfig"]).read_text()
    for text, error in ((lines, ProviderDown), ("nonsense", Refused)):
        path = tmp_path / "other"
        path.write_text(text)
        provider = open_rig(rig, kubeconfig=str(path), deadline_seconds=5)
        with pytest.raises(error) as caught:
            await provider.create(order)
        assert SECRET not in str(caught.value)
        await provider.close()
