"""Falls that are decided with their ends, over the wire."""

from __future__ import annotations

import psycopg
import pytest

from holdfast.controller.sync.falls import find_fall
from holdfast.core.facts import TaskFacts
from holdfast.core.ids import TaskKey
from holdfast.moves.values import HostSync
from tests.unit.controller.conftest import FakeAgent, Served
from tests.unit.controller.loops.test_gangs import configure, ended, run_gang

KEYS = [TaskKey("job", rank, 3) for rank in range(2)]
FELL, STOPPED = TaskFacts(exit_code=1), TaskFacts(signal=15, stopped=True)
DONE = TaskFacts(exit_code=0)


@pytest.mark.parametrize("store", ["memory", "postgres"], indirect=True)
async def test_a_fall_that_is_left_alone_gives_its_turn_back(
    served: Served, agent: FakeAgent
) -> None:
    """RATE-1: the completer has the one turn that there is, and dispatches the retry by it."""
    await configure(served, retry_rate_limit=0.01)
    retry = {"max_retries": 2, "retry_delay": 0}
    job_id, reports = await run_gang(served, agent, tasks=2, retry=retry)
    await served.submit(tasks=4, priority=90)  # the room is not the fall's to take
    ends = [ended(r.key, signal=15, stopped=True) for r in reports]
    ends[0] = ended(reports[0].key, exit_code=7)
    assert len((await agent.sync(*ends)).acked) == 2
    await served.until(job_id, "queued")


@pytest.mark.parametrize("store", ["postgres"], indirect=True)
async def test_a_fall_is_taken_by_no_replica_that_has_lost_the_lead(
    served: Served, agent: FakeAgent, pg_emptied: str
) -> None:
    """LEAD-3: one that was frozen may think for a moment that it leads; the ends are taken without
    the decision, which is the new leader's."""
    retry = {"max_retries": 2, "retry_delay": 0}
    job_id, reports = await run_gang(served, agent, tasks=2, retry=retry)
    ends = [ended(r.key, signal=15, stopped=True) for r in reports]
    ends[0] = ended(reports[0].key, exit_code=7)
    async with await psycopg.AsyncConnection.connect(pg_emptied, autocommit=True) as other:
        await other.execute(
            "update leadership set number = number + 1, holder = 'another',"
            " expires_at = clock_timestamp() + interval '1 second'"
        )
    answer = await agent.sync(*ends)
    assert (len(answer.acked), answer.launch) == (2, [])
    await served.until(job_id, "reserved", "queued")


@pytest.mark.parametrize(
    ("found", "ends", "more"),
    [
        ("job", [(KEYS[0], FELL), (KEYS[1], STOPPED)], {}),
        ("job", [(KEYS[0], FELL), (KEYS[1], FELL)], {"live": (TaskKey("b", 0, 1),)}),
        (None, [(KEYS[0], STOPPED), (KEYS[1], STOPPED)], {}),
        (None, [(KEYS[0], FELL), (KEYS[1], DONE)], {}),
        (None, [(KEYS[0], FELL)], {}),
        (None, [(KEYS[0], FELL), (TaskKey("b", 0, 1), FELL)], {}),
        (None, [(KEYS[0], FELL), (KEYS[1], STOPPED)], {"leaving": True}),
        (None, [(KEYS[0], FELL), (KEYS[1], STOPPED)], {"started": (TaskKey("b", 0, 1),)}),
    ],
)
def test_a_fall_is_the_ends_of_one_attempt_that_failed_by_itself(
    found: str | None, ends: list[tuple[TaskKey, TaskFacts]], more: dict[str, object]
) -> None:
    sync = HostSync(host_id="h1", incarnation="i", ended=tuple(ends), **more)  # type: ignore[arg-type]  # any field
    assert find_fall(sync) == found
