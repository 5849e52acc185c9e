"""Ends of jobs of one task that succeeded, many in one statement."""

from collections.abc import Sequence
from datetime import datetime

from holdfast.core.facts import TaskFacts
from holdfast.core.ids import TaskKey
from holdfast.core.states import JobEvent, JobState, TaskEvent, TaskState
from holdfast.core.transitions import JOB, TASK, sources
from holdfast.moves import moves
from holdfast.moves.reports import Draft
from holdfast.store.postgres.connection.session import Tx, to_json

SUCCEED_FROM = [str(s) for s in sources(JOB, JobEvent.SUCCEED) if s is not JobState.DRAINING]
FINISH_FROM = [str(s) for s in sources(TASK, TaskEvent.FINISH)]


async def finish_jobs(
    tx: Tx, good: Sequence[tuple[Draft, TaskKey, TaskFacts]], at: datetime
) -> set[TaskKey]:
    """End jobs of one task that succeeded, put that into the drafts, and return the tasks. What is
    left out is for the moves."""
    beats = [d.beats().get(key) for d, key, _ in good]
    params = {
        "jobs": [key.job_id for _, key, _ in good],
        "ranks": [key.rank for _, key, _ in good],
        "epochs": [key.epoch for _, key, _ in good],
        "hosts": [d.sync.host_id for d, _, _ in good],
        "incarnations": [d.sync.incarnation for d, _, _ in good],
        "runtimes": [
            min(max(facts.runtime_seconds, 0.0), moves.MAX_RUNTIME_SECONDS) for _, _, facts in good
        ],
        "members": [_to_members(d, key, facts) for d, key, facts in good],
        "steps": [None if b is None else b.step for b in beats],
        "totals": [None if b is None else b.total for b in beats],
        "ages": [None if b is None else b.age_seconds for b in beats],
        "now": at,
        "succeed_from": SUCCEED_FROM,
        "finish_from": FINISH_FROM,
    }
    (found,) = await tx.rows("finish_jobs", **params)
    taken: set[TaskKey] = set()
    for n in found["ns"] or ():
        d, key, _ = good[n - 1]
        taken.add(key)
        d.acked.append(key)
        d.succeeded.append(key.job_id)
    for n in found["posted"] or ():
        good[n - 1][0].posted = True
    for n in found["awaited"] or ():
        good[n - 1][0].awaited = True
    return taken


def _to_members(draft: Draft, key: TaskKey, facts: TaskFacts) -> str:
    return to_json(
        [
            {
                "rank": key.rank,
                "host": draft.name,
                "state": TaskState.DONE,
                "exit_code": 0,
                "facts": facts,
            }
        ]
    )
