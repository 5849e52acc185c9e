"""Faults that the chaos found, each in its fewest steps, on the model and on PostgreSQL."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from holdfast.core.causes import Cause
from holdfast.core.facts import TaskFacts
from holdfast.core.states import HostState
from holdfast.errors import Stale
from holdfast.store.postgres.store import PostgresStore
from holdfast.wire.agent import HostFacts
from tests.model.store import MemoryStore
from tests.store.rig import OK, Rig


@pytest.fixture(params=["memory", "postgres"])
async def rig(request: pytest.FixtureRequest) -> AsyncIterator[Rig]:
    if request.param == "memory":
        yield Rig(MemoryStore())
        return
    store = PostgresStore(request.getfixturevalue("pg_emptied"))
    await store.open()
    yield Rig(store)
    await store.close()


async def test_a_registration_that_comes_late_frees_nothing(rig: Rig) -> None:
    """LEASE-3: it lay in a frozen controller's buffer while its host was started anew; it is no
    evidence."""
    await rig.host("h1")
    await rig.host("h1")
    job_id, key = await rig.running()
    with pytest.raises(Stale) as refused:
        await rig.store.hosts.register_host(
            "h1", None, "inc-00001", HostFacts(name="name-h1"), now=rig.tick(1)
        )
    assert refused.value.code == "stale_incarnation"
    assert [t.key for t in await rig.store.jobs.list_tasks(job_id)] == [key]
    assert (await rig.store.hosts.get_host("h1")).incarnation == "inc-00002"
    await rig.host("h1", new=False)  # the present one may say so again
    assert (await rig.sync("h1", ended=[(key, OK)])).succeeded == (job_id,)


async def test_an_incarnation_that_the_store_never_heard_of_frees_nothing_when_it_comes_late(
    rig: Rig,
) -> None:
    """LEASE-3: its registration lay in a frozen controller's buffer while the host was started once
    more, and the host says which incarnations came before its present one."""
    await rig.host("h1")
    register = rig.store.hosts.register_host
    facts = HostFacts(name="name-h1")
    await register("h1", None, "inc-00001", facts, announced=["inc-unheard"], now=rig.tick(1))
    job_id, key = await rig.running()
    with pytest.raises(Stale):
        await register("h1", None, "inc-unheard", facts, now=rig.tick(1))
    assert [t.key for t in await rig.store.jobs.list_tasks(job_id)] == [key]


async def test_a_gang_whose_host_dies_before_it_was_told_does_not_stay_reserved(rig: Rig) -> None:
    """A reservation that ran out with some of it taken is drained; the silent rank has
    no lease to lapse."""
    await rig.host("h1", slots=1)
    await rig.host("h2", slots=1)
    job_id = await rig.submit(tasks=2)
    assert await rig.admit() == [job_id]
    (claim,) = (await rig.sync("h1")).claims
    assert (await rig.sync("h1", claimed=[(claim.key, 4711)])).offers == ()
    rig.tick(29)
    assert await rig.store.admission.expire_reservations(30, now=rig.now) == []
    rig.tick(2)
    assert await rig.store.admission.expire_reservations(30, now=rig.now) == [job_id]
    job = await rig.job(job_id)
    assert (job.state, job.drain_cause) == ("draining", Cause.START_TIMEOUT)
    assert await rig.store.admission.expire_reservations(30, now=rig.now) == []
    assert (await rig.sync("h1", claimed=[(claim.key, 4711)])).lost == (claim.key,)
    assert await rig.complete() == [job_id]
    job = await rig.job(job_id)
    assert (job.state, job.start_failures) == ("queued", 1)


async def test_a_goodbye_is_no_evidence_of_an_end_that_it_does_not_tell(rig: Rig) -> None:
    """LEASE-3: TERM reached guardian and agent at once, and the agent left before its tasks ended."""
    await rig.host("h1", slots=2)
    first, begun = await rig.running()
    second, launched = await rig.offered()
    answer = await rig.sync("h1", live=[begun, launched], leaving=True)
    assert (answer.status, answer.offers) == ("ok", ())
    assert [(await rig.job(job_id)).state for job_id in (first, second)] == ["running", "reserved"]
    assert (await rig.store.hosts.get_host("h1")).state is HostState.ACTIVE
    told = TaskFacts(signal=15, stopped=True, stop_cause=Cause.HOST_DRAINED)
    await rig.sync("h1", ended=[(begun, told), (launched, told)], leaving=True)
    assert await rig.complete() == [first, second]
    for job_id in (first, second):
        job = await rig.job(job_id)
        assert (job.state, job.cause, job.infra_charged) == ("queued", Cause.HOST_DRAINED, 0)
    assert (await rig.store.hosts.get_host("h1")).state is HostState.TERMINATED
