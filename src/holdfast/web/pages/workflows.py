"""Workflows: the runs, and one with its graph, which is laid out here."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from holdfast.client.methods.workflows import WorkflowMethods
from holdfast.core.workflows.records import NodeRecord
from holdfast.core.workflows.values import NodeKind
from holdfast.web.page import Page, PageRequest, read_items, together, write_yaml
from holdfast.wire.operations.acts import ActField
from holdfast.wire.workflows import NodeView

PAGE_RUNS = 50
MAX_RESULT_CHARS = 20_000
MAX_DRAWN = 300
"""The most nodes that are drawn as a graph; a larger run has its table alone."""
BOX_WIDTH, BOX_HEIGHT, GAP_X, GAP_Y = 168, 36, 32, 12


class NodeBox(msgspec.Struct, frozen=True, kw_only=True):
    """A node in the picture: its corner, in pixels."""

    node: NodeRecord
    x: int
    y: int


class GraphPicture(msgspec.Struct, frozen=True, kw_only=True):
    """A run's graph: boxes, and lines from a parent's right side to its child's left side."""

    boxes: list[NodeBox]
    lines: list[tuple[int, int, int, int]]
    width: int
    height: int


def draw_graph(nodes: Sequence[NodeRecord]) -> GraphPicture | None:
    """Lay out a graph in columns: a node stands one column right of its last parent. Returns None
    for a graph that is too large to be read."""
    if not nodes or len(nodes) > MAX_DRAWN:
        return None
    column: dict[int, int] = {}
    for node in sorted(nodes, key=lambda node: node.number):  # parents have smaller numbers
        column[node.number] = 1 + max((column.get(p, -1) for p in node.parents), default=-1)
    filled: dict[int, int] = {}
    places: dict[int, NodeBox] = {}
    for node in sorted(nodes, key=lambda node: node.number):
        at = column[node.number]
        row = filled.get(at, 0)
        filled[at] = row + 1
        places[node.number] = NodeBox(
            node=node, x=at * (BOX_WIDTH + GAP_X), y=row * (BOX_HEIGHT + GAP_Y)
        )
    lines = [
        (
            places[parent].x + BOX_WIDTH,
            places[parent].y + BOX_HEIGHT // 2,
            box.x,
            box.y + BOX_HEIGHT // 2,
        )
        for box in places.values()
        for parent in box.node.parents
        if parent in places
    ]
    width = (max(filled) + 1) * (BOX_WIDTH + GAP_X) - GAP_X
    height = max(filled.values()) * (BOX_HEIGHT + GAP_Y) - GAP_Y
    return GraphPicture(boxes=list(places.values()), lines=lines, width=width, height=height)


def make_answer(node: NodeView) -> list[ActField]:
    """Return the field in which a node's question is answered."""
    work = node.spec.ask
    choices = () if work is None else tuple(work.choices)
    kind = "choice" if choices else "area"
    return [ActField(name="answer", label="Answer", kind=kind, choices=choices, needed=True)]


async def _read_node(ask: PageRequest, run_id: str, name: str) -> dict[str, object]:
    """Return what the page shows of the node that was chosen. Raises NotFound."""
    reader = ask.reader
    node, why = await together(reader.workflow_node(run_id, name), reader.why_node(run_id, name))
    result = None if node.result is None else msgspec.json.format(msgspec.json.encode(node.result))
    spec = write_yaml(node.spec)
    text = None if result is None else result.decode()[:MAX_RESULT_CHARS]
    return {"node": node, "why": why, "result": text, "spec": spec}


async def show_all(ask: PageRequest) -> Page:
    """Make the page of all runs."""
    runs = await read_items(ask.reader, WorkflowMethods.workflows(ask.reader))
    values = {"runs": runs[:PAGE_RUNS]}
    return Page(
        template="workflows.html",
        title="Workflows",
        values=values,
        follows=("workflows",),
        every=10,
    )


async def show_one(ask: PageRequest) -> Page:
    """Make the page of one run. Raises NotFound."""
    reader, run_id, chosen = ask.reader, ask.params["run"], ask.query.get("node", "")
    run, nodes = await together(reader.workflow(run_id), reader.workflow_nodes(run_id))
    asked = [node.name for node in nodes if node.kind is NodeKind.ASK and node.started_at]
    open_names = [node.name for node in nodes if node.name in asked and not node.state.terminal]
    views = await together(*(reader.workflow_node(run_id, name) for name in open_names))
    values = {
        "run": run,
        "nodes": nodes,
        "graph": draw_graph(nodes),
        "questions": views,
        "answer_fields": make_answer,
        "chosen": chosen,
        **(await _read_node(ask, run_id, chosen) if chosen else {"node": None}),
    }
    return Page(
        template="workflow.html", title=run.name, values=values,
        follows=("workflows", "jobs", "calls"), every=0 if run.state.terminal else 3,
    )  # fmt: skip
