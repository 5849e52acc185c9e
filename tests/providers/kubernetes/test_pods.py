"""Pods as values: what a template may change, and what the states of a pod mean."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.fleet.instances import MachineState, Offer
from holdfast.providers.kubernetes import KubernetesConfig
from holdfast.providers.pods import PodOptions, Tree, make_pod, merge, show_pod
from tests.providers.rig import SECRET, make_order

OFFER = Offer(name="a100", gpus=2, cpu_slots=8, memory_bytes=1 << 30)


def make_options(**more: Any) -> PodOptions:
    config = KubernetesConfig(image="holdfast:1", **more)
    return msgspec.convert(config, PodOptions, from_attributes=True)


def test_a_pod_asks_for_what_the_offer_says() -> None:
    options = make_options(
        node_selector={"gpu": "a100"}, tolerations=[{"key": "gpu", "operator": "Exists"}]
    )
    order = make_order(offer=OFFER)
    pod = make_pod(order, options)
    spec = pod["spec"]
    (container,) = spec["containers"]
    assert container["resources"] == {
        "requests": {"cpu": "8", "memory": str(1 << 30)},
        "limits": {"memory": str(1 << 30), "nvidia.com/gpu": "2"},
    }
    assert (spec["nodeSelector"], spec["tolerations"][0]["key"]) == ({"gpu": "a100"}, "gpu")
    assert (spec["restartPolicy"], spec["terminationGracePeriodSeconds"]) == ("Never", 60)
    assert SECRET not in " ".join(container["command"])
    assert {"name": "HOLDFAST_JOIN_TOKEN", "value": SECRET} in container["env"]
    assert len(pod["metadata"]["name"]) <= 63


def test_a_template_may_add_and_may_not_take_the_marks_away() -> None:
    template = {
        "metadata": {"name": "mine", "labels": {"team": "vision", "holdfast.dev/intent": "other"}},
        "spec": {
            "restartPolicy": "Always",
            "priorityClassName": "low",
            "volumes": [{"name": "data", "emptyDir": {}}],
            "containers": [
                {"name": "agent", "volumeMounts": [{"name": "data", "mountPath": "/data"}],
                 "env": [{"name": "A", "value": "b"}, {"name": "HOLDFAST_INTENT", "value": "other"}]},
                {"name": "sidecar", "image": "log:1"},
            ],
        },
    }  # fmt: skip
    order = make_order(offer=OFFER)
    pod = make_pod(order, make_options(pod=template))
    agent, sidecar = pod["spec"]["containers"]
    assert pod["metadata"]["name"] == order.name
    assert pod["metadata"]["labels"]["holdfast.dev/intent"] == order.intent
    assert pod["metadata"]["labels"]["team"] == "vision"
    assert (pod["spec"]["restartPolicy"], pod["spec"]["priorityClassName"]) == ("Never", "low")
    env = {item["name"]: item["value"] for item in agent["env"]}
    assert (env["A"], env["HOLDFAST_INTENT"]) == ("b", order.intent)
    assert (agent["image"], sidecar["image"]) == ("holdfast:1", "log:1")


LEAVES = st.one_of(st.integers(), st.text(max_size=3), st.booleans())
TREES = st.recursive(
    st.dictionaries(st.sampled_from("abc"), LEAVES),
    lambda inner: st.dictionaries(st.sampled_from("abc"), st.one_of(LEAVES, inner)),
    max_leaves=8,
)


@given(TREES, TREES)
def test_what_lies_over_is_whole(under: Tree, over: Tree) -> None:
    """Every leaf of the upper tree is in the result, laid twice changes nothing, and nothing is an
    identity."""
    merged = merge(under, over)
    assert merge(merged, over) == merged
    assert merge(under, {}) == under

    def check(upper: Any, found: Any) -> None:
        for key, value in upper.items():
            if isinstance(value, dict):
                check(value, found[key])
            else:
                assert found[key] == value

    check(over, merged)


def test_none_removes_and_plain_lists_are_replaced() -> None:
    assert merge({"a": 1, "b": [1, 2]}, {"a": None, "b": [3]}) == {"b": [3]}


def waiting(reason: str) -> Tree:
    return {
        "phase": "Pending",
        "containerStatuses": [{"state": {"waiting": {"reason": reason, "message": "words"}}}],
    }


def ended(reason: str, code: int) -> Tree:
    return {
        "phase": "Failed",
        "containerStatuses": [{"state": {"terminated": {"reason": reason, "exitCode": code}}}],
    }


def condition(kind: str, status: str, reason: str) -> Tree:
    return {"conditions": [{"type": kind, "status": status, "reason": reason, "message": "words"}]}


@pytest.mark.parametrize(
    ("status", "state", "lost"),
    [
        ({}, MachineState.STARTING, ""),
        ({"phase": "Pending"}, MachineState.STARTING, ""),
        (waiting("ContainerCreating"), MachineState.STARTING, ""),
        (waiting("ErrImagePull"), MachineState.STARTING, "image_pull_failure"),
        (waiting("ImagePullBackOff"), MachineState.STARTING, "image_pull_failure"),
        (waiting("CreateContainerConfigError"), MachineState.STARTING, "refused"),
        (
            {"phase": "Pending"} | condition("PodScheduled", "False", "Unschedulable"),
            MachineState.STARTING,
            "unschedulable",
        ),
        ({"phase": "Running"}, MachineState.RUNNING, ""),
        ({"phase": "Unknown", "reason": "NodeLost"}, MachineState.RUNNING, "node_failure"),
        ({"phase": "Succeeded"}, MachineState.GONE, ""),
        (ended("OOMKilled", 137), MachineState.GONE, "oom_killed"),
        (ended("Error", 78), MachineState.GONE, ""),
        ({"phase": "Failed", "reason": "Evicted"}, MachineState.GONE, "evicted"),
        ({"phase": "Failed", "reason": "Preempting"}, MachineState.GONE, "preempted"),
        ({"phase": "Failed", "reason": "NodeShutdown"}, MachineState.GONE, "preempted"),
        ({"phase": "Failed", "reason": "Terminated"}, MachineState.GONE, "preempted"),
        (
            {"phase": "Failed"} | condition("DisruptionTarget", "True", "EvictionByEvictionAPI"),
            MachineState.GONE,
            "preempted",
        ),
        (
            {"phase": "Failed"} | condition("DisruptionTarget", "True", "PreemptionByScheduler"),
            MachineState.GONE,
            "preempted",
        ),
        (
            {"phase": "Failed"} | condition("DisruptionTarget", "True", "DeletionByTaintManager"),
            MachineState.GONE,
            "node_failure",
        ),
    ],
)
def test_each_state_of_a_pod(status: Tree, state: MachineState, lost: str) -> None:
    machine = show_pod({"metadata": {"name": "a"}, "status": status})
    assert (machine.state, machine.lost) == (state, lost)


def test_a_pod_that_is_being_deleted_is_ending() -> None:
    meta = {
        "name": "a",
        "deletionTimestamp": "2026-01-01T00:00:00Z",
        "creationTimestamp": "2026-01-01T00:00:00Z",
    }
    machine = show_pod({"metadata": meta, "status": {"phase": "Running"}})
    assert machine.state is MachineState.ENDING
    assert machine.created_at is not None
    assert show_pod({"metadata": meta, "status": {"phase": "Failed"}}).state is MachineState.GONE


def test_why_an_agent_ended_is_said() -> None:
    machine = show_pod({"metadata": {"name": "a"}, "status": ended("Error", 78)})
    assert machine.reason == "Failed: its agent ended with 78 (Error)"
