"""A run drawn for a person: a tree with the states of its nodes, or a Mermaid diagram. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from holdfast.cli.output import paint
from holdfast.core.states import HUES, Hue
from holdfast.core.words import count_of, split_span

if TYPE_CHECKING:
    from holdfast.core.workflows.records import NodeRecord, RunRecord
    from holdfast.wire.workflows import RunView

MAX_CHILDREN = 12
MAX_LINES = 400
_MARKS = {
    "waiting": "·",
    "ready": "○",
    "started": "▶",
    "succeeded": "✓",
    "skipped": "–",
    "failed": "✗",
    "cancelled": "⊘",
}
_CLASSES = {
    Hue.STARTING: "fill:#d6e6f7,stroke:#2f6fb0",
    Hue.RUNNING: "fill:#d7f5dd,stroke:#1c7c4a",
    Hue.FAILED: "fill:#fadbd8,stroke:#c02f2f",
    Hue.DONE: "fill:#e6efe9,stroke:#4f7a62",
    Hue.GONE: "fill:#eeeeee,stroke:#74787c",
}


def draw_run(run: RunRecord, nodes: Sequence[NodeRecord], now: datetime) -> str:
    """Draw a run: its name and state, then its nodes below those that they wait for."""
    counts = Counter(node.state.value for node in nodes)
    said = ", ".join(f"{counts[state]} {state}" for state in _MARKS if counts[state])
    head = f"{run.name}  {run.id}  {paint(run.state.value)}" + (
        f"  of {run.owner}" if run.owner else ""
    )
    reason = [run.reason] if run.reason else []
    return "\n".join([head, *reason, said, *draw_tree(nodes, now)])


def list_changes(run: RunView, nodes: Sequence[NodeRecord], told: dict[int, str]) -> Iterator[str]:
    """Yield a line for each node whose state is not the one in `told`, and put it there; without
    nodes, because there are too many, one line with the count of each state."""
    if not nodes:
        yield f"{run.id}: " + ", ".join(f"{n} {state}" for state, n in run.counts.items() if n)
    for node in nodes:
        state = node.state.value
        if state != told.get(node.number, "waiting"):
            asks = node.kind.value == "ask" and state == "started"
            answer = f"holdfast workflow answer {run.id} {node.name} ANSWER"
            hint = f" {node.reason}".rstrip() + f": {answer}" if asks else ""
            yield f"{run.id}: {node.name} {'asks' if asks else state}{hint}"
        told[node.number] = state


def draw_tree(nodes: Sequence[NodeRecord], now: datetime) -> list[str]:
    """Draw the nodes, each below the last of those it waits for; the others are named beside it."""
    by_number = {node.number: node for node in nodes}
    below = _place(nodes)
    lines: list[str] = []
    for line in _draw_level(below.get(-1, []), below, by_number, now, ""):
        if len(lines) == MAX_LINES:
            lines.append(f"… {count_of(len(nodes), 'node')} in all; --json shows each")
            break
        lines.append(line)
    return lines


def _place(nodes: Sequence[NodeRecord]) -> dict[int, list[NodeRecord]]:
    """Return each node's children in the drawn tree; the children of -1 have no parent."""
    depths: dict[int, int] = {}
    below: dict[int, list[NodeRecord]] = {}
    todo = {node.number: node for node in nodes}
    while todo:
        done = [n for n, node in todo.items() if not any(p in todo for p in node.parents)]
        for number in done or list(todo):
            node = todo.pop(number)
            known = [p for p in node.parents if p in depths]
            under = max(known, key=lambda p: (depths[p], p), default=-1)
            depths[number] = depths.get(under, -1) + 1
            below.setdefault(under, []).append(node)
    return below


def _draw_level(
    level: Sequence[NodeRecord],
    below: Mapping[int, Sequence[NodeRecord]],
    by_number: Mapping[int, NodeRecord],
    now: datetime,
    indent: str,
) -> Iterator[str]:
    shown = list(level)
    left: list[NodeRecord] = []
    if len(shown) > MAX_CHILDREN:
        busy = [n for n in shown if n.state.value in ("started", "failed") or n.number in below]
        kept = {n.number for n in (*busy, *shown)[: MAX_CHILDREN - 1]}
        left = [n for n in shown if n.number not in kept]
        shown = [n for n in shown if n.number in kept]
    for place, node in enumerate(shown):
        last = place == len(shown) - 1 and not left
        under = below.get(node.number, [])
        yield f"{indent}{'└─ ' if last else '├─ '}{_say_node(node, by_number, now)}"
        yield from _draw_level(under, below, by_number, now, indent + ("   " if last else "│  "))
    if left:
        counts = Counter(node.state.value for node in left)
        said = ", ".join(f"{counts[state]} {state}" for state in _MARKS if counts[state])
        yield f"{indent}└─ … {len(left)} more: {said}"


def _say_node(node: NodeRecord, by_number: Mapping[int, NodeRecord], now: datetime) -> str:
    state = node.state.value
    took = ""
    if node.started_at is not None:
        took = f" {split_span(((node.ended_at or now) - node.started_at).total_seconds())}"
    text = f"{_MARKS[state]} {node.name}  {paint(state)}{took}"
    if len(node.parents) > 1:
        names = [by_number[p].name for p in node.parents[:4] if p in by_number]
        more = f" and {len(node.parents) - 4} more" if len(node.parents) > 4 else ""
        text += f"  (after {', '.join(names)}{more})"
    asks = node.kind.value == "ask" and state == "started"
    if (asks or state in ("failed", "cancelled", "skipped")) and node.reason:
        text += f": {node.reason}"
    return text


def draw_mermaid(nodes: Sequence[NodeRecord]) -> str:
    """Draw a Mermaid flowchart of the nodes, coloured by their states."""
    lines = ["flowchart TD"]
    for node in nodes:
        opening, closing = ("{{", "}}") if node.kind.value == "ask" else ("[", "]")
        label = f'"{node.name}<br/>{node.kind.value}"'
        lines.append(f"    n{node.number}{opening}{label}{closing}:::{node.state.value}")
    lines += [f"    n{parent} --> n{node.number}" for node in nodes for parent in node.parents]
    styles = {state: _CLASSES.get(HUES[state]) for state in _MARKS}
    lines += [f"    classDef {state} {style}" for state, style in styles.items() if style]
    return "\n".join(lines)
