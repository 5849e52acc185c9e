"""A run drawn for a person."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import msgspec

from holdfast.cli.workflows.tree import draw_mermaid, draw_tree, list_changes
from holdfast.core.workflows.records import NodeRecord
from holdfast.core.workflows.values import NodeKind, NodeState, RunState
from holdfast.wire.workflows import RunView

NOW = datetime(2026, 3, 1, tzinfo=UTC)


def node(number: int, name: str, state: str, *parents: int, reason: str = "") -> NodeRecord:
    return NodeRecord(
        run="r", number=number, name=name, kind=NodeKind.JOB, state=NodeState(state),
        parents=parents, reason=reason,
        started_at=NOW - timedelta(seconds=90) if state in ("started", "succeeded") else None,
        ended_at=NOW - timedelta(seconds=60) if state == "succeeded" else None,
    )  # fmt: skip


def test_each_node_stands_below_the_last_it_waits_for() -> None:
    nodes = [
        node(0, "decode", "succeeded"),
        node(1, "left", "started", 0),
        node(2, "right", "failed", 0, reason="it broke"),
        node(3, "sheet", "waiting", 1, 2),
        node(4, "alone", "skipped"),
    ]
    assert draw_tree(nodes, NOW) == [
        "├─ ✓ decode  succeeded 30s",
        "│  ├─ ▶ left  started 1m30s",
        "│  └─ ✗ right  failed: it broke",
        "│     └─ · sheet  waiting  (after left, right)",
        "└─ – alone  skipped",
    ]


def test_a_change_is_told_once_and_a_question_with_its_answer() -> None:
    run = RunView(
        id="r1", name="w", project="p", state=RunState.RUNNING, reason="", on_failure="cancel_all",
        nodes=3, unended=2, labels={}, created_at=NOW,
        counts={"succeeded": 1, "started": 2, "failed": 0},
    )  # fmt: skip
    ask = msgspec.structs.replace(node(1, "sure", "started", 0), kind=NodeKind.ASK)
    nodes = [node(0, "decode", "succeeded"), ask, node(2, "later", "waiting", 1)]
    told: dict[int, str] = {}
    assert list(list_changes(run, nodes, told)) == [
        "r1: decode succeeded",
        "r1: sure asks: holdfast workflow answer r1 sure ANSWER",
    ]
    nodes[1] = msgspec.structs.replace(ask, reason="publish it? (yes, no)")
    hint = "holdfast workflow answer r1 sure ANSWER"
    assert list(list_changes(run, nodes[1:2], {})) == [
        f"r1: sure asks publish it? (yes, no): {hint}"
    ]
    assert "publish it? (yes, no)" in draw_tree(nodes, NOW)[1]
    nodes[2] = node(2, "later", "started", 1)
    assert list(list_changes(run, nodes, told)) == ["r1: later started"]
    assert list(list_changes(run, (), told)) == ["r1: 1 succeeded, 2 started"]


def test_many_children_are_counted_and_those_that_matter_are_shown() -> None:
    nodes = [node(0, "top", "succeeded")]
    nodes += [node(n, f"n{n}", "succeeded" if n != 50 else "failed", 0) for n in range(1, 101)]
    drawn = draw_tree(nodes, NOW)
    assert len(drawn) == 13
    assert any("n50  failed" in line for line in drawn)
    assert drawn[-1] == "   └─ … 89 more: 89 succeeded"


def test_a_large_run_is_cut_and_a_mermaid_diagram_names_every_node() -> None:
    nodes = [node(n, f"n{n}", "waiting", *([n - 1] if n else [])) for n in range(500)]
    drawn = draw_tree(nodes, NOW)
    assert len(drawn) == 401
    assert drawn[-1] == "… 500 nodes in all; --json shows each"
    text = draw_mermaid(nodes[:2])
    assert "n0 --> n1" in text
    assert 'n1["n1<br/>job"]:::waiting' in text
