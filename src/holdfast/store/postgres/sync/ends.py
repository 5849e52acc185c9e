"""Ends of jobs of one task that succeeded, many in one statement."""

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import NamedTuple

from holdfast.core.facts import TaskFacts
from holdfast.core.ids import TaskKey
from holdfast.core.states import JobEvent, JobState, TaskEvent, TaskState
from holdfast.core.transitions import JOB, TASK, sources
from holdfast.moves import moves
from holdfast.moves.reports import Draft
from holdfast.moves.values import TaskBeat
from holdfast.store.postgres.connection.session import Tx, to_json, to_json_each

SUCCEED_FROM = [str(s) for s in sources(JOB, JobEvent.SUCCEED) if s is not JobState.DRAINING]
FINISH_FROM = [str(s) for s in sources(TASK, TaskEvent.FINISH)]


class Succeeded(NamedTuple):
    """Tasks of one host that succeeded, and how, in the same order."""

    draft: Draft
    keys: list[TaskKey]
    facts: list[TaskFacts]


async def finish_jobs(tx: Tx, good: Sequence[Succeeded], at: datetime) -> list[TaskKey]:
    """End jobs of one task that succeeded, and put that into the drafts. Return these tasks; the
    others are for the moves."""
    keys = [key for ends in good for key in ends.keys]
    hosts: list[str] = []
    incarnations: list[str] = []
    members: list[str] = []
    beats: list[TaskBeat | None] = []
    for draft, mine, facts in good:
        hosts += [draft.sync.host_id] * len(mine)
        incarnations += [draft.sync.incarnation] * len(mine)
        members += _list_members(draft.name, mine, facts)
        known = draft.beats()
        beats += map(known.get, mine) if known else [None] * len(mine)
    params = {
        "jobs": [key.job_id for key in keys],
        "ranks": [key.rank for key in keys],
        "epochs": [key.epoch for key in keys],
        "hosts": hosts,
        "incarnations": incarnations,
        "runtimes": [
            min(max(facts.runtime_seconds, 0.0), moves.MAX_RUNTIME_SECONDS)
            for ends in good
            for facts in ends.facts
        ],
        "members": members,
        "steps": [None if b is None else b.step for b in beats],
        "totals": [None if b is None else b.total for b in beats],
        "ages": [None if b is None else b.age_seconds for b in beats],
        "now": at,
        "succeed_from": SUCCEED_FROM,
        "finish_from": FINISH_FROM,
    }
    (found,) = await tx.rows("finish_jobs", **params)
    done = {n - 1 for n in found["ns"] or ()}
    posted = {keys[n - 1] for n in found["posted"] or ()}
    awaited = {keys[n - 1] for n in found["awaited"] or ()}
    ended: list[TaskKey] = []
    start = 0
    for draft, mine, _ in good:
        taken = [key for n, key in enumerate(mine, start) if n in done]
        ended += taken
        draft.acked += taken
        draft.succeeded += [key.job_id for key in taken]
        draft.posted = draft.posted or not posted.isdisjoint(taken)
        draft.awaited = draft.awaited or not awaited.isdisjoint(taken)
        start += len(mine)
    return ended


def _list_members(host: str, keys: Sequence[TaskKey], facts: Sequence[TaskFacts]) -> Iterator[str]:
    """Return what the attempt of each task keeps, in JSON. Only what differs is written anew."""
    kept = f'"host":{to_json(host)},"state":"{TaskState.DONE}","exit_code":0,"facts":'
    for key, found in zip(keys, to_json_each(facts), strict=True):
        yield f'[{{"rank":{key.rank},{kept}{found}}}]'
