"""What a node turns into when it may start."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from holdfast.core.workflows.advance import NodeEnd
from holdfast.core.workflows.plan_start import PlannedCalls, PlannedJob, plan_start
from holdfast.core.workflows.records import NodeWork
from holdfast.core.workflows.values import AskWork, NodeSpec, NodeState

CALL = {"function": "mytasks:edit"}


def plan(results: dict[str, Any] | None = None, out_dir: str = "", **fields: Any) -> Any:
    spec = msgspec.convert({"name": "it", **fields}, NodeSpec)
    work = NodeWork(number=3, name="it", kind=spec.kind, state=NodeState.READY, spec=spec)
    return plan_start("run0", work, results or {}, out_dir)


def ref(node: str, *path: str | int) -> dict[str, Any]:
    return {"$node": node, "path": list(path)}


def test_references_are_replaced_wherever_they_stand() -> None:
    args = {
        "a": [1, {"deep": ref("up", "x", 1)}],
        "b": ref("up"),
        "c": {"$value": {"$node": "own"}},
    }
    found = plan({"up": {"x": [1, 2]}}, call={"spec": CALL, "args": args})
    assert isinstance(found, PlannedCalls)
    (text,) = found.args
    assert msgspec.json.decode(text) == {
        "a": [1, {"deep": 2}],
        "b": {"x": [1, 2]},
        "c": {"$node": "own"},
    }


def test_a_map_has_a_call_for_each_item_and_an_empty_one_is_over() -> None:
    call = {"spec": CALL, "over": ref("up"), "item": "image", "args": {"style": "ink"}}
    found = plan({"up": ["p", "q"]}, call=call)
    assert found.args == ['{"style":"ink","image":"p"}', '{"style":"ink","image":"q"}']
    assert plan({"up": []}, call=call) == NodeEnd(
        state=NodeState.SUCCEEDED, result="[]", reason="it mapped over an empty list"
    )
    assert "was given a text" in plan({"up": "pq"}, call=call).reason


@pytest.mark.parametrize(
    ("condition", "skipped"),
    [
        ({"value": ref("up", "n")}, True),
        ({"value": ref("up", "none")}, False),
        ({"value": ref("up", "n"), "equals": 3}, True),
        ({"value": ref("up", "n"), "equals": None}, False),
        ({"value": ref("up", "none"), "equals": None}, True),
        ({"value": ref("up", "n"), "equals": 4, "negate": True}, True),
    ],
)
def test_a_condition_skips(condition: dict[str, Any], skipped: bool) -> None:
    found = plan({"up": {"n": 3, "none": []} | ({"none": None} if condition.get("equals", 0) is None
                  else {})}, ask={"prompt": "go?"}, skip_if=condition)  # fmt: skip
    assert (isinstance(found, NodeEnd) and found.state is NodeState.SKIPPED) is skipped
    assert isinstance(found, AskWork) is not skipped


def test_a_job_knows_its_run_its_folder_and_its_inputs() -> None:
    job = {
        "spec": {"argv": ["true"], "env": {"A": "1"}, "labels": {"l": "m"}},
        "inputs": {"x": ref("up")},
    }
    found = plan({"up": "é"}, "/out/run0/it", job=job)
    assert isinstance(found, PlannedJob)
    assert found.spec.env == {
        "A": "1",
        "HOLDFAST_RUN": "run0",
        "HOLDFAST_NODE": "it",
        "HOLDFAST_OUT_DIR": "/out/run0/it",
        "HOLDFAST_INPUTS": '{"x":"é"}',
    }
    assert found.spec.labels == {"l": "m", "workflow/run": "run0", "workflow/node": "it"}
    assert found.spec.name == "it"
    large = plan({"up": "x" * 200_000}, job=job)
    assert "too many for an environment" in large.reason


def test_a_result_in_the_blob_store_is_not_looked_into() -> None:
    blob = {"$blob": "0" * 64, "size": 300_000}
    for result in (blob, ["small", blob]):
        found = plan({"up": result}, call={"spec": CALL, "args": {"x": ref("up")}})
        assert found.state is NodeState.FAILED
        assert "node up is 300000 bytes" in found.reason
