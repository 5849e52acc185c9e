"""Each edge of the states of jobs, tasks and attempts has the writers that `core/transitions.py` names,
and no other."""

from __future__ import annotations

import re

import pytest

from holdfast.core import transitions
from holdfast.store.postgres.connection.queries import QUERIES

WRITERS = {
    "jobs": {"insert_jobs", "reserve_jobs", "finish_jobs", "write_jobs"},
    "tasks": {"reserve_jobs", "finish_jobs", "write_tasks", "rewrite_tasks", "clear_tasks"},
    "attempts": {"reserve_jobs", "finish_jobs", "write_attempts"},
}
FORGETS = {"prune_jobs", "prune_attempts"}
"""Statements that delete what has ended, and nothing else."""


def writes_state(text: str, table: str) -> bool:
    """Return whether a statement begins, ends or changes a row's state."""
    changes = re.findall(
        rf"\bupdate {table}\b[\w ]*\bset\b(.*?)(?:\bfrom\b|\bwhere\b)", text, re.DOTALL
    )
    changed = any(re.search(r"(?:^|[\s,(])state = ", columns) for columns in changes)
    return changed or bool(re.search(rf"\b(?:insert into|delete from) {table}\b", text))


@pytest.mark.parametrize("table", WRITERS)
def test_a_state_is_written_by_the_statements_that_the_table_names(table: str) -> None:
    found = {name for name, text in QUERIES.items() if writes_state(text.decode(), table)}
    assert found - FORGETS == WRITERS[table]
    for name in WRITERS[table]:
        assert f"`{name}`" in (transitions.__doc__ or ""), f"the essay does not name {name}"
