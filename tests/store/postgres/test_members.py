"""What only the store on PostgreSQL does: members."""

from __future__ import annotations

from datetime import timedelta

import pytest

from holdfast.core.causes import Cause
from holdfast.core.ids import TaskKey
from holdfast.core.logs.plan import LogLife, split_by_life
from holdfast.core.states import JobState, TaskState
from holdfast.errors import Conflict, NotFound, Stale
from holdfast.moves.checkpoints import NewCheckpoint
from holdfast.wire.agent import Forensics
from tests.store.conformance.members import KILLED, find_task, seat_rank
from tests.store.rig import OK, STOPPED, Rig, fails


async def test_what_the_earlier_host_still_says_changes_nothing(rig: Rig) -> None:
    job_id, keys = await rig.supervised()
    await rig.host("h4", slots=1)
    lost = await rig.where(job_id, 1)
    await rig.sync(lost, ended=[(keys[1], KILLED)])
    await rig.replace()
    late = await rig.sync(lost, live=[keys[1]])
    assert late.lost == (keys[1],)
    await seat_rank(rig, job_id, 1)
    again = await rig.sync(lost, ended=[(keys[1], fails(9))])
    assert again.acked == (keys[1],) or again.refused == (keys[1],)
    assert (await find_task(rig, job_id, 1)).state is TaskState.RUNNING, "FENCE-1"
    new = NewCheckpoint(blob="b", size=1, sha256=b"0" * 32)
    with pytest.raises(Stale):
        await rig.store.checkpoints.add_checkpoint(
            lost, rig.incarnations[lost], keys[1], new, 2, now=rig.now
        )


async def test_a_member_may_come_back_to_the_same_host_under_its_own_epoch(rig: Rig) -> None:
    job_id, keys = await rig.supervised()
    host = await rig.where(job_id, 2)
    await rig.sync(host, ended=[(keys[2], KILLED)])
    await rig.replace()
    task = await seat_rank(rig, job_id, 2)
    assert task.host_id == host, "there is no other"
    assert task.epoch > keys[2].epoch
    await rig.sync(host, ended=[(keys[2], fails(1))])
    assert (await find_task(rig, job_id, 2)).state is TaskState.RUNNING, (
        "the same host, the same incarnation, an older epoch"
    )
    stored = await rig.store.checkpoints.add_checkpoint(
        host,
        rig.incarnations[host],
        task.key,
        NewCheckpoint(blob="b", size=1, sha256=b"0" * 32),
        2,
        now=rig.now,
    )
    assert stored is not None, "its checkpoints are taken under its own epoch"
    other = keys[1]
    assert await rig.store.checkpoints.add_checkpoint(
        await rig.where(job_id, 1),
        rig.incarnations[await rig.where(job_id, 1)],
        other,
        NewCheckpoint(blob="c", size=1, sha256=b"1" * 32),
        2,
        now=rig.now,
    )


async def test_the_log_of_a_rank_goes_on_where_its_predecessors_ended(rig: Rig) -> None:
    job_id, keys = await rig.supervised()
    await rig.host("h4", slots=1)
    first = await rig.where(job_id, 1)
    await rig.append_log(first, keys[1], "stdout", 0, b"one\n", False, 1 << 20)
    await rig.sync(first, ended=[(keys[1], KILLED)])
    await rig.replace()
    task = await seat_rank(rig, job_id, 1)
    await rig.append_log(first, keys[1], "stdout", 4, b"last\n", True, 1 << 20)
    assert await rig.append_log("h4", task.key, "stdout", 0, b"two\n", False, 1 << 20) == 13
    await rig.append_log("h4", task.key, "stdout", 0, b"two\n", False, 1 << 20)
    await rig.append_log("h4", task.key, "stdout", 4, b"three\n", False, 1 << 20)
    await rig.append_log(first, keys[1], "stdout", 9, b"too late\n", True, 1 << 20)
    (stream,) = [s for s in await rig.store.logs.list_log_streams(job_id) if s.rank == 1]
    chunks = await rig.store.logs.read_log(job_id, 1, 1, "stdout", 0)
    assert b"".join(c.data for c in chunks) == b"one\nlast\ntwo\nthree\n"
    assert (stream.size, stream.ended) == (19, False), "the first host's end is not the rank's"
    await rig.append_log("h4", task.key, "stdout", 10, b"", True, 1 << 20)
    (stream,) = [s for s in await rig.store.logs.list_log_streams(job_id) if s.rank == 1]
    assert stream.ended
    assert await rig.append_log("h3", task.key, "stdout", 0, b"x", False, 1 << 20) is None
    lives = await rig.store.logs.list_log_lives(job_id, 1, 1, "stdout")
    assert lives == [LogLife(keys[1], first, 0), LogLife(task.key, "h4", 9)]
    assert split_by_life(lives, 4, 12) == [(lives[0], 4, 9), (lives[1], 9, 12)]
    unwritten = await rig.store.logs.list_log_lives(job_id, 1, 1, "stderr")
    assert [life.base for life in unwritten] == [0, None]
    assert await rig.store.logs.list_log_lives(job_id, 2, 1, "stdout") == []
    assert await rig.store.logs.list_log_lives(job_id, 1, 9, "stdout") == []


async def test_what_a_rank_saves_by_hand_goes_by_the_epoch_it_runs_under(rig: Rig) -> None:
    """The script's HOLDFAST_EPOCH stays as it is while members are replaced under later ones."""
    job_id, keys = await rig.supervised()
    await rig.host("h4", slots=1)
    await rig.sync(await rig.where(job_id, 1), ended=[(keys[1], KILLED)])
    await rig.replace()
    task = await seat_rank(rig, job_id, 1)
    new = NewCheckpoint(blob="b", size=1, sha256=b"0" * 32)
    for rank, epoch in ((0, keys[0].epoch), (1, task.epoch)):
        added = await rig.store.checkpoints.put_checkpoint(job_id, rank, epoch, new, 2, now=rig.now)
        assert added.record.epoch == epoch
    for rank, epoch in ((0, task.epoch), (1, keys[1].epoch)):
        with pytest.raises(Stale):
            await rig.store.checkpoints.put_checkpoint(job_id, rank, epoch, new, 2, now=rig.now)


async def test_nothing_is_left_of_a_job_that_is_deleted(rig: Rig) -> None:
    job_id, keys = await rig.supervised()
    await rig.host("h4", slots=1)
    await rig.sync(await rig.where(job_id, 1), ended=[(keys[1], KILLED)])
    await rig.replace()
    task = await seat_rank(rig, job_id, 1)
    await rig.append_log("h4", task.key, "stdout", 0, b"x", True, 1 << 20)
    await rig.sync(await rig.where(job_id, 0), ended=[(keys[0], OK)])
    for host, key in (("h4", task.key), (await rig.where(job_id, 2), keys[2])):
        await rig.sync(host, ended=[(key, STOPPED)])
    await rig.complete()
    assert await rig.store.jobs.prune(1.0, now=rig.tick(3 * 86_400)) == 1
    assert await rig.append_log("h4", task.key, "stdout", 1, b"late", True, 1 << 20) is None


async def _fail_start(rig: Rig, job_id: str, rank: int) -> str:
    """Have a blocked member placed and offered, and give its start up; the sentence of what is
    decided then."""
    rig.tick(1)  # MEMBER-3: it fell soon after its start before
    for host in rig.incarnations:
        live = [
            t.key
            for t in await rig.store.jobs.list_tasks(job_id)
            if t.host_id == host and t.state is TaskState.RUNNING
        ]
        await rig.sync(host, live=live)
    assert job_id in await rig.admit()
    task = await find_task(rig, job_id, rank)
    await rig.sync(str(task.host_id))
    assert await rig.store.members.stop_member(
        task.key, Cause.START_TIMEOUT, "it did not start", now=rig.now
    )
    await rig.sync(str(task.host_id), ended=[(task.key, STOPPED)])
    (said,) = await rig.replace(start_failure_limit=3)
    return said


async def test_a_member_that_never_comes_up_is_parked_and_a_person_lets_it_go_on(rig: Rig) -> None:
    """MEMBER-5: the others run on, no time brings it back, and no rank is charged."""
    job_id, keys = await rig.supervised()
    await rig.sync(await rig.where(job_id, 1), ended=[(keys[1], KILLED)])
    await rig.replace()
    assert "it is replaced in 1 s, failed start 1 of 3 in a row" in await _fail_start(
        rig, job_id, 1
    )
    task = await find_task(rig, job_id, 1)
    assert (task.ready_at, task.start_failures) == (rig.now + timedelta(seconds=1), 1)
    assert "replaced in 60 s, failed start 2 of 3" in await _fail_start(rig, job_id, 1)
    rig.tick(59)
    assert await rig.admit() == []
    said = await _fail_start(rig, job_id, 1)
    assert "parked after 3 failed starts in a row, until `holdfast retry`" in said
    task = await find_task(rig, job_id, 1)
    assert (task.state, task.is_parked, task.host_id, task.stop_reason) == (
        TaskState.BLOCKED,
        True,
        None,
        said,
    )
    rig.tick(30 * 86_400.0)
    for host in rig.incarnations:
        live = [
            t.key
            for t in await rig.store.jobs.list_tasks(job_id)
            if t.host_id == host and t.state is TaskState.RUNNING
        ]
        await rig.sync(host, live=live)
    assert await rig.admit() == []
    assert (await rig.kinds(job_id))[-1] == "task.parked"
    job = await rig.job(job_id)
    assert (job.state, job.attempts, job.infra_charged) == (JobState.RUNNING, 1, 1), (
        "only the fall that came first"
    )
    await rig.store.members.unpark_members(job_id, "tried again by ann", now=rig.now)
    with pytest.raises(Conflict):
        await rig.store.members.unpark_members(job_id, "twice", now=rig.now)
    assert (await rig.kinds(job_id))[-1] == "task.released"
    assert (await find_task(rig, job_id, 1)).stop_reason is None
    assert "failed start 1 of 3 in a row" in await _fail_start(rig, job_id, 1), "it counts anew"
    rig.tick(60)
    for host in rig.incarnations:
        live = [
            t.key
            for t in await rig.store.jobs.list_tasks(job_id)
            if t.host_id == host and t.state is TaskState.RUNNING
        ]
        await rig.sync(host, live=live)
    task = await seat_rank(rig, job_id, 1)
    assert task.state is TaskState.RUNNING


async def test_a_parked_member_ends_with_its_job(rig: Rig) -> None:
    job_id, keys = await rig.supervised()
    await rig.sync(await rig.where(job_id, 1), ended=[(keys[1], KILLED)])
    await rig.replace()
    for _ in range(3):
        await _fail_start(rig, job_id, 1)
        rig.tick(61)
    assert (await find_task(rig, job_id, 1)).is_parked
    await rig.sync(await rig.where(job_id, 0), ended=[(keys[0], OK)])
    with pytest.raises(Conflict):
        await rig.store.members.unpark_members(job_id, "too late", now=rig.now)
    await rig.sync(await rig.where(job_id, 2), ended=[(keys[2], STOPPED)])
    assert await rig.complete() == [job_id]
    assert (await rig.job(job_id)).state is JobState.SUCCEEDED
    with pytest.raises(NotFound):
        await rig.store.members.unpark_members("nobody", "", now=rig.now)


async def test_forensics_of_every_life_of_a_rank_are_kept(rig: Rig) -> None:
    job_id, keys = await rig.supervised()
    await rig.host("h4", slots=1)
    first_host = await rig.where(job_id, 1)
    await rig.sync(first_host, ended=[(keys[1], KILLED)])
    await rig.replace()
    second = await seat_rank(rig, job_id, 1)
    lives = [(first_host, keys[1], "the first"), (str(second.host_id), second.key, "the second")]
    accounts = [
        Forensics(key=key, reason=why, seconds=1.0, sections={"stacks": why})
        for _, key, why in lives
    ]
    # The second may well arrive before the first, which is sent again until it is taken.
    for (host, *_), account in [*zip(lives, accounts, strict=True)][::-1] * 2:
        await rig.store.logs.put_forensics(host, account)
    assert await rig.store.logs.get_forensics(job_id) == [(1, account) for account in accounts]
    with pytest.raises(Stale):
        await rig.store.logs.put_forensics(first_host, accounts[1])


async def test_a_section_excuses_the_other_ranks_of_its_gang_until_it_ends(rig: Rig) -> None:
    """EXCUSE-1. Only the host that runs a rank tells of its section."""
    await rig.host("h1", slots=4)
    _, (zero, one) = await rig.running_gang(2)
    _, (other, _) = await rig.running_gang(2)
    members = rig.store.members
    await members.tell_sections("h1", [(zero, 100.0)], now=rig.now)
    assert await members.find_excuses([zero, one, other], now=rig.now) == {one: 100.0}
    rig.tick(40.0)
    assert await members.find_excuses([one], now=rig.now) == {one: 60.0}
    stale = TaskKey(zero.job_id, zero.rank, zero.epoch + 1)
    await members.tell_sections("h1", [(stale, 900.0)], now=rig.now)
    await members.tell_sections("h2", [(zero, 900.0)], now=rig.now)
    assert await members.find_excuses([one], now=rig.now) == {one: 60.0}
    await members.tell_sections("h1", [(zero, 0.0)], now=rig.now)
    assert await members.find_excuses([one], now=rig.now) == {}
    await members.tell_sections("h1", [(zero, 50.0)], now=rig.now)
    rig.tick(50.0)
    assert await members.find_excuses([one], now=rig.now) == {}
