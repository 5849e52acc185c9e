"""Each edge of a machine has the writers that its table names, and no other: the statements of the store
that change a state, and the functions of the moves that decide on it."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.core.sessions.transitions import SESSION
from holdfast.core.states import (
    AttemptEvent,
    HostEvent,
    InstanceEvent,
    JobEvent,
    OutputsEvent,
    TaskEvent,
)
from holdfast.core.transitions import ATTEMPT, HOST, INSTANCE, JOB, OUTPUTS, TASK
from holdfast.core.webhooks.transitions import DELIVERY, WEBHOOK, WebhookEvent
from holdfast.core.workflows.transitions import NODE, RUN
from holdfast.core.workflows.values import RunEvent
from holdfast.moves import registration
from holdfast.store.postgres.connection.queries import QUERIES, load_schema

SOURCE = Path(holdfast.__file__).parent
MACHINES: dict[str, Any] = {
    "jobs": JOB, "tasks": TASK, "attempts": ATTEMPT, "hosts": HOST, "instances": INSTANCE, "outputs": OUTPUTS,
    "workflow_runs": RUN, "workflow_nodes": NODE, "sessions": SESSION, "webhooks": WEBHOOK, "webhook_deliveries": DELIVERY,
}  # fmt: skip
BEGINS = {
    "jobs": {"insert_jobs"}, "tasks": {"reserve_jobs"}, "attempts": {"reserve_jobs"},
    "hosts": {"insert_intents"}, "instances": {"insert_intents"}, "outputs": set(),
    "workflow_runs": {"insert_run"}, "workflow_nodes": {"insert_nodes"}, "sessions": {"insert_session"},
    "webhooks": {"insert_webhook"}, "webhook_deliveries": {"insert_deliveries"},
}  # fmt: skip
"""Statements that begin a row."""
FORGETS = {
    "prune_jobs", "prune_attempts", "prune_instances", "prune_runs", "prune_sessions", "prune_deliveries",
    "drop_orphan_outputs", "delete_webhook",
}  # fmt: skip
"""Statements that delete what has ended, or is not wanted any more, and nothing else."""
UNTABLED = {
    "call_results": "a call's end is written once; the essay of core.transitions says why it has no table"
}
"""Table with states → why no machine names its edges."""
MOVES = {"move_job": (JOB, JobEvent), "move_task": (TASK, TaskEvent), "move_attempt": (ATTEMPT, AttemptEvent)}  # fmt: skip


def writes_state(text: str, table: str) -> bool:
    """Return whether a statement begins, ends or changes a row's state."""
    changes = re.findall(
        rf"\bupdate {table}\b[\w ]*\bset\b(.*?)(?:\bfrom\b|\bwhere\b)", text, re.DOTALL
    )
    changed = any(re.search(r"(?:^|[\s,(])state = ", columns) for columns in changes)
    return changed or bool(re.search(rf"\b(?:insert into|delete from) {table}\b", text))


def named(machine: Any, part: int, *events: Any) -> set[str]:
    """Return the statements (part 0) or the functions (part 1) that the edges of a machine name."""
    edges = [edge for (_, event), edge in machine.items() if not events or event in events]
    parts = [(*edge.writer.split(": "), "")[part] for edge in edges]
    return {name for text in parts for name in text.split(", ") if name}


@pytest.mark.parametrize("table", MACHINES)
def test_a_state_is_written_by_the_statements_that_the_table_names(table: str) -> None:
    found = {name for name, text in QUERIES.items() if writes_state(text.decode(), table)}
    assert found - FORGETS == named(MACHINES[table], 0) | BEGINS[table]


def test_each_table_with_states_has_its_machine() -> None:
    made = re.findall(r"create table (\w+) \((.*?)\n\)", load_schema(), re.DOTALL)
    states = {name for name, columns in made if re.search(r"^ *state +\w+ .*check", columns, re.M)}
    assert states == MACHINES.keys() | UNTABLED.keys()


def read_moves() -> dict[tuple[str, str], set[str]]:
    """Return which functions of the moves ask for each event; "" for one that they are told."""
    found: dict[tuple[str, str], set[str]] = {}
    for path in sorted((SOURCE / "moves").rglob("*.py")):
        for function in ast.walk(ast.parse(path.read_text())):
            if not isinstance(function, ast.FunctionDef):
                continue
            for call in ast.walk(function):
                if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)):
                    continue
                if call.func.attr not in MOVES:
                    continue
                said = {
                    node.attr
                    for given in call.args
                    for node in ast.walk(given)
                    if isinstance(node, ast.Attribute)
                    and isinstance(node.value, ast.Name)
                    and node.value.id == MOVES[call.func.attr][1].__name__
                }
                for event in said or {""}:
                    found.setdefault((call.func.attr, event), set()).add(
                        f"{path.stem}.{function.name}"
                    )
    return found


@pytest.mark.parametrize("move", MOVES)
def test_an_edge_is_decided_by_the_functions_that_the_table_names(move: str) -> None:
    machine, events = MOVES[move]
    found = read_moves()
    told = found.get((move, ""), set())
    assert told == ({"drains.complete_drain"} if move == "move_job" else set()), (
        "it writes what the completer decided"
    )
    for event in events:
        assert found.get((move, event.name), set()) == named(machine, 1, event) - told, event


NAMED = {
    HostEvent: HOST, InstanceEvent: INSTANCE, OutputsEvent: OUTPUTS, RunEvent: RUN, WebhookEvent: WEBHOOK,
}  # fmt: skip
"""Machines whose deciders name the event where they ask for it."""


def read_names() -> dict[tuple[str, str], set[str]]:
    """Return (class, event) → the functions that name the event, except those within functions."""
    found: dict[tuple[str, str], set[str]] = {}
    for path in sorted(SOURCE.rglob("*.py")):
        if path.name in ("states.py", "transitions.py"):
            continue
        tree = ast.parse(path.read_text())
        owners = [
            *tree.body,
            *(n for c in tree.body if isinstance(c, ast.ClassDef) for n in c.body),
        ]
        for owner in owners:
            if isinstance(owner, ast.FunctionDef | ast.AsyncFunctionDef):
                for node in ast.walk(owner):
                    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                        found.setdefault((node.value.id, node.attr), set()).add(
                            f"{path.stem}.{owner.name}"
                        )
    return found


@pytest.mark.parametrize("events", NAMED)
def test_an_event_is_asked_for_by_the_functions_that_the_table_names(events: Any) -> None:
    found = read_names()
    for event in events:
        asked = {"registration.move_state"} if event in registration.ASKED else set()
        here = found.get((events.__name__, event.name), set()) | asked
        assert here == named(NAMED[events], 1, event), event


def test_a_state_moves_in_one_place_of_a_process() -> None:
    steps = {
        path.relative_to(SOURCE).as_posix()
        for path in SOURCE.rglob("*.py")
        if re.search(r"\bstep\((?:JOB|TASK|ATTEMPT|AGENT_TASK),", path.read_text())
    }
    assert steps == {"moves/jobs/moves.py", "agent/tasks/task.py"}
