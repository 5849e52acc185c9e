"""What every store must do for `store.members`."""

from __future__ import annotations

from datetime import timedelta

from holdfast.core.causes import Cause
from holdfast.core.endings.decide import Policy
from holdfast.core.endings.replace import plan_replacement
from holdfast.core.facts import TaskFacts
from holdfast.core.placement.plan import plan_admission
from holdfast.core.records import TaskRecord
from holdfast.core.states import HostState, JobState, Outcome, TaskState
from tests.store.rig import OK, STOPPED, Rig, fails

KILLED = TaskFacts(signal=9, runtime_seconds=3.0)


GIVEN_UP = TaskFacts(exit_code=72, runtime_seconds=3.0)


async def find_task(rig: Rig, job_id: str, rank: int) -> TaskRecord:
    return (await rig.store.jobs.list_tasks(job_id))[rank]


async def seat_rank(rig: Rig, job_id: str, rank: int) -> TaskRecord:
    """Have a blocked member placed, offered and started."""
    assert job_id in await rig.admit()
    task = await find_task(rig, job_id, rank)
    offered = await rig.sync(str(task.host_id))
    (offer,) = [
        offer for offer in offered.offers if offer.task.key == task.key
    ]  # its barrier is open: it starts at once
    assert offer.task.replaced == task.replaced, "by this it is given what its predecessor saved"
    assert task.reserved_at is not None
    await rig.sync(str(task.host_id), live=[task.key], started=[task.key])
    return await find_task(rig, job_id, rank)


async def test_a_member_is_replaced_while_the_others_run_on(rig: Rig) -> None:
    job_id, keys = await rig.supervised()
    await rig.host("h4", slots=1)
    lost = await rig.where(job_id, 1)
    before = await rig.job(job_id)
    answer = await rig.sync(lost, ended=[(keys[1], KILLED)])
    assert answer.acked == (keys[1],)
    assert answer.draining == ()
    assert [t.state for t in await rig.store.jobs.list_tasks(job_id)] == [
        TaskState.RUNNING,
        TaskState.FAILED,
        TaskState.RUNNING,
    ]
    (said,) = await rig.replace()
    assert "it is replaced; its hosts have failed it once, and may do so 10 times" in said
    assert await rig.replace() == [], "once"
    task = await find_task(rig, job_id, 1)
    assert (task.state, task.host_id, task.replaced, task.facts) == (
        TaskState.BLOCKED,
        None,
        1,
        None,
    )
    task = await seat_rank(rig, job_id, 1)
    assert (task.state, task.host_id) == (TaskState.RUNNING, "h4"), (
        "the host it fell on comes last, and the others' after all free ones"
    )
    after = await rig.job(job_id)
    assert (after.state, after.attempts) == (JobState.RUNNING, 1)
    assert after.epoch == before.epoch + 1 == task.epoch
    assert after.rank_charges["1"].infra == 1
    others = [t for t in await rig.store.jobs.list_tasks(job_id) if t.rank != 1]
    assert [t.key for t in others] == [keys[0], keys[2]], "nothing of the others changed"
    kinds = await rig.kinds(job_id)
    assert kinds[-3:] == ["task.replaced", "task.reserved", "task.started"]
    told = [(event.rank, event.epoch) for event in (await rig.events(job_id))[-3:]]
    assert told == [(1, keys[1].epoch), (1, task.epoch), (1, task.epoch)], (
        "each life under its own epoch"
    )
    assert "job.draining" not in kinds


async def test_a_host_the_script_gave_up_is_barred_and_nothing_is_charged(rig: Rig) -> None:
    job_id, keys = await rig.supervised()
    host = await rig.where(job_id, 2)
    await rig.sync(host, ended=[(keys[2], GIVEN_UP)])
    (said,) = await rig.replace()
    assert "the script replaced it" in said
    assert await rig.admit() == [], "its only free host is the one that was given up"
    assert (await rig.job(job_id)).rank_charges == {}
    await rig.host("h4", slots=1)
    assert (await seat_rank(rig, job_id, 2)).host_id == "h4"


async def test_a_member_over_its_budget_ends_the_job_and_another_that_fails_once_does_not(
    rig: Rig,
) -> None:
    job_id, _ = await rig.supervised()
    host = await rig.where(job_id, 1)
    for _ in range(2):
        await rig.sync(host, ended=[((await find_task(rig, job_id, 1)).key, KILLED)])
        await rig.replace(infra_cap=2)
        rig.tick(10)
        await seat_rank(rig, job_id, 1)
    third = (await find_task(rig, job_id, 2)).key
    await rig.sync(await rig.where(job_id, 2), ended=[(third, KILLED)])
    await rig.replace(infra_cap=2)
    await seat_rank(rig, job_id, 2)
    await rig.sync(host, ended=[((await find_task(rig, job_id, 1)).key, KILLED)])
    await rig.replace(infra_cap=2)
    job = await rig.job(job_id)
    assert (job.state, job.trigger_rank) == (JobState.DRAINING, 1)
    for task in await rig.store.jobs.list_tasks(job_id):
        if task.state is TaskState.PREEMPTING:
            await rig.sync(str(task.host_id), ended=[(task.key, STOPPED)])
    assert await rig.complete(infra_cap=2) == [job_id]
    job = await rig.job(job_id)
    assert (job.state, job.cause) == (JobState.FAILED, Cause.AGENT_TRANSIENT)
    assert "3 times, and its budget of 2 is spent" in job.reason


async def test_the_script_ends_and_the_job_with_it(rig: Rig) -> None:
    job_id, keys = await rig.supervised()
    await rig.sync(await rig.where(job_id, 2), ended=[(keys[2], KILLED)])
    await rig.sync(await rig.where(job_id, 0), ended=[(keys[0], OK)])
    job = await rig.job(job_id)
    assert job.state is JobState.DRAINING
    assert await rig.replace() == [], "a job that ends replaces nobody"
    await rig.sync(await rig.where(job_id, 1), ended=[(keys[1], fails(143))])
    assert await rig.complete() == [job_id]
    job = await rig.job(job_id)
    assert (job.state, job.exit_code, job.outcome) == (JobState.SUCCEEDED, 0, Outcome.SUCCEEDED)


async def test_the_script_fails_and_the_whole_gang_falls(rig: Rig) -> None:
    job_id, keys = await rig.supervised()
    await rig.sync(await rig.where(job_id, 1), ended=[(keys[1], KILLED)])
    rig.tick(60)
    await rig.sync(await rig.where(job_id, 0), ended=[(keys[0], fails(3))])
    assert (await rig.job(job_id)).state is JobState.DRAINING
    await rig.sync(await rig.where(job_id, 2), ended=[(keys[2], STOPPED)])
    assert await rig.complete(max_retries=1) == [job_id]
    job = await rig.job(job_id)
    assert job.state is JobState.WAITING
    assert (job.cause, job.exit_code) == (Cause.NONZERO_EXIT, 3), (
        "MEMBER-4: the earlier fall of a member is not to blame"
    )
    assert (job.retries_charged, job.rank_charges["0"].retries) == (1, 1)


async def test_a_returned_host_is_done_and_not_replaced(rig: Rig) -> None:
    job_id, keys = await rig.supervised()
    await rig.sync(await rig.where(job_id, 1), ended=[(keys[1], OK)])
    assert await rig.replace() == []
    assert (await find_task(rig, job_id, 1)).state is TaskState.DONE
    assert (await rig.job(job_id)).state is JobState.RUNNING
    await rig.sync(await rig.where(job_id, 0), ended=[(keys[0], fails(1))])
    await rig.sync(await rig.where(job_id, 2), ended=[(keys[2], STOPPED)])
    await rig.complete(max_retries=1)
    assert (await rig.job(job_id)).state is JobState.WAITING, (
        "a returned host is no finished work (GANG-5)"
    )


async def test_a_drained_host_takes_its_members_and_nobody_elses(rig: Rig) -> None:
    job_id, keys = await rig.supervised()
    await rig.host("h4", slots=1)
    host = await rig.where(job_id, 1)
    await rig.store.hosts.move_host(host, "drain", "disk swap", hard=True, now=rig.now)
    job = await rig.job(job_id)
    assert (job.state, job.drain_cause) == (JobState.RUNNING, None)
    (order,) = (await rig.sync(host, live=[keys[1]])).preempts
    assert (order.key, order.cause) == (keys[1], Cause.HOST_DRAINED)
    await rig.sync(host, ended=[(keys[1], STOPPED)])
    (said,) = await rig.replace()
    assert "at no charge" in said
    assert (await seat_rank(rig, job_id, 1)).host_id == "h4"
    assert (await rig.job(job_id)).rank_charges == {}
    script = await rig.where(job_id, 0)
    await rig.store.hosts.move_host(script, "drain", "disk swap", hard=True, now=rig.now)
    assert (await rig.job(job_id)).state is JobState.DRAINING, (
        "with the script's host the whole falls"
    )


async def test_a_lapsed_lease_and_a_new_incarnation_free_one_member(rig: Rig) -> None:
    job_id, _ = await rig.supervised()
    host = await rig.where(job_id, 1)
    await rig.host(host, slots=1)
    assert (await find_task(rig, job_id, 1)).state is TaskState.FAILED
    assert (await rig.job(job_id)).state is JobState.RUNNING
    assert len(await rig.replace()) == 1
    began = rig.now
    for _ in range(2):
        rig.tick(200)
        for rank in (0, 2):
            key = (await find_task(rig, job_id, rank)).key
            if rank == 0:
                await rig.sync(await rig.where(job_id, rank), live=[key])
    assert await rig.store.leases.lapse_leases(began, now=rig.now) == [job_id]
    assert (await find_task(rig, job_id, 2)).state is TaskState.FAILED
    assert (await rig.job(job_id)).state is JobState.RUNNING


async def test_a_place_nobody_takes_is_given_to_another(rig: Rig) -> None:
    job_id, keys = await rig.supervised()
    await rig.host("h4", slots=1)
    await rig.sync(await rig.where(job_id, 1), ended=[(keys[1], KILLED)])
    await rig.replace()
    assert job_id in await rig.admit()
    first = await find_task(rig, job_id, 1)
    assert (first.state, first.host_id) == (TaskState.RESERVED, "h4")
    assert await rig.store.members.release_members(30.0, now=rig.now) == []
    assert await rig.store.admission.expire_reservations(0.0, now=rig.tick(31)) == [], (
        "the job has long started"
    )
    assert await rig.store.members.release_members(30.0, now=rig.now) == [job_id]
    assert (await find_task(rig, job_id, 1)).state is TaskState.BLOCKED
    await rig.sync("h4")
    for task in await rig.store.jobs.list_tasks(job_id):
        if task.state is TaskState.RUNNING:
            await rig.sync(str(task.host_id), live=[task.key])
    for host in ("h1", "h2", "h3"):
        await rig.sync(
            host, live=[t.key for t in await rig.store.jobs.list_tasks(job_id) if t.host_id == host]
        )
    second = await seat_rank(rig, job_id, 1)
    assert second.epoch > first.epoch


async def test_a_cancel_takes_blocked_members_too(rig: Rig) -> None:
    job_id, keys = await rig.supervised()
    await rig.sync(await rig.where(job_id, 1), ended=[(keys[1], GIVEN_UP)])
    await rig.replace()
    await rig.store.jobs.cancel_job(job_id, "enough", now=rig.now)
    for rank in (0, 2):
        await rig.sync(await rig.where(job_id, rank), ended=[(keys[rank], STOPPED)])
    assert await rig.complete() == [job_id]
    assert (await rig.job(job_id)).state is JobState.CANCELLED
    assert await rig.admit() == []


async def test_a_member_counts_against_no_limit_of_its_queue(rig: Rig) -> None:
    await rig.set_queue("cpu", max_running=1)
    job_id, keys = await rig.supervised()
    other = await rig.submit()
    await rig.sync(await rig.where(job_id, 1), ended=[(keys[1], KILLED)])
    await rig.replace()
    assert await rig.admit() == [job_id], "its job runs already; the other waits for its turn"
    assert (await rig.job(other)).state is JobState.QUEUED


async def test_a_member_that_falls_at_the_start_keeps_no_one_waiting(rig: Rig) -> None:
    """The others run and the script decides: the job runs too, and no start timeout takes them down
    for the one that is missing."""
    for host in ("h1", "h2", "h3"):
        await rig.host(host, slots=1)
    job_id = await rig.submit(tasks=3, placement="spread", supervised=True)
    await rig.admit()
    tasks = await rig.store.jobs.list_tasks(job_id)
    for task in tasks:
        await rig.sync(str(task.host_id))
    for task in tasks:
        await rig.sync(str(task.host_id), claimed=[(task.key, 4711 if task.rank == 0 else 0)])
    for task in tasks[:2]:
        await rig.sync(str(task.host_id), live=[task.key], started=[task.key])
    await rig.sync(
        str(tasks[2].host_id), ended=[(tasks[2].key, TaskFacts(start_error="no such program"))]
    )
    assert (await rig.job(job_id)).state is JobState.RESERVED, "nobody has decided yet"
    assert len(await rig.replace()) == 1
    job = await rig.job(job_id)
    assert (job.state, job.drain_cause) == (JobState.RUNNING, None)
    assert await rig.store.admission.expire_reservations(0.0, now=rig.tick(60)) == []
    (attempt,) = await rig.store.jobs.list_attempts(job_id)
    assert attempt.state == "running"
    assert attempt.started_at is not None
    for task in tasks[:2]:
        await rig.sync(str(task.host_id), live=[task.key])
    await rig.sync(str(tasks[2].host_id))
    await seat_rank(rig, job_id, 2)


async def test_a_member_that_falls_before_the_barrier_opens_is_a_failed_start(rig: Rig) -> None:
    """GANG-1: nothing of the gang runs yet, so there is nothing to go on with."""
    for host in ("h1", "h2"):
        await rig.host(host, slots=1)
    job_id = await rig.submit(tasks=2, placement="spread", supervised=True)
    await rig.admit()
    for host in ("h1", "h2"):
        await rig.sync(host)
    await rig.host(await rig.where(job_id, 1), slots=1)
    assert (await rig.job(job_id)).state is JobState.DRAINING
    assert await rig.replace() == []


async def test_falls_are_decided_together_and_before_slow_starts_are_looked_at(rig: Rig) -> None:
    job_id, keys = await rig.supervised(hosts=("h1", "h2", "h3", "h4"))
    await rig.host("h5", slots=1)
    await rig.sync(await rig.where(job_id, 1), ended=[(keys[1], KILLED)])
    await rig.replace()
    assert job_id in await rig.admit()
    for rank in (3, 2):
        await rig.sync(await rig.where(job_id, rank), ended=[(keys[rank], KILLED)])
    found = [(m.task.rank, m.fallen) for m in await rig.store.members.list_members(100)]
    assert found == [(2, True), (3, True), (1, False)], (
        "who has a place keeps nobody waiting who has none"
    )
    assert [m.task.rank for m in await rig.store.members.list_members(1)] == [2]
    assert len(await rig.replace()) == 2
    blocked = [
        t.rank for t in await rig.store.jobs.list_tasks(job_id) if t.state is TaskState.BLOCKED
    ]
    assert blocked == [2, 3]
    epoch = (await rig.job(job_id)).epoch
    assert job_id in await rig.admit()
    seated = [(await find_task(rig, job_id, rank)).epoch for rank in (2, 3)]
    assert seated == [epoch + 1, epoch + 1], "members placed together share an epoch"


async def test_a_fall_is_decided_once_whoever_leads(rig: Rig) -> None:
    """Two leaders for a moment: what the second has read is no longer so when it writes."""
    job_id, keys = await rig.supervised()
    await rig.host("h4", slots=1)
    await rig.sync(await rig.where(job_id, 1), ended=[(keys[1], KILLED)])
    later = rig.now + timedelta(seconds=40)
    (seen,) = await rig.store.members.list_members(100, now=later)
    assert seen.seconds == 40
    plan = plan_replacement(seen.job, seen.task, Policy(), ())
    assert await rig.store.members.replace_members([(seen.task.key, plan)] * 2, now=rig.now) == [
        seen.task.key
    ]
    assert await rig.store.members.replace_members([(seen.task.key, plan)], now=rig.now) == []
    job = await rig.job(job_id)
    assert (job.rank_charges["1"].infra, job.infra_charged) == (1, 1)
    snapshot = await rig.store.admission.read_admission(100, now=rig.now)
    placed = plan_admission(
        snapshot.candidates, snapshot.hosts, snapshot.headroom, snapshot.quotas
    ).placements
    assert await rig.store.members.seat_members(placed, {job_id: 300.0}, now=rig.now) == [job_id]
    assert await rig.store.members.seat_members(placed, {job_id: 300.0}, now=rig.now) == []
    task = await find_task(rig, job_id, 1)
    await rig.sync("h4")
    await rig.sync("h4", ended=[(task.key, KILLED)])
    await rig.replace()
    rig.tick(10)
    for other in ("h1", "h2", "h3", "h4"):
        await rig.sync(other)
    assert await rig.store.members.seat_members(placed, {job_id: 300.0}, now=rig.now) == [], (
        "a plan of an earlier life of the rank"
    )
    assert await rig.store.members.replace_members([(seen.task.key, plan)], now=rig.now) == []


async def test_the_budget_of_one_rank_ends_the_job_and_the_rest_of_the_batch_is_left(
    rig: Rig,
) -> None:
    job_id, keys = await rig.supervised()
    for rank in (1, 2):
        await rig.sync(await rig.where(job_id, rank), ended=[(keys[rank], KILLED)])
    assert len(await rig.replace(infra_cap=0)) == 1
    job = await rig.job(job_id)
    assert (job.state, job.trigger_rank) == (JobState.DRAINING, 1)
    await rig.sync(await rig.where(job_id, 0), ended=[(keys[0], STOPPED)])
    assert await rig.complete(infra_cap=0) == [job_id]
    assert (await rig.job(job_id)).state is JobState.FAILED
    (attempt,) = await rig.store.jobs.list_attempts(job_id)
    assert [m.trigger for m in attempt.members] == [False, True, False]


async def test_evidence_against_its_host_quarantines_it_and_the_member_goes_elsewhere(
    rig: Rig,
) -> None:
    job_id, keys = await rig.supervised()
    await rig.host("h4", slots=1)
    host = await rig.where(job_id, 1)
    await rig.sync(
        host, ended=[(keys[1], TaskFacts(exit_code=72, xids=(79,), runtime_seconds=9.0))]
    )
    await rig.replace()
    assert (await rig.store.hosts.get_host(host)).state == "quarantined"
    assert (await seat_rank(rig, job_id, 1)).host_id == "h4"
    assert (await rig.job(job_id)).state is JobState.RUNNING


async def test_a_failed_job_that_is_run_again_has_forgotten_what_was_barred(rig: Rig) -> None:
    job_id, keys = await rig.supervised()
    await rig.sync(await rig.where(job_id, 1), ended=[(keys[1], GIVEN_UP)])
    await rig.replace()
    await rig.sync(await rig.where(job_id, 0), ended=[(keys[0], fails(3))])
    await rig.sync(await rig.where(job_id, 2), ended=[(keys[2], STOPPED)])
    assert await rig.complete() == [job_id]
    assert (await rig.job(job_id)).state is JobState.FAILED
    assert await rig.store.jobs.list_tasks(job_id) == [], "no blocked row outlives its attempt"
    await rig.store.jobs.revive_job(job_id, "again", now=rig.now)
    assert job_id in await rig.admit(), "it needs all three hosts, the barred one too"
    assert [t.replaced for t in await rig.store.jobs.list_tasks(job_id)] == [0, 0, 0]


async def test_a_late_word_of_an_earlier_life_is_settled_after_the_job_too(rig: Rig) -> None:
    """Acknowledged or refused, its agent lets go of it; and the end on record stays as it is."""
    job_id, keys = await rig.supervised()
    await rig.host("h4", slots=1)
    first = await rig.where(job_id, 1)
    await rig.sync(first, ended=[(keys[1], KILLED)])
    await rig.replace()
    task = await seat_rank(rig, job_id, 1)
    await rig.sync(await rig.where(job_id, 0), ended=[(keys[0], OK)])
    await rig.sync("h4", ended=[(task.key, STOPPED)])
    await rig.sync(await rig.where(job_id, 2), ended=[(keys[2], STOPPED)])
    await rig.complete()
    before = (await rig.job(job_id), await rig.store.jobs.list_attempts(job_id))
    for host, key in ((first, keys[1]), ("h4", task.key)):
        for _ in range(2):
            answer = await rig.sync(host, ended=[(key, KILLED)])
            assert (*answer.acked, *answer.refused) == (key,)
    assert (await rig.job(job_id), await rig.store.jobs.list_attempts(job_id)) == before


async def test_peers_of_a_member_that_starts_anew_are_those_that_are_there(rig: Rig) -> None:
    """Of a fallen rank on the same host neither its place nor its devices are told: they may be
    another job's by now."""
    for host, gpus in (("h1", 1), ("h2", 3)):
        await rig.host(host, slots=8, gpus=gpus)
    job_id = await rig.submit(tasks=4, queue="gpu", gpus=1, supervised=True)
    await rig.admit()
    tasks = await rig.store.jobs.list_tasks(job_id)
    for host in ("h1", "h2"):
        await rig.sync(host)
    for host in ("h1", "h2"):
        await rig.sync(
            host, claimed=[(t.key, 4711 if t.rank == 0 else 0) for t in tasks if t.host_id == host]
        )
    for host in ("h1", "h2"):
        keys = [t.key for t in tasks if t.host_id == host]
        await rig.sync(host, live=keys, started=keys)
    here = [t for t in tasks if t.rank > 0 and sum(o.host_id == t.host_id for o in tasks) > 1]
    again, gone = here[0], here[1]
    host = str(again.host_id)
    await rig.sync(host, ended=[(again.key, KILLED)])
    await rig.replace()
    assert job_id in await rig.admit()
    await rig.sync(host, ended=[(gone.key, KILLED)])
    await rig.replace()
    (offer,) = (
        await rig.sync(
            host, live=[t.key for t in tasks if t.host_id == host and t not in (again, gone)]
        )
    ).offers
    assert offer.task.key.rank == again.rank
    assert [seat.rank for seat in offer.seats] == [t.rank for t in tasks if t.rank != gone.rank]


async def test_a_member_that_was_given_up_everywhere_says_so(rig: Rig) -> None:
    job_id, keys = await rig.supervised()
    for rank in (1, 2):
        await rig.sync(await rig.where(job_id, rank), ended=[(keys[rank], GIVEN_UP)])
    for host in ("h1", "h2", "h3"):
        if host != await rig.where(job_id, 0):
            await rig.store.hosts.move_host(host, "quarantine", "", now=rig.now)
    await rig.store.hosts.move_host(await rig.where(job_id, 0), "drain", "", now=rig.now)
    await rig.replace()
    await rig.host("h1" if await rig.where(job_id, 0) != "h1" else "h2", slots=1, new=False)
    snap = await rig.store.admission.read_admission(100, now=rig.now)
    assert {c.member for c in snap.candidates} == {1, 2}
    assert len(snap.candidates[0].barred_hosts) == 2
    plan = plan_admission(snap.candidates, snap.hosts, snap.headroom, snap.quotas)
    assert plan.placements == ()
    assert "gave up 2 of the hosts" in plan.refusals[job_id]


async def test_a_member_that_waits_is_a_candidate_as_its_job_is(rig: Rig) -> None:
    """A member of a container job went to a host without an engine, because the read of members did
    not say that the job needs one."""
    job_id, keys = await rig.supervised(
        image="a",
        runtime="podman",
        host_labels={},
        time_limit_seconds="off",
        lease_ttl_seconds=45.0,
    )
    await rig.sync(await rig.where(job_id, 1), ended=[(keys[1], KILLED)])
    await rig.replace()
    (found,) = (await rig.store.admission.read_admission(9, now=rig.now)).candidates
    assert (found.member, found.tasks, found.runtime, found.placement, found.supervised) == (
        1, 1, "podman", "spread", True,
    )  # fmt: skip
    assert (found.time_limit_seconds, found.lease_ttl_seconds) == (float("inf"), 45.0)


async def test_a_job_one_of_whose_members_stops_is_not_taken_for_one_that_ends(rig: Rig) -> None:
    """Else room would be held back for others as if all of its hosts were free within a minute."""
    job_id, keys = await rig.supervised(preemptible=True)
    assert await rig.store.members.stop_member(
        keys[1], Cause.HOST_DRAINED, "disk swap", now=rig.now
    )
    running = await rig.store.admission.read_running(now=rig.now)
    assert [(task.draining, task.preemptible) for task in running] == [(False, True)] * 3
    await rig.store.jobs.drain_job(job_id, Cause.PREEMPTED, "room is needed", now=rig.now)
    assert all(task.draining for task in await rig.store.admission.read_running(now=rig.now))


async def test_a_host_that_leaves_with_a_stuck_process_leaves_quarantined(rig: Rig) -> None:
    """The same word tells both; one that says that a member runs still is no goodbye (LEASE-3)."""
    job_id, keys = await rig.supervised()
    host = await rig.where(job_id, 1)
    answer = await rig.sync(host, live=[keys[1]], leaving=True)
    assert [key for key, _ in answer.renewed] == [keys[1]]
    assert (await find_task(rig, job_id, 1)).state is TaskState.RUNNING
    assert (await rig.store.hosts.get_host(host)).state is HostState.ACTIVE
    other = await rig.where(job_id, 2)
    await rig.sync(other, ended=[(keys[2], TaskFacts(signal=9, unkillable=True))], leaving=True)
    moved = [
        e.data
        for e in await rig.events()
        if e.kind == "host.moved" and e.host_id == other and e.data["to"] == "terminated"
    ]
    assert [data["from"] for data in moved] == ["quarantined"]
