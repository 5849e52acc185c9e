"""plan_start(…): the work of a node that may start: its job, its calls, its question, or its end at
once. Pure."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import msgspec
from msgspec import UNSET

from holdfast.core.calls.floats import holds_floats
from holdfast.core.calls.large import (
    LargeValue,
    describe_value,
    follow_path,
    put_values,
    walk_large,
    write_arguments,
)
from holdfast.core.calls.values import FunctionSpec
from holdfast.core.spec import MAX_ENV_BYTES, JobSpec
from holdfast.core.workflows.advance import NodeEnd
from holdfast.core.workflows.records import NodeWork
from holdfast.core.workflows.references import (
    NODE,
    SKIPPED,
    list_inputs,
    read_reference,
    resolve_value,
    walk_references,
)
from holdfast.core.workflows.values import AskWork, CallWork, Condition, NodeSpec, NodeState
from holdfast.errors import ValidationError

MAX_LOOKED_BYTES = 32 * 1024 * 1024
"""Most bytes of results that a controller reads and keeps in memory while it plans a node."""
MAX_ARGS_BYTES = 4 * MAX_LOOKED_BYTES
"""Most bytes of arguments of all calls of a node together, without the items of a map and without
large results, which go by reference."""
MAX_MAP_ITEMS = 1_000_000
RUN_LABEL, NODE_LABEL = "workflow/run", "workflow/node"


class PlannedCalls(msgspec.Struct, frozen=True):
    """Calls to submit. args: the arguments of each call, as JSON text."""

    spec: FunctionSpec
    args: list[str]


class PlannedJob(msgspec.Struct, frozen=True):
    """A job to submit, as it will run."""

    spec: JobSpec


Planned = PlannedCalls | PlannedJob | AskWork | NodeEnd


def name_references(spec: NodeSpec) -> set[str]:
    """Return the names of the nodes whose results this node needs."""
    return {ref.node for value in list_inputs(spec) for ref in walk_references(value)}


def list_looked_into(spec: NodeSpec, results: Mapping[str, Any]) -> list[LargeValue]:
    """Return the large results that must be read before the node is planned: those in its `skip_if`
    and in a job's inputs, and the list that it maps over. Only the host reads arguments of calls.

    Raises:
        ValidationError: a reference leads nowhere, or the results are over `MAX_LOOKED_BYTES`.
    """
    values = [] if spec.skip_if is None else [spec.skip_if.value]
    values += [] if spec.job is None else [spec.job.inputs]
    found = [place.value for v in values for place in walk_large(_resolve(v, results))]
    if spec.call is not None and spec.call.over is not UNSET:
        over = _resolve(spec.call.over, results)
        found += [over] if isinstance(over, LargeValue) else []
    for large in found:
        if large.size > MAX_LOOKED_BYTES:
            raise ValidationError(
                f"the result of node {large.node} is {large.size} bytes, and nothing over "
                f"{MAX_LOOKED_BYTES} is looked into for a list, a condition or a job's inputs: "
                "return such values apart, or as files in out_dir"
            )
    return found


def plan_start(
    run: str,
    work: NodeWork,
    results: Mapping[str, Any],
    out_dir: str,
    loaded: Mapping[str, Any] = MappingProxyType({}),
) -> Planned:
    """Return the work to submit for a node that may start, or the end of the node: it is skipped,
    or it fails where a reference leads nowhere.

    run: the run's id. results: parent's name → its result, or `SKIPPED`, for each parent that the
    node refers to. out_dir: the node's own folder. loaded: the values that `list_looked_into`
    names, by SHA-256.
    """
    spec = work.spec
    try:
        if spec.skip_if is not None and holds(spec.skip_if, results, loaded):
            return NodeEnd(state=NodeState.SKIPPED, reason="its skip_if holds")
        if spec.job is not None:
            inputs = look_into(_resolve(spec.job.inputs, results), loaded)
            return PlannedJob(make_job(run, work, spec.job.spec, inputs, out_dir))
        if spec.call is not None:
            return _plan_calls(spec.call, results, loaded)
    except ValidationError as error:
        return NodeEnd(state=NodeState.FAILED, reason=error.message)
    assert spec.ask is not None
    return spec.ask


def _resolve(value: Any, results: Mapping[str, Any]) -> Any:
    return resolve_value(value, results.__getitem__)


def look_into(value: Any, loaded: Mapping[str, Any]) -> Any:
    """Return a value in which each reference to a large result is replaced by that result. Raises
    ValidationError."""

    def find(large: LargeValue) -> Any:
        return follow_path(loaded[large.sha256], large.node, large.path)

    return put_values(value, list(walk_large(value)), find)


def holds(
    condition: Condition,
    results: Mapping[str, Any],
    loaded: Mapping[str, Any] = MappingProxyType({}),
) -> bool:
    """Return whether a condition holds, given the results of the node's parents."""
    value = look_into(_resolve(condition.value, results), loaded)
    found = bool(value) if condition.equals is UNSET else value == condition.equals
    return found is not condition.negate


def make_job(
    run: str, work: NodeWork, spec: JobSpec, inputs: dict[str, Any], out_dir: str
) -> JobSpec:
    """Return the spec of a node's job, with labels and variables that name its run and node."""
    env = {"HOLDFAST_RUN": run, "HOLDFAST_NODE": work.name}
    if out_dir:
        env["HOLDFAST_OUT_DIR"] = out_dir
    if inputs:
        env["HOLDFAST_INPUTS"] = encode(inputs)
        if holds_floats(env["HOLDFAST_INPUTS"]):
            raise ValidationError(
                "its inputs hold NaN or an infinity, which JSON has no form for: hand it on as text, "
                "or in a file in out_dir"
            )
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


def _plan_calls(call: CallWork, results: Mapping[str, Any], loaded: Mapping[str, Any]) -> Planned:
    args = _resolve(call.args, results)
    if call.over is UNSET:
        return PlannedCalls(call.spec, [_check_size(write_arguments(args))])
    if isinstance(call.over, dict) and NODE in call.over:
        node = read_reference(call.over).node
        if results[node] is SKIPPED:
            why = f"it maps over the result of node {node}, which was skipped"
            return NodeEnd(state=NodeState.SKIPPED, reason=why)
    items = _resolve(call.over, results)
    if isinstance(items, LargeValue):
        items = look_into(items, loaded)
    if not isinstance(items, list):
        raise ValidationError(f"it maps over a list, and was given {describe_value(items)}")
    if len(items) > MAX_MAP_ITEMS:
        raise ValidationError(f"it maps over {len(items)} items; the limit is {MAX_MAP_ITEMS}")
    if not items:
        return NodeEnd(
            state=NodeState.SUCCEEDED, result="[]", reason="it mapped over an empty list"
        )
    _check_size(write_arguments(args), len(items))
    return PlannedCalls(call.spec, [write_arguments({**args, call.item: item}) for item in items])


def _check_size(text: str, times: int = 1) -> str:
    size = len(text) * times
    if size > MAX_ARGS_BYTES:
        each = (
            f"{len(text)} characters for each of {times} calls"
            if times > 1
            else f"{size} characters"
        )
        raise ValidationError(
            f"its arguments are {each}; the limit is {MAX_ARGS_BYTES}: hand large values over as "
            "files in out_dir"
        )
    return text


def encode(value: Any) -> str:
    """Return `value` as JSON text."""
    return msgspec.json.encode(value).decode()


def find_out_dir(root: str, node: str) -> str:
    """Return a node's folder below its run's; empty where the run has none."""
    return f"{root}/{node}" if root else ""
