"""What a node turns into when it may start."""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec
import pytest

from holdfast.core.calls.large import LargeValue, fill_arguments
from holdfast.core.workflows.advance import NodeEnd
from holdfast.core.workflows.plan_start import (
    MAX_LOOKED_BYTES,
    PlannedCalls,
    PlannedJob,
    list_looked_into,
    plan_start,
)
from holdfast.core.workflows.records import NodeWork
from holdfast.core.workflows.references import SKIPPED
from holdfast.core.workflows.values import AskWork, NodeSpec, NodeState
from holdfast.errors import ValidationError

CALL = {"function": "mytasks:edit"}


def plan(
    results: dict[str, Any] | None = None,
    out_dir: str = "",
    loaded: dict[str, Any] | None = None,
    **fields: Any,
) -> Any:
    spec = msgspec.convert({"name": "it", **fields}, NodeSpec)
    work = NodeWork(number=3, name="it", kind=spec.kind, state=NodeState.READY, spec=spec)
    return plan_start("run0", work, results or {}, out_dir, loaded or {})


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


BLOB = LargeValue("up", "0" * 64, 300_000)


def test_a_large_result_is_an_argument_by_reference_wherever_it_stands() -> None:
    args = {"x": ref("up"), "y": [1, ref("up", "frames", 2)], "z": ref("many", 1, "a")}
    found = plan({"up": BLOB, "many": ["small", BLOB]}, call={"spec": CALL, "args": args})
    whole = {"frames": ["p", "q", "r"], "a": 7}
    (text,) = found.args
    assert len(text) < 1000
    data = msgspec.json.encode(whole)
    sha256 = hashlib.sha256(data).hexdigest()
    filled = fill_arguments(text.replace("0" * 64, sha256), {sha256: data}.__getitem__)
    assert msgspec.json.decode(filled) == {"x": whole, "y": [1, "r"], "z": 7}


def test_large_items_go_by_reference_and_a_large_list_is_looked_into() -> None:
    call = {"spec": CALL, "over": ref("up", "items"), "item": "image", "args": {"all": ref("up")}}
    spec = msgspec.convert({"name": "it", "call": call}, NodeSpec)
    (looked,) = list_looked_into(spec, {"up": BLOB})
    assert (looked.sha256, looked.path) == (BLOB.sha256, ("items",))
    found = plan({"up": BLOB}, call=call, loaded={BLOB.sha256: {"items": [1, 2]}})
    assert [msgspec.json.decode(text)["$args"] for text in found.args] == [
        {"all": None, "image": 1},
        {"all": None, "image": 2},
    ]
    fan = {"spec": CALL, "over": ref("up"), "item": "image"}
    spec = msgspec.convert({"name": "it", "call": fan}, NodeSpec)
    results = {"up": ["small", BLOB]}
    assert list_looked_into(spec, results) == []
    small, large = plan(results, call=fan).args
    assert msgspec.json.decode(small) == {"image": "small"}
    assert msgspec.json.decode(large)["$large"][0][0] == ["image"]


def test_conditions_and_inputs_look_into_large_results() -> None:
    job = {"spec": {"argv": ["true"]}, "inputs": {"n": ref("up", "n")}}
    spec = msgspec.convert({"name": "it", "job": job, "skip_if": {"value": ref("up")}}, NodeSpec)
    assert {large.path for large in list_looked_into(spec, {"up": BLOB})} == {(), ("n",)}
    found = plan({"up": BLOB}, job=job, loaded={BLOB.sha256: {"n": 3}})
    assert found.spec.env["HOLDFAST_INPUTS"] == '{"n":3}'
    lost = plan({"up": BLOB}, job=job, loaded={BLOB.sha256: {"m": 3}})
    assert "the result of node up has no ['n']" in lost.reason
    huge = msgspec.structs.replace(BLOB, size=MAX_LOOKED_BYTES + 1)
    with pytest.raises(ValidationError, match="the result of node up is"):
        list_looked_into(spec, {"up": huge})


def test_what_all_calls_of_a_map_share_has_a_limit() -> None:
    call = {"spec": CALL, "over": ref("up"), "item": "n", "args": {"table": ref("table")}}
    found = plan({"up": list(range(2000)), "table": "x" * 100_000}, call=call)
    assert found.state is NodeState.FAILED
    assert "for each of 2000 calls" in found.reason


def test_what_a_skipped_node_left_is_null_and_a_map_over_it_is_skipped() -> None:
    gone = {"up": SKIPPED, "there": [1]}
    args = {"whole": ref("up"), "part": ref("up", "rows", 0), "other": ref("there", 0)}
    found = plan(gone, call={"spec": CALL, "args": args})
    assert [msgspec.json.decode(text) for text in found.args] == [
        {"whole": None, "part": None, "other": 1}
    ]
    for over in (ref("up"), ref("up", "rows")):
        assert plan(gone, call={"spec": CALL, "over": over, "item": "x"}) == NodeEnd(
            state=NodeState.SKIPPED, reason="it maps over the result of node up, which was skipped"
        )
    listed = plan(gone, call={"spec": CALL, "over": [ref("up"), 2], "item": "x"})
    assert [msgspec.json.decode(text) for text in listed.args] == [{"x": None}, {"x": 2}]
    null = plan({"up": None}, call={"spec": CALL, "over": ref("up"), "item": "x"})
    assert null.state is NodeState.FAILED
    condition = {"value": ref("up", "ok"), "negate": True}
    assert plan(gone, call={"spec": CALL}, skip_if=condition).state is NodeState.SKIPPED


def test_a_job_is_not_given_a_number_that_json_has_no_form_for() -> None:
    results = {"up": {"loss": {"$float": "nan"}}}
    job = {"spec": {"argv": ["x"]}, "inputs": {"loss": ref("up", "loss")}}
    assert "NaN" in plan(results, job=job).reason
