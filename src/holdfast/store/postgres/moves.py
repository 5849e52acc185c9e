"""Load and lock the rows of a move, and write its changes."""

from collections.abc import Collection, Iterable, Sequence
from datetime import datetime
from typing import Any

import msgspec

from holdfast.moves.jobs.moves import Moves
from holdfast.moves.rows import JobRow, NewEvent, TaskRow
from holdfast.store.clock import ACTS_FOR
from holdfast.store.postgres.connection.session import Rows, Tx, to_json

Step = tuple[str, dict[str, Any]]


async def load_moves(tx: Tx, job_ids: Collection[str], now: datetime) -> Moves:
    """Lock the jobs in id order, then their tasks, and return them ready to be moved."""
    if not job_ids:
        return Moves(now, (), ())
    return take_moves(now, *await tx.many(*ask_moves(job_ids)))


def ask_moves(job_ids: Collection[str]) -> list[Step]:
    """Return the statements that lock and read the rows of a move."""
    params = {"ids": sorted(set(job_ids))}
    return [("lock_jobs", params), ("lock_tasks", params)]


def take_moves(now: datetime, jobs: Rows, tasks: Rows) -> Moves:
    """Return the rows that the queries of `ask_moves` have read, ready for moves."""
    return Moves(now, msgspec.convert(jobs, list[JobRow]), msgspec.convert(tasks, list[TaskRow]))


async def write_moves(tx: Tx, m: Moves, *, last: bool = False) -> None:
    """Write the changes that `m` gathered.

    last: the transaction is committed in the same round trip, so no statement may follow.
    """
    steps = list_writes(m)
    if steps and last:
        await tx.last(*steps)
    elif len(steps) == 1:
        name, given = steps[0]
        await tx.run(name, **given)
    elif steps:
        await tx.many(*steps)
    tx.drain_news += m.drain_news


def list_writes(m: Moves) -> list[Step]:
    """Return the statements that write what `m` gathered, at most one per table."""
    steps: list[Step] = []
    if m.lease_ends:
        ends = {"ids": list({end.job_id for end in m.lease_ends}), "now": m.now}
        steps.append(("write_ledger_ends", {**ends, "rows": to_json(m.lease_ends)}))
    if m.cleared:
        steps.append(("clear_tasks", {"ids": sorted(m.cleared)}))
    ordinary = [task for key, task in m.changed_tasks.items() if key not in m.rewritten]
    if ordinary:
        steps.append(("write_tasks", _give(ordinary, [t.job_id for t in ordinary])))
    if m.rewritten:
        moved = list(m.rewritten.values())
        steps.append(("rewrite_tasks", _give(moved, [t.job_id for t in moved])))
    if m.seated:
        steps.append(("write_replacements", {"rows": to_json(m.seated)}))
    if m.changed_jobs:
        steps.append(("write_jobs", _give(list(m.changed_jobs.values()), m.changed_jobs)))
    if m.attempts:
        given = _give(list(m.attempts.values()), [job_id for job_id, _ in m.attempts])
        steps.append(("write_attempts", given))
    if m.ended_work:
        steps.append(("write_posts", {"rows": to_json(m.ended_work), "now": m.now}))
    if m.events:
        steps.append(_step_of_events(m.events, m.now))
    return steps


def _give(rows: Sequence[object], job_ids: Iterable[str]) -> dict[str, Any]:
    """Return parameters of a statement: the rows, and the ids of the jobs by which the rows are
    found."""
    return {"rows": to_json(rows), "ids": list(dict.fromkeys(job_ids))}


async def write_events(tx: Tx, events: list[NewEvent], now: datetime) -> None:
    """Write events that belong to no job's move."""
    if events:
        name, given = _step_of_events(events, now)
        await tx.run(name, **given)


def _step_of_events(events: Sequence[NewEvent], now: datetime) -> Step:
    """Return the statement that writes events, with the user whose call writes them (BY-1)."""
    return "write_events", {"now": now, "rows": to_json(events), "by": ACTS_FOR.get()}
