"""plan_completion: when a drain is over, which rank is charged, and what a cancel means (DRAIN-1,
DRAIN-2)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.causes import Cause, Watchdog, WatchdogExit
from holdfast.core.endings.decide import Charges, Policy
from holdfast.core.endings.drain import do_others_serve, may_start_elsewhere, plan_completion
from holdfast.core.endings.rules import OperatorRule
from holdfast.core.endings.trigger import classify_failures, find_trigger
from holdfast.core.facts import TaskFacts, Trip
from holdfast.core.host_faults import Hindrance
from holdfast.core.lease import host_deadline, margin_seconds
from holdfast.core.records import HostRecord, JobRecord, RankCharges, TaskRecord
from holdfast.core.retry import RetryPolicy
from holdfast.core.spec import JobSpec
from holdfast.core.states import HostState, JobEvent, JobState, TaskState

T0 = datetime(2026, 1, 1, tzinfo=UTC)


def job(**changes: object) -> JobRecord:
    fields: dict[str, object] = {
        "id": "j", "name": "j", "project": "default", "queue": "cpu", "priority": 50, "state": JobState.DRAINING, "reason": "",
        "tasks": 1, "gpus": 0, "cpu_slots": 1, "memory_bytes": 0, "labels": {}, "spec": JobSpec(argv=("true",)),
        "epoch": 3, "attempts": 2, "created_at": T0,
    }  # fmt: skip
    return JobRecord(**(fields | changes))  # type: ignore[arg-type]  # a test's shorthand


def task(
    rank: int, state: TaskState, *, ended: int | None = None, facts: TaskFacts | None = None
) -> TaskRecord:
    at = None if ended is None else T0 + timedelta(seconds=ended)
    return TaskRecord(
        job_id="j",
        rank=rank,
        epoch=3,
        attempt=2,
        state=state,
        ended_at=at,
        facts=facts,
        host_id="h",
        host_name="h",
    )


FAILED = TaskFacts(exit_code=7)
TRIPPED = TaskFacts(
    signal=9,
    trip=Trip(watchdog=Watchdog.STALL, exit_code=WatchdogExit.STALL, reason="no beat for 3 s"),
)


@given(st.lists(st.sampled_from(TaskState), min_size=1, max_size=6))
def test_never_complete_while_a_lease_is_held(states: list[TaskState]) -> None:
    """DRAIN-1."""
    completion = plan_completion(
        job(), [task(i, s, facts=FAILED) for i, s in enumerate(states)], Policy(), (), chance=0.0
    )
    assert (completion is None) == any(s.holds_lease for s in states)


def test_the_first_failure_is_the_trigger_not_the_loudest() -> None:
    """DRAIN-2."""
    tasks = [
        task(0, TaskState.FAILED, ended=9, facts=FAILED),
        task(1, TaskState.FAILED, ended=4, facts=TRIPPED),
        task(2, TaskState.PREEMPTED, ended=2),
    ]
    trigger = find_trigger(tasks, classify_failures(tasks, ()))
    assert trigger is not None
    assert trigger.rank == 1
    completion = plan_completion(job(), tasks, Policy(), (), chance=0.0)
    assert completion is not None
    assert completion.decision.cause is Cause.STALLED
    assert completion.decision.exit_code == 76
    assert [m.trigger for m in completion.members] == [False, True, False]


def test_what_the_owner_should_know_stands_in_the_reason_of_a_failure() -> None:
    facts = TaskFacts(exit_code=9, notices=("its checkpoint was not taken", "output is lost"))
    done = plan_completion(
        job(), [task(0, TaskState.FAILED, ended=1, facts=facts)], Policy(), (), chance=0.5
    )
    assert done is not None
    told = "; its checkpoint was not taken (and 1 more: see its events)"
    assert done.decision.reason.endswith(told)


def test_a_cancel_wins_over_the_way_the_task_died() -> None:
    cancelled = job(drain_cause=Cause.USER_CANCELLED, drain_reason="cancelled by a person")
    completion = plan_completion(
        cancelled,
        [task(0, TaskState.FAILED, ended=1, facts=TaskFacts(signal=15))],
        Policy(),
        (),
        chance=0.0,
    )
    assert completion is not None
    assert completion.decision.event is JobEvent.CANCEL
    assert completion.decision.exit_code == 143


def test_a_task_that_finished_before_the_cancel_reached_it_has_succeeded() -> None:
    cancelled = job(drain_cause=Cause.USER_CANCELLED, drain_reason="cancelled by a person")
    completion = plan_completion(
        cancelled,
        [task(0, TaskState.DONE, ended=1, facts=TaskFacts(exit_code=0))],
        Policy(),
        (),
        chance=0.0,
    )
    assert completion is not None
    assert completion.decision.event is JobEvent.SUCCEED


def test_an_operators_stop_costs_nothing_and_keeps_its_exit_code() -> None:
    trip = Trip(
        watchdog=Watchdog.OPERATOR_STOP,
        exit_code=WatchdogExit.OPERATOR_STOP,
        reason="host h was switched off",
    )
    asked = job(drain_cause=Cause.HOST_DRAINED, drain_reason="host h was switched off")
    facts = TaskFacts(signal=9, stopped=True, trip=trip)
    completion = plan_completion(
        asked, [task(0, TaskState.PREEMPTED, ended=1, facts=facts)], Policy(), (), chance=0.0
    )
    assert completion is not None
    assert (completion.decision.event, completion.decision.exit_code) == (JobEvent.REQUEUE, 79)
    assert completion.decision.charges.watchdog == 0


@pytest.mark.parametrize("ttl", [15.0, 60.0, 300.0, 3600.0])
def test_two_attempts_never_overlap(ttl: float) -> None:
    """LEASE-2: the host's deadline counts from the start of its sync, the controller's from its own
    later clock."""
    for delay in (0.0, 0.5, 5.0):  # between the sync's start and the controller's renewal
        replaced_at = delay + ttl + margin_seconds(ttl)
        assert host_deadline(0.0, ttl) + 2 * margin_seconds(ttl) <= replaced_at


# ---- what a decision is fed with


RETRYING = Policy(
    retry=RetryPolicy(max_retries=5, retry_delay=8.0, jitter="random", jitter_ratio=1.0)
)


def test_charges_steps_and_chance_reach_the_decision() -> None:
    """RETRY-4: the furthest step of any task counts, against what the job has on record."""
    stuck = job(retries_charged=2, watchdog_charged=1, infra_charged=4, best_step=70, no_progress=1)
    tasks = [msgspec.structs.replace(task(0, TaskState.FAILED, ended=1, facts=FAILED), step=70)]
    completion = plan_completion(stuck, tasks, RETRYING, (), chance=0.5)
    assert completion is not None
    decision = completion.decision
    assert decision.charges == Charges(retries=3, watchdog=1, infra=4, best_step=70, no_progress=2)
    assert completion.totals == RankCharges(retries=3, watchdog=1, infra=4)
    assert (decision.event, decision.delay_seconds) == (JobEvent.BACK_OFF, 12.0)
    tasks = [msgspec.structs.replace(tasks[0], step=71)]
    further = plan_completion(stuck, tasks, RETRYING, (), chance=0.0)
    assert further is not None
    assert (further.decision.charges.best_step, further.decision.charges.no_progress) == (71, 0)


def test_the_window_goes_by_how_long_the_trigger_ran() -> None:
    """BUDGET-4."""
    policy = Policy(retry=RetryPolicy(max_retries=1), budget_reset_seconds=100.0)
    spent = job(retries_charged=1)
    events = []
    for ran in (99.0, 100.0):
        facts = TaskFacts(exit_code=7, runtime_seconds=ran)
        completion = plan_completion(
            spent, [task(0, TaskState.FAILED, ended=1, facts=facts)], policy, (), chance=0.0
        )
        assert completion is not None
        events.append(completion.decision.event)
    assert events == [JobEvent.FAIL, JobEvent.BACK_OFF]


def test_an_operators_rule_is_heard() -> None:
    rule = OperatorRule(
        name="no-license", exit_codes=(7,), never_retry=True, message="the licence server said no"
    )
    completion = plan_completion(
        job(), [task(0, TaskState.FAILED, ended=1, facts=FAILED)], RETRYING, (rule,), chance=0.0
    )
    assert completion is not None
    assert completion.decision.event is JobEvent.FAIL
    assert "no-license" in completion.decision.reason
    assert completion.members[0].rule == completion.decision.rule == "operator:no-license"


def test_an_interactive_job_is_not_run_again() -> None:
    shell = job(spec=JobSpec(argv=("sh",), interactive=True))
    completion = plan_completion(
        shell, [task(0, TaskState.FAILED, ended=1, facts=FAILED)], RETRYING, (), chance=0.0
    )
    assert completion is not None
    assert completion.decision.event is JobEvent.FAIL


NEVER_STARTED = TaskFacts(start_error="no such program: 'x'", exit_code=127)


def host(name: str, **changes: object) -> HostRecord:
    fields: dict[str, object] = {
        "id": name, "name": name, "pool": "", "state": HostState.ACTIVE, "reason": "", "incarnation": "i", "queues": (),
        "labels": {}, "cpu_slots": 2, "memory_bytes": 0, "gpus": (), "address": "", "version": "", "probe": "",
        "registered_at": T0,
    }  # fmt: skip
    return HostRecord(**(fields | changes))  # type: ignore[arg-type]  # a test's shorthand


@pytest.mark.parametrize(
    ("hosts", "changes", "elsewhere"),
    [
        ([host("h")], {}, False),
        ([host("h"), host("i")], {}, True),
        ([host("h"), host("i")], {"avoid_hosts": ("i",)}, False),
        ([host("h"), host("i", state=HostState.DRAINING)], {}, False),
        ([host("h"), host("i", flagged_dead_at=T0)], {}, False),
        ([host("h"), host("i", queues=("gpu",))], {}, False),
        ([host("h"), host("i", cpu_slots=0)], {}, False),
        ([host("h"), host("i")], {"avoid_hosts": ("a", "b"), "start_failures": 2}, False),
        ([host("h"), host("i")], {"avoid_hosts": ("a", "b")}, True),
        ([host("h"), host("i")], {"cause": Cause.OOM_KILLED}, True),
        ([host("h"), host("i")], {"cause": Cause.PROGRAM_ERROR}, False),
    ],
)
def test_a_program_that_never_starts_is_tried_elsewhere_first(
    hosts: list[HostRecord], changes: dict[str, object], elsewhere: bool
) -> None:
    """BUDGET-7, BUDGET-9."""
    tasks = [task(0, TaskState.FAILED, ended=1, facts=NEVER_STARTED)]
    assert may_start_elsewhere(job(**changes), tasks, hosts) is elsewhere


@pytest.mark.parametrize("elsewhere", [True, False])
def test_a_program_that_never_starts_fails_its_job_when_no_host_is_left(elsewhere: bool) -> None:
    """BUDGET-7."""
    tasks = [task(0, TaskState.FAILED, ended=1, facts=NEVER_STARTED)]
    policy = Policy(retry=RetryPolicy(max_retries=5))
    done = plan_completion(job(), tasks, policy, (), chance=0.0, elsewhere=elsewhere)
    assert done is not None
    decision = done.decision
    if elsewhere:
        assert (decision.event, decision.cause) == (JobEvent.REQUEUE, Cause.START_TIMEOUT)
        assert (decision.avoid_host, decision.charges.retries) == (True, 0)
    else:
        assert (decision.event, decision.cause) == (JobEvent.FAIL, Cause.VALIDATION_ERROR)
        assert (decision.exit_code, decision.charges.retries) == (127, 0)


SHORT = TaskFacts(start_error="no space left on device", lost="it could not start the task")
FULL = Hindrance(part="starts", reason="no space left on device")
AWAY = Hindrance(part="containers", reason="docker is away", runtimes=("any",))
BOXED = JobSpec(argv=("true",), image="a")


@pytest.mark.parametrize(
    ("hosts", "changes", "serve"),
    [
        ([host("h", faults=(FULL,)), host("i")], {}, True),
        ([host("h", faults=(FULL,)), host("i")], {"avoid_hosts": ("i",)}, True),
        ([host("h"), host("i")], {}, False),  # its agent does not set itself aside
        ([host("h", faults=(FULL,))], {}, False),
        ([host("h", faults=(FULL,)), host("i", faults=(FULL,))], {}, False),
        ([host("h", faults=(FULL,)), host("i", state=HostState.DRAINING)], {}, False),
        ([host("h", faults=(AWAY,)), host("i")], {"spec": BOXED}, True),
        ([host("h", faults=(FULL,)), host("i", faults=(AWAY,))], {"spec": BOXED}, False),
        ([host("h", faults=(FULL,)), host("i", faults=(AWAY,))], {}, True),
    ],
)
def test_others_serve_where_the_host_stepped_aside(
    hosts: list[HostRecord], changes: dict[str, object], serve: bool
) -> None:
    """ASIDE-2."""
    tasks = [task(0, TaskState.FAILED, ended=1, facts=SHORT)]
    assert do_others_serve(job(**changes), tasks, hosts) is serve


@pytest.mark.parametrize("failures", range(1, 9))
def test_no_job_waits_for_a_host_that_stepped_aside(failures: int) -> None:
    """ASIDE-2: but one that breaks host after host is parked."""
    tasks = [task(0, TaskState.FAILED, ended=1, facts=SHORT)]
    for serve in (True, False):
        done = plan_completion(
            job(start_failures=failures - 1), tasks, Policy(), (), chance=0.0, others_serve=serve
        )
        assert done is not None
        decision = done.decision
        assert (decision.rule, decision.charges.start_failures) == ("host-start", failures)
        at_once = failures == 1 or (serve and failures < 8)
        assert (decision.event is JobEvent.REQUEUE) is at_once
        assert decision.parked is (failures == 8)
