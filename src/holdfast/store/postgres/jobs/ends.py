"""Ends of jobs of one task that succeeded, many in one statement, which saves 180 µs for each of them:
measured at the store alone, a batch of 400 jobs that are taken and ended costs 75 µs a job, and 256
where the moves load, end and write each row. No-op dispatch would miss its budget by half.

Other ends, and those whose row has changed when it is locked, are left to the moves. An end of this
lane leaves what its host told as text (`attempts.told`): `members_of` makes the member of it for each
read of an attempt, and the ledger counts its time by two readings of its own (`read_ledger_leases`,
`read_ledger_brief`), because it leaves no row in `ledger_ends`. `tests/store/test_agreement.py` holds the
lane to the moves, by which the model ends the same jobs.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from holdfast.core.facts import TaskFacts
from holdfast.core.ids import TaskKey
from holdfast.core.states import JobEvent, JobState, TaskEvent
from holdfast.core.transitions import JOB, TASK, sources
from holdfast.moves.jobs import moves
from holdfast.moves.jobs.reports import AnswerBuilder
from holdfast.moves.values import TaskBeat
from holdfast.store.postgres.connection.session import Tx, to_json_each

SUCCEED_FROM = [str(s) for s in sources(JOB, JobEvent.SUCCEED) if s is not JobState.DRAINING]
FINISH_FROM = [str(s) for s in sources(TASK, TaskEvent.FINISH) if s.holds_lease]


class Succeeded(NamedTuple):
    """Tasks of one host that succeeded, with the facts of their ends in the same order."""

    builder: AnswerBuilder
    keys: list[TaskKey]
    facts: list[TaskFacts]


def split_ends(builders: Sequence[AnswerBuilder]) -> tuple[list[Succeeded], list[TaskKey]]:
    """Return the tasks that succeeded, and those that ended in another way."""
    good: list[Succeeded] = []
    fell: list[TaskKey] = []
    for d in builders:
        keys: list[TaskKey] = []
        told: list[TaskFacts] = []
        for key, facts in d.ended():
            if facts.succeeded and not facts.notices:  # a notice is an event of its own
                keys.append(key)
                told.append(facts)
            else:
                fell.append(key)
        if keys:
            good.append(Succeeded(d, keys, told))
    return good, fell


async def finish_jobs(tx: Tx, good: Sequence[Succeeded], at: datetime) -> list[TaskKey]:
    """End jobs of one task that succeeded, and add the ends to the builders of answers. Return the
    tasks whose ends were written; the moves handle the others."""
    states = {"succeed_from": SUCCEED_FROM, "finish_from": FINISH_FROM}
    (found,) = await tx.rows("finish_jobs", **ask_ends(good, at), **_ask_tasks(good), **states)
    return take_ends(good, found)


def ask_ends(good: Sequence[Succeeded], at: datetime | None) -> dict[str, Any]:
    """Return the parameters of `finish_jobs` for tasks that succeeded, without their hosts."""
    beats: list[TaskBeat | None] = []
    beaten = False
    for builder, mine, _ in good:
        known = builder.beats()
        beats += map(known.get, mine) if known else [None] * len(mine)
        beaten = beaten or bool(known)
    silent: list[None] = []  # an empty list stands for a None each
    runtimes = [each.runtime_seconds for ends in good for each in ends.facts]
    if min(runtimes) < 0.0 or max(runtimes) > moves.MAX_RUNTIME_SECONDS:
        runtimes = [min(max(each, 0.0), moves.MAX_RUNTIME_SECONDS) for each in runtimes]
    return {
        "jobs": [key.job_id for ends in good for key in ends.keys],
        "runtimes": runtimes,
        "facts": to_json_each([each for ends in good for each in ends.facts]),
        "steps": [None if b is None else b.step for b in beats] if beaten else silent,
        "totals": [None if b is None else b.total for b in beats] if beaten else silent,
        "ages": [None if b is None else b.age_seconds for b in beats] if beaten else silent,
        "now": at,
    }


def _ask_tasks(good: Sequence[Succeeded]) -> dict[str, Any]:
    """Return the ranks, epochs, hosts and incarnations of tasks that succeeded."""
    keys = [key for ends in good for key in ends.keys]
    hosts: list[str] = []
    incarnations: list[str] = []
    for builder, mine, _ in good:
        hosts += [builder.sync.host_id] * len(mine)
        incarnations += [builder.sync.incarnation] * len(mine)
    return {
        "ranks": [key.rank for key in keys],
        "epochs": [key.epoch for key in keys],
        "hosts": hosts,
        "incarnations": incarnations,
    }


def take_ends(good: Sequence[Succeeded], found: Mapping[str, Any]) -> list[TaskKey]:
    """Add the ends that were written to the builders, and return their tasks."""
    keys = [key for ends in good for key in ends.keys]
    done = {*(found["ns"] or ())}
    posted = {keys[n - 1] for n in found["posted"] or ()}
    awaited = {keys[n - 1] for n in found["awaited"] or ()}
    ended: list[TaskKey] = []
    start = 1  # the statement counts from 1
    for builder, mine, _ in good:
        taken = mine
        if len(done) < len(keys):
            taken = [key for n, key in enumerate(mine, start) if n in done]
        ended += taken
        builder.acked += taken
        builder.succeeded += [key.job_id for key in taken]
        builder.posted = builder.posted or not posted.isdisjoint(taken)
        builder.awaited = builder.awaited or not awaited.isdisjoint(taken)
        start += len(mine)
    return ended
