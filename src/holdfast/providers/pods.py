"""Pods as values: one made from an order and a template, one read as a machine. Pure."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import msgspec

from holdfast.core.fleet.instances import CreateOrder, Machine, MachineState
from holdfast.providers.config import agent_env, agent_words

Tree = dict[str, Any]

MANAGED_LABEL = "app.kubernetes.io/managed-by"
INSTALLATION_LABEL = "holdfast.dev/installation"
INTENT_LABEL = "holdfast.dev/intent"
POOL_ANNOTATION = "holdfast.dev/pool"  # a pool's name may be longer than a label's value
CONTAINER = "agent"
# The keys that identify the items of a list, as in Kubernetes' own strategic merge.
_KEYS = ("name", "mountPath")
_PULLS = frozenset(
    {
        "ErrImagePull",
        "ImagePullBackOff",
        "InvalidImageName",
        "ErrImageNeverPull",
        "ImageInspectError",
    }
)
_STARTS = frozenset({"CreateContainerConfigError", "CreateContainerError", "RunContainerError"})
# Reasons of a pod that ended, and of its condition DisruptionTarget.
_LOST = {
    "Evicted": "evicted",
    # By an operator's drain or an autoscaler, as by a cloud that takes a node back: no failure.
    "EvictionByEvictionAPI": "preempted",
    "TerminationByKubelet": "evicted",
    "Preempting": "preempted",
    "Preempted": "preempted",
    "PreemptionByScheduler": "preempted",
    "PreemptionByKubeScheduler": "preempted",
    "NodeLost": "node_failure",
    "NodeShutdown": "preempted",
    "Shutdown": "preempted",
    "Terminated": "preempted",
    "DeletionByTaintManager": "node_failure",
    "DeletionByPodGC": "node_failure",
    "OutOfcpu": "unschedulable",
    "OutOfmemory": "unschedulable",
    "OutOfnvidia.com/gpu": "unschedulable",
    "UnexpectedAdmissionError": "unschedulable",
    "NodeAffinity": "unschedulable",
}


class PodOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a config that concern pods. pod: the user's template."""

    image: str
    entry: list[str]
    state: str
    gpus: str
    gpu_resource: str
    grace_seconds: int
    node_selector: dict[str, str]
    tolerations: list[Tree]
    pull_policy: str | None
    pod: Tree


def make_pod(order: CreateOrder, options: PodOptions) -> Tree:
    """Return the pod of an order: the parts that Holdfast needs, the user's template over them, and
    over that the parts that no template may change: the name, the marks, the agent's variables, and
    that nothing restarts the pod."""
    offer, env = order.offer, agent_env(order)
    requests: Tree = {"cpu": str(offer.cpu_slots)} if offer.cpu_slots else {}
    limits: Tree = {}
    if offer.memory_bytes:
        requests["memory"] = limits["memory"] = str(offer.memory_bytes)
    if offer.gpus:
        limits[options.gpu_resource] = str(offer.gpus)
    container: Tree = {
        "name": CONTAINER,
        "image": options.image,
        "command": [*options.entry, *agent_words(order, state=options.state, gpus=options.gpus)],
        "resources": {"requests": requests, "limits": limits},
    }
    if options.pull_policy:
        container["imagePullPolicy"] = options.pull_policy
    pod: Tree = {
        "spec": {
            "terminationGracePeriodSeconds": options.grace_seconds,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "nodeSelector": options.node_selector,
            "tolerations": options.tolerations,
            "containers": [container],
        }
    }
    marks = {
        "metadata": {
            "name": order.name,
            "labels": {
                MANAGED_LABEL: "holdfast",
                INSTALLATION_LABEL: order.installation,
                INTENT_LABEL: order.intent,
            },
            "annotations": {POOL_ANNOTATION: order.pool},
        },
        "spec": {
            "restartPolicy": "Never",
            "containers": [
                {
                    "name": CONTAINER,
                    "env": [{"name": name, "value": value} for name, value in sorted(env.items())],
                }
            ],
        },
    }
    return merge(merge(pod, options.pod), marks)


def merge(under: Tree, over: Mapping[str, Any]) -> Tree:
    """Merge one tree over another.

    Mappings are merged key by key; lists whose items all have a `name` (or a `mountPath`) item by
    item; every other value is replaced; None removes a key.
    """
    merged = dict(under)
    for key, value in over.items():
        known = merged.get(key)
        if value is None:
            merged.pop(key, None)
        elif isinstance(known, dict) and isinstance(value, Mapping):
            merged[key] = merge(known, value)
        elif isinstance(known, list) and isinstance(value, list):
            merged[key] = _merge_lists(known, value)
        else:
            merged[key] = value
    return merged


def _merge_lists(under: list[Any], over: list[Any]) -> list[Any]:
    for key in _KEYS:
        if all(isinstance(item, dict) and key in item for item in [*under, *over]):
            merged = {item[key]: item for item in under}
            for item in over:
                merged[item[key]] = merge(merged.get(item[key], {}), item)
            return list(merged.values())
    return over


def show_pod(pod: Tree) -> Machine:
    """Return a pod as a machine."""
    meta, status = pod["metadata"], pod.get("status") or {}
    labels, annotations = meta.get("labels") or {}, meta.get("annotations") or {}
    phase = status.get("phase") or "Pending"
    lost, reason = find_cause(status)
    states = {"Pending": MachineState.STARTING, "Running": MachineState.RUNNING}
    # Of a phase Unknown the node is silent: its processes may live.
    state = states.get(phase, MachineState.RUNNING if phase == "Unknown" else MachineState.GONE)
    if meta.get("deletionTimestamp") and state is not MachineState.GONE:
        state = MachineState.ENDING
    created = meta.get("creationTimestamp")
    if isinstance(created, str):
        created = datetime.fromisoformat(created.replace("Z", "+00:00"))
    return Machine(
        ref=meta["name"],
        intent=labels.get(INTENT_LABEL, ""),
        pool=annotations.get(POOL_ANNOTATION, ""),
        name=meta["name"],
        state=state,
        reason=": ".join(word for word in (phase, reason) if word)[:600],
        lost=lost,
        created_at=created,
    )


def find_cause(status: Tree) -> tuple[str, str]:
    """Return why a pod ended, or does not start: Holdfast's word for the cause, and the cluster's
    own words."""
    for container in status.get("containerStatuses") or []:
        state = container.get("state") or {}
        waiting, ended = state.get("waiting") or {}, state.get("terminated") or {}
        words = waiting.get("reason") or "", waiting.get("message") or ""
        if words[0] in _PULLS:
            return "image_pull_failure", " ".join(words).strip()
        if words[0] in _STARTS:
            return "refused", " ".join(words).strip()
        if ended.get("reason") == "OOMKilled":
            return "oom_killed", "OOMKilled"
    for condition in status.get("conditions") or []:
        kind, reason = condition.get("type"), condition.get("reason") or ""
        message = f"{reason} {condition.get('message') or ''}".strip()
        if kind == "DisruptionTarget" and condition.get("status") == "True":
            return _LOST.get(reason, "evicted"), message
        if kind == "PodScheduled" and reason == "Unschedulable":
            return "unschedulable", message
    reason = status.get("reason") or ""
    message = f"{reason} {status.get('message') or ''}".strip()
    if reason in _LOST:
        return _LOST[reason], message
    return "", message or _describe_end(status)


def _describe_end(status: Tree) -> str:
    for container in status.get("containerStatuses") or []:
        ended = (container.get("state") or {}).get("terminated")
        if ended:
            return f"its agent ended with {ended.get('exitCode')} ({ended.get('reason')})"
    return ""
