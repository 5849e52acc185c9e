"""The state machine can fail: Holdfast is broken in one place at a time, and each time the machine
has to notice.

Off by default, because finding takes seconds per mutant: `HOLDFAST_HYPOTHESIS=long` runs it, and
`quick` those that are found within a few runs of chaos, which `.ci/run` does every time.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from holdfast.core import lease
from holdfast.core.causes import Cause
from holdfast.core.endings import drain, replace
from holdfast.core.endings.decide import decide
from holdfast.core.placement import takes
from holdfast.core.records import RankCharges
from holdfast.core.states import TaskEvent, TaskState
from holdfast.errors import InvalidTransition
from holdfast.moves import registration
from holdfast.moves.jobs import dispatch, drains, members, moves, requests, runs
from holdfast.moves.jobs.reports import AnswerBuilder
from holdfast.moves.jobs.room import RoomCheck
from tests.model.hosts import MemoryHosts
from tests.model.jobs import leases
from tests.model.jobs.admission import MemoryAdmission
from tests.model.jobs.drains import MemoryDrains
from tests.model.jobs.leases import MemoryLeases
from tests.model.jobs.members import MemoryMembers
from tests.model.state import MemoryState
from tests.protocol.host import Host
from tests.protocol.machine import Protocol

EXAMPLES = 2500
HOW_MANY = os.environ.get("HOLDFAST_HYPOTHESIS", "")
SEED = int(os.environ.get("HOLDFAST_HYPOTHESIS_SEED", "0"))
Patch = pytest.MonkeyPatch
Break = Callable[[Patch], None]
LONG_AGO = datetime.fromisoformat("2000-01-01T00:00:00+00:00")


def host_without_margin(p: Patch) -> None:
    p.setattr(lease, "host_deadline", lambda started_at, ttl: started_at + ttl)


def controller_without_margin(p: Patch) -> None:
    p.setattr(requests, "margin_seconds", lambda ttl: 0.0)


def guardian_without_deadline(p: Patch) -> None:
    p.setattr(lease, "host_deadline", lambda started_at, ttl: math.inf)


def lease_counted_from_the_answer(p: Patch) -> None:
    take = Host.take_answer

    def late(self: Host, request: Any, answer: Any, now: float) -> None:
        clock = self.clock(now)
        fields = {**vars(request), "started_at": clock}
        take(self, type(request)(**fields), answer, now)

    p.setattr(Host, "take_answer", late)


def reaping_at_once_after_a_restart(p: Patch) -> None:
    lapse = requests.lapse
    p.setattr(requests, "lapse", lambda m, leading_since, *more: lapse(m, LONG_AGO, *more))


def incarnation_not_guarded(p: Patch) -> None:
    p.setattr(
        MemoryLeases,
        "_status",
        lambda self, sync: "ok" if sync.host_id in self.state.hosts else "unknown",
    )


def reports_not_guarded(p: Patch) -> None:
    p.setattr(AnswerBuilder, "speaks_for", lambda self, task, key: task is not None)


def epoch_not_guarded(p: Patch) -> None:
    def speaks_for(self: AnswerBuilder, task: Any, key: Any) -> bool:
        return task is not None and (task.host_id, task.incarnation) == (
            self.sync.host_id,
            self.sync.incarnation,
        )

    p.setattr(AnswerBuilder, "speaks_for", speaks_for)
    p.setattr(
        MemoryState, "task_for", lambda self, key: self.tasks.get(key.job_id, {}).get(key.rank)
    )


def drain_done_while_tasks_still_stop(p: Patch) -> None:
    p.setattr(
        TaskState, "holds_lease", property(lambda s: s in (TaskState.RESERVED, TaskState.RUNNING))
    )


def stop_confirmed_by_asking(p: Patch) -> None:
    begin = drains.begin_drain

    def hasty(m: Any, job: Any, *args: Any, **options: Any) -> None:
        begin(m, job, *args, **options)
        for task in m.ranks(job):
            if task.state is TaskState.PREEMPTING:
                m.move_task(task, TaskEvent.CONFIRM)

    p.setattr(drains, "begin_drain", hasty)


def epoch_given_twice(p: Patch) -> None:
    complete = drains.complete_drain

    def back(m: Any, job: Any, completion: Any) -> Any:
        found = complete(m, job, completion)
        job.epoch -= 2
        return found

    p.setattr(drains, "complete_drain", back)


def epoch_not_grown_by_drains(p: Patch) -> None:
    complete = drains.complete_drain

    def still(m: Any, job: Any, completion: Any) -> Any:
        found = complete(m, job, completion)
        job.epoch -= 1
        return found

    p.setattr(drains, "complete_drain", still)


def completion_of_an_earlier_epoch(p: Patch) -> None:
    complete = MemoryDrains.complete_drain

    async def blind(
        self: Any, job_id: str, epoch: int, completion: Any, *, now: Any = None
    ) -> bool:
        return await complete(self, job_id, self.state.jobs[job_id].row.epoch, completion, now=now)

    p.setattr(MemoryDrains, "complete_drain", blind)


def older_answers_command(p: Patch) -> None:
    take = Host.take_answer

    def any_order(self: Host, request: Any, answer: Any, now: float) -> None:
        self.newest_taken = 0
        take(self, request, answer, now)

    p.setattr(Host, "take_answer", any_order)


def older_answers_command_and_no_tombstones(p: Patch) -> None:
    older_answers_command(p)
    settle = Host._settle

    def forget(self: Host, key: Any) -> None:
        settle(self, key)
        self.buried.discard(key)
        self.tombstones.discard(key)

    p.setattr(Host, "_settle", forget)


def one_more_than_the_budget(p: Patch) -> None:
    def generous(found: Any, charges: Any, policy: Any, ending: Any, *, chance: float) -> Any:
        more = {name: getattr(policy, name) + 1 for name in ("watchdog_cap", "infra_cap")}
        retry = msgspec.structs.replace(policy.retry, max_retries=policy.retry.max_retries + 1)
        return decide(
            found,
            charges,
            msgspec.structs.replace(policy, retry=retry, **more),
            ending,
            chance=chance,
        )

    p.setattr(drain, "decide", generous)


def cancelled_jobs_run_again(p: Patch) -> None:
    def again(found: Any, charges: Any, policy: Any, ending: Any, *, chance: float) -> Any:
        decision = decide(found, charges, policy, ending, chance=chance)
        if found.cause is Cause.USER_CANCELLED:
            preempted = msgspec.structs.replace(found, cause=Cause.PREEMPTED)
            return msgspec.structs.replace(
                decide(preempted, charges, policy, ending, chance=chance), cause=found.cause
            )
        return decision

    p.setattr(drain, "decide", again)


def siblings_charged(p: Patch) -> None:
    def double(found: Any, charges: Any, policy: Any, ending: Any, *, chance: float) -> Any:
        once = decide(found, charges, policy, ending, chance=chance)
        more = msgspec.structs.replace(once.charges, infra=once.charges.infra * 2 - charges.infra)
        return msgspec.structs.replace(once, charges=more)

    p.setattr(drain, "decide", double)


def kill_switch_not_looked_at(p: Patch) -> None:
    p.setattr(dispatch.Switches, "held_by", lambda self, project: None)


def held_retries_forgotten(p: Patch) -> None:
    p.setattr(dispatch, "resume_retry", lambda m, job: None)


def retries_before_their_time(p: Patch) -> None:
    release = MemoryAdmission.release_due

    async def early(self: Any, retry_limit: int | None = None, *, now: Any = None) -> Any:
        await release(self, retry_limit, now=now + timedelta(seconds=2))
        return await release(self, retry_limit, now=now)

    p.setattr(MemoryAdmission, "release_due", early)


def back_off_without_a_time(p: Patch) -> None:
    wait = drains._wait_for_retry

    def timeless(m: Any, job: Any, decision: Any) -> None:
        wait(m, job, decision)
        job.wait_until = None

    p.setattr(drains, "_wait_for_retry", timeless)


def retries_not_counted_on_the_attempt(p: Patch) -> None:
    reserve = MemoryAdmission.reserve_one

    def forgetful(self: Any, job: Any, *args: Any, **road: Any) -> None:
        reserve(self, job, *args, **road)
        chain = self.state.attempts[job.row.id]
        chain[-1] = msgspec.structs.replace(chain[-1], retry_count=0)

    p.setattr(MemoryAdmission, "reserve_one", forgetful)


def room_not_checked_again(p: Patch) -> None:
    p.setattr(RoomCheck, "reserve_job", lambda self, placement, need: True)


def reservation_of_an_earlier_epoch_and_state(p: Patch) -> None:
    take = MemoryAdmission.reserve_one

    def twice(self: Any, job: Any, *args: Any, **road: Any) -> None:
        take(self, job, *args, **road)
        job.row.epoch -= 1

    p.setattr(MemoryAdmission, "reserve_one", twice)


def taken_without_a_look_at_the_room(p: Patch) -> None:
    p.setattr(takes, "_count_fitting", lambda job, host, limit: limit)


def one_rank_is_enough(p: Patch) -> None:
    p.setattr(runs, "all", any, raising=False)


def late_registration_frees_the_present(p: Patch) -> None:
    p.setattr(registration, "follow_incarnation", lambda *given: ())


def half_told_gang_stays_reserved(p: Patch) -> None:
    """Neither its reservation nor its start has a time; one of them alone would be enough to free
    it."""

    async def none(self: Any, *, now: Any = None) -> list[Any]:
        return []

    p.setattr(requests, "run_out", lambda m, job, reason, missing: None)
    p.setattr(MemoryAdmission, "list_reserved", none)


def requeue_without_event(p: Patch) -> None:
    log = moves.Moves.log

    def silent(self: Any, kind: str, *args: Any, **options: Any) -> None:
        if kind != "job.requeued":
            log(self, kind, *args, **options)

    p.setattr(moves.Moves, "log", silent)


def stopping_tasks_never_lapse(p: Patch) -> None:
    lapse = requests.lapse

    def some(m: Any, leading_since: datetime, *more: Any) -> list[str]:
        for job_id in [
            i
            for i, ts in m.tasks.items()
            if any(t.state is TaskState.PREEMPTING for t in ts.values())
        ]:
            del m.jobs[job_id]
        return lapse(m, leading_since, *more)

    p.setattr(requests, "lapse", some)


def late_cancel_rewrites_the_end(p: Patch) -> None:
    cancel = requests.cancel

    def touch(m: Any, job: Any, reason: str, *, hard: bool) -> None:
        if job.state.terminal:
            m.touch(job, reason)
        cancel(m, job, reason, hard=hard)

    p.setattr(requests, "cancel", touch)


def ends_never_acknowledged(p: Patch) -> None:
    answer = AnswerBuilder.answer
    p.setattr(AnswerBuilder, "answer", lambda self: msgspec.structs.replace(answer(self), acked=()))


def lease_not_renewed_in_the_store(p: Patch) -> None:
    grant = leases._grant

    def once(task: Any, at: datetime) -> None:
        if task.lease_until is None:
            grant(task, at)

    p.setattr(leases, "_grant", once)


def barrier_opens_one_claim_early(p: Patch) -> None:
    claim = runs.claim_task

    def early(m: Any, job: Any, task: Any, port: int) -> None:
        claim(m, job, task, port)
        ranks = m.ranks(job)
        if job.state == "reserved" and sum(t.claimed_at is None for t in ranks) <= 1:
            for other in ranks:
                other.barrier = True
                m.changed_tasks[other.job_id, other.rank] = other

    p.setattr(runs, "claim_task", early)


def told_ranks_confirmed_at_once(p: Patch) -> None:
    begin = drains.begin_drain

    def hasty(m: Any, job: Any, *args: Any, **options: Any) -> None:
        waiting = [t for t in m.ranks(job) if t.state is TaskState.RESERVED]
        begin(m, job, *args, **options)
        for task in waiting:
            if task.state is TaskState.PREEMPTING:
                m.move_task(task, TaskEvent.CONFIRM)

    p.setattr(drains, "begin_drain", hasty)


def all_who_fell_are_charged(p: Patch) -> None:
    add_up = drain._add_up

    def everybody(job: Any, before: Any, charges: Any, decision: Any, trigger: Any) -> Any:
        totals, by_rank = add_up(job, before, charges, decision, trigger)
        mine = by_rank.get(str(trigger.rank)) if trigger is not None else None
        return totals, (
            {str(rank): mine for rank in range(job.tasks)} if mine and job.tasks > 1 else by_rank
        )

    p.setattr(drain, "_add_up", everybody)


def a_second_drain_of_an_epoch(p: Patch) -> None:
    force = drains.force_drain

    def again(m: Any, job: Any) -> int:
        forced = force(m, job)
        if forced:
            m.log("job.draining", job, "once more", cause="preempted")
        return forced

    p.setattr(drains, "force_drain", again)


def lease_shorter_in_the_store(p: Patch) -> None:
    grant = leases._grant
    p.setattr(leases, "_grant", lambda task, at: grant(task, at - timedelta(seconds=3)))


def members_keep_their_epoch(p: Patch) -> None:
    seat = members.seat_members

    def same(m: Any, job: Any, placement: Any, *more: Any) -> None:
        job.epoch -= 1
        seat(m, job, placement, *more)

    p.setattr(members, "seat_members", same)


def stopped_members_gone_at_once(p: Patch) -> None:
    stop = members.stop_member

    def hasty(m: Any, job: Any, task: Any, *more: Any, **options: Any) -> None:
        stop(m, job, task, *more, **options)
        if task.state is TaskState.PREEMPTING:
            m.move_task(task, TaskEvent.CONFIRM)

    p.setattr(members, "stop_member", hasty)


def silent_members_gone_at_once(p: Patch) -> None:
    """A member's place is given to another while its host may still run it, because no lease is
    waited for."""
    sweep = MemoryHosts.sweep_dead_hosts

    async def eager(self: Any, dead_seconds: float, since: Any, *, now: Any = None) -> Any:
        flagged = await sweep(self, dead_seconds, since, now=now)
        for host in flagged:
            for task in self.state.live_tasks(host.id):
                m = self.state.load([task.job_id], now)
                job, mine = m.jobs[task.job_id], m.tasks[task.job_id][task.rank]
                if job.supervised and task.rank > 0 and task.barrier:
                    runs.lose_task(m, job, mine, "host_gone")
                    self.state.commit(m)
        return flagged

    p.setattr(MemoryHosts, "sweep_dead_hosts", eager)


def offered_members_taken_back(p: Patch) -> None:
    release = members.release_unoffered

    def forget(m: Any, job: Any, before: datetime) -> bool:
        for task in m.ranks(job):
            if task.state is TaskState.RESERVED and task.replaced:
                task.offered_at = None
        return release(m, job, before + timedelta(seconds=10))

    p.setattr(members, "release_unoffered", forget)


def falls_decided_again(p: Patch) -> None:
    """A second leader's decision is carried out once more, on what the member has become
    meanwhile."""

    def any_life(m: Any, job: Any, rank: int, epoch: int) -> Any:
        task = m.tasks[job.id].get(rank)
        return (
            task
            if task is not None and task.state in members.FALLEN and job.state in members.GOING_ON
            else None
        )

    p.setattr(members, "find_fallen", any_life)


def replacements_not_charged(p: Patch) -> None:
    plan = replace.plan_replacement

    def free(job: Any, task: Any, *more: Any) -> Any:
        before = job.rank_charges.get(str(task.rank), RankCharges())
        return msgspec.structs.replace(plan(job, task, *more), charges=before)

    p.setattr(replace, "plan_replacement", free)


def given_up_members_charged_twice(p: Patch) -> None:
    plan = replace.plan_replacement

    def twice(job: Any, task: Any, *more: Any) -> Any:
        found = plan(job, task, *more)
        if found.go_on:
            return found
        return msgspec.structs.replace(
            found, charges=msgspec.structs.replace(found.charges, infra=found.charges.infra + 1)
        )

    p.setattr(replace, "plan_replacement", twice)


def script_waits_like_a_member(p: Patch) -> None:
    fail = runs._fail_task

    def patient(m: Any, job: Any, task: Any, rules: Any) -> None:
        if job.supervised and task.rank == 0 and job.state in members.GOING_ON:
            m.move_task(task, TaskEvent.FAIL)
        else:
            fail(m, job, task, rules)

    p.setattr(runs, "_fail_task", patient)


def fallen_members_never_decided(p: Patch) -> None:
    async def none(self: Any, limit: int, *, now: Any = None) -> list[Any]:
        return []

    p.setattr(MemoryMembers, "list_members", none)
    p.setattr(runs, "start_job", lambda m, job: None)


def fallen_members_hold_their_places(p: Patch) -> None:
    empty = members._empty

    def keep(task: Any) -> None:
        host = (task.host_id, task.host_name, task.incarnation)
        empty(task)
        task.host_id, task.host_name, task.incarnation = host

    p.setattr(members, "_empty", keep)


def goodbyes_believed(p: Patch) -> None:
    p.setattr(leases, "is_unheard", lambda m, sync: False)


BREAKS: Sequence[Break] = [
    goodbyes_believed,
    members_keep_their_epoch, stopped_members_gone_at_once, silent_members_gone_at_once, offered_members_taken_back,
    falls_decided_again, replacements_not_charged, given_up_members_charged_twice, script_waits_like_a_member,
    fallen_members_never_decided, fallen_members_hold_their_places,
    host_without_margin, controller_without_margin, guardian_without_deadline, lease_counted_from_the_answer,
    reaping_at_once_after_a_restart, incarnation_not_guarded, reports_not_guarded, epoch_not_guarded,
    drain_done_while_tasks_still_stop, stop_confirmed_by_asking, epoch_given_twice, epoch_not_grown_by_drains,
    completion_of_an_earlier_epoch, older_answers_command_and_no_tombstones, one_more_than_the_budget,
    cancelled_jobs_run_again, siblings_charged, room_not_checked_again, reservation_of_an_earlier_epoch_and_state,
    one_rank_is_enough, late_registration_frees_the_present, half_told_gang_stays_reserved, requeue_without_event,
    stopping_tasks_never_lapse, late_cancel_rewrites_the_end, ends_never_acknowledged, lease_not_renewed_in_the_store,
    lease_shorter_in_the_store, kill_switch_not_looked_at, held_retries_forgotten, retries_before_their_time,
    back_off_without_a_time, retries_not_counted_on_the_attempt, barrier_opens_one_claim_early,
    told_ranks_confirmed_at_once, all_who_fell_are_charged, a_second_drain_of_an_epoch,
    taken_without_a_look_at_the_room,
]  # fmt: skip


QUICK = (
    goodbyes_believed,
    silent_members_gone_at_once, script_waits_like_a_member, fallen_members_never_decided,
    guardian_without_deadline, drain_done_while_tasks_still_stop, stop_confirmed_by_asking, epoch_given_twice,
    epoch_not_grown_by_drains, cancelled_jobs_run_again, reservation_of_an_earlier_epoch_and_state,
    requeue_without_event, ends_never_acknowledged, lease_not_renewed_in_the_store, lease_shorter_in_the_store,
    told_ranks_confirmed_at_once, a_second_drain_of_an_epoch, taken_without_a_look_at_the_room,
)  # fmt: skip


@pytest.mark.parametrize("break_it", BREAKS, ids=lambda b: b.__name__)
def test_what_is_broken_is_there(break_it: Break, monkeypatch: pytest.MonkeyPatch) -> None:
    """A break that patches a name which has moved breaks nothing; patching it fails at once."""
    break_it(monkeypatch)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("break_it", BREAKS, ids=lambda b: b.__name__)
def test_a_broken_holdfast_is_noticed(break_it: Break, monkeypatch: pytest.MonkeyPatch) -> None:
    if HOW_MANY != "long" and not (HOW_MANY == "quick" and break_it in QUICK):
        pytest.skip("minutes; HOLDFAST_HYPOTHESIS=long runs it")
    break_it(monkeypatch)
    profile = settings(
        max_examples=EXAMPLES,
        stateful_step_count=40,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
    )
    # Only a promise that was seen broken counts: a time-out or a flaky run is not the machine
    # noticing.
    with pytest.raises((AssertionError, InvalidTransition)) as noticed:
        run_state_machine_as_test(seed(SEED)(Protocol), settings=profile)
    print(f"{break_it.__name__}: {type(noticed.value).__name__}: {str(noticed.value)[:160]}")
