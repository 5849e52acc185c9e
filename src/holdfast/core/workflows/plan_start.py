"""What a node that may start turns into: its job, its calls, its question, or its end. Pure."""

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import UNSET

from holdfast.core.calls.values import MAX_INLINE_BYTES, FunctionSpec
from holdfast.core.spec import MAX_ENV_BYTES, JobSpec
from holdfast.core.workflows.advance import NodeEnd
from holdfast.core.workflows.records import NodeWork
from holdfast.core.workflows.references import (
    describe_value,
    list_inputs,
    resolve_value,
    walk_references,
)
from holdfast.core.workflows.values import AskWork, Condition, NodeSpec, NodeState
from holdfast.errors import ValidationError

MAX_ARGS_BYTES = 4 * 1024 * 1024
MAX_MAP_ITEMS = 1_000_000
RUN_LABEL, NODE_LABEL = "workflow/run", "workflow/node"


class PlannedCalls(msgspec.Struct, frozen=True):
    """Calls to submit: JSON texts of their arguments."""

    spec: FunctionSpec
    args: list[str]


class PlannedJob(msgspec.Struct, frozen=True):
    """A job to submit, as it will run."""

    spec: JobSpec


Planned = PlannedCalls | PlannedJob | AskWork | NodeEnd


def name_references(spec: NodeSpec) -> set[str]:
    """Return the names of the nodes whose results this node needs."""
    return {ref.node for value in list_inputs(spec) for ref in walk_references(value)}


def plan_start(run: str, work: NodeWork, results: Mapping[str, Any], out_dir: str) -> Planned:
    """Return what to do for a node that may start.

    results: of the parents that it refers to; null of one that was skipped. out_dir: of this node.
    A reference that leads nowhere is the end of the node.
    """
    spec = work.spec
    try:
        for name in name_references(spec):
            refuse_large(name, results[name])
        if spec.skip_if is not None and holds(spec.skip_if, results):
            return NodeEnd(state=NodeState.SKIPPED, reason="its skip_if holds")
        if spec.job is not None:
            inputs = resolve_value(spec.job.inputs, results.__getitem__)
            return PlannedJob(make_job(run, work, spec.job.spec, inputs, out_dir))
        if spec.call is not None:
            return _plan_calls(spec, results)
    except ValidationError as error:
        return NodeEnd(state=NodeState.FAILED, reason=error.message)
    assert spec.ask is not None
    return spec.ask


def refuse_large(name: str, result: Any) -> None:
    """Raise ValidationError for a result that is kept in the blob store: it is too large to be
    looked into here."""
    for part in (result, *(result if isinstance(result, list) else ())):
        if isinstance(part, dict) and part.keys() == {"$blob", "size"}:
            raise ValidationError(
                f"the result of node {name} is {part['size']} bytes; the limit for what nodes hand "
                f"on is {MAX_INLINE_BYTES}: keep it as a file in out_dir and return its path"
            )


def holds(condition: Condition, results: Mapping[str, Any]) -> bool:
    """Return whether a condition is true of its parents' results."""
    value = resolve_value(condition.value, results.__getitem__)
    found = bool(value) if condition.equals is UNSET else value == condition.equals
    return found is not condition.negate


def make_job(
    run: str, work: NodeWork, spec: JobSpec, inputs: dict[str, Any], out_dir: str
) -> JobSpec:
    """Return the spec of a node's job: labels and variables that say what it belongs to."""
    env = {"HOLDFAST_RUN": run, "HOLDFAST_NODE": work.name}
    if out_dir:
        env["HOLDFAST_OUT_DIR"] = out_dir
    if inputs:
        env["HOLDFAST_INPUTS"] = encode(inputs)
        if len(env["HOLDFAST_INPUTS"].encode()) > MAX_ENV_BYTES - 4096:
            raise ValidationError(
                f"its inputs are {len(env['HOLDFAST_INPUTS'])} characters, too many for an "
                "environment; hand large values over as files in out_dir"
            )
    return msgspec.structs.replace(
        spec,
        name=spec.name or work.name,
        env={**spec.env, **env},
        labels={**spec.labels, RUN_LABEL: run, NODE_LABEL: work.name},
    )


def _plan_calls(spec: NodeSpec, results: Mapping[str, Any]) -> Planned:
    call = spec.call
    assert call is not None
    args = resolve_value(call.args, results.__getitem__)
    if call.over is UNSET:
        return PlannedCalls(call.spec, [_check_size(encode(args))])
    items = resolve_value(call.over, results.__getitem__)
    if not isinstance(items, list):
        raise ValidationError(f"it maps over a list, and was given {describe_value(items)}")
    if len(items) > MAX_MAP_ITEMS:
        raise ValidationError(f"it maps over {len(items)} items; the limit is {MAX_MAP_ITEMS}")
    if not items:
        return NodeEnd(
            state=NodeState.SUCCEEDED, result="[]", reason="it mapped over an empty list"
        )
    texts = [_check_size(encode({**args, call.item: item})) for item in items]
    return PlannedCalls(call.spec, texts)


def _check_size(text: str) -> str:
    if len(text) > MAX_ARGS_BYTES:
        raise ValidationError(
            f"its arguments are {len(text)} characters; the limit is {MAX_ARGS_BYTES}: hand large "
            "values over as files in out_dir"
        )
    return text


def encode(value: Any) -> str:
    """Return `value` as JSON text."""
    return msgspec.json.encode(value).decode()


def find_out_dir(root: str, node: str) -> str:
    """Return a node's folder below its run's; empty where the run has none."""
    return f"{root}/{node}" if root else ""
