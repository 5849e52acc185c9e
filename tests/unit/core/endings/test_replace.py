"""plan_replacement: what becomes of a fallen member, over all facts, causes and policies; and the
drain agrees (MEMBER-1…4)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from holdfast.core.causes import CHARGED_TO, ELIGIBLE, Budget, Cause, Watchdog
from holdfast.core.endings.classify import classify
from holdfast.core.endings.decide import MAX_START_DELAY_SECONDS, PROOF_AGAINST_HOST, Policy
from holdfast.core.endings.drain import Completion, plan_completion
from holdfast.core.endings.fallen import EXIT_REPLACED, EXIT_SILENT
from holdfast.core.endings.replace import (
    MAX_DELAY_SECONDS,
    STEADY_SECONDS,
    Replacement,
    find_member_cause,
    plan_replacement,
)
from holdfast.core.endings.rules import OperatorRule
from holdfast.core.facts import TaskFacts
from holdfast.core.records import JobRecord, RankCharges, TaskRecord
from holdfast.core.retry import RetryPolicy
from holdfast.core.spec import JobSpec
from holdfast.core.states import JobEvent, JobState, TaskState
from holdfast.core.watchdogs.verdicts import make_trip

T0 = datetime(2026, 1, 1, tzinfo=UTC)
AGAIN = (JobEvent.REQUEUE, JobEvent.BACK_OFF)
KILLED = TaskFacts(signal=9, runtime_seconds=3.0)
GIVEN_UP = TaskFacts(exit_code=EXIT_REPLACED, runtime_seconds=3.0)
TRIPPED = TaskFacts(
    signal=9, trip=make_trip(Watchdog.STALL, "no beat for 3 s", {}), runtime_seconds=3.0
)
TOO_LONG = TaskFacts(
    signal=9, trip=make_trip(Watchdog.TIME_LIMIT, "it ran for a day", {}), runtime_seconds=3.0
)
BROKEN = TaskFacts(signal=9, xids=(79,), runtime_seconds=3.0)


def job(charges: RankCharges | None = None, *, rank: int = 1, **changes: Any) -> JobRecord:
    mine = charges or RankCharges()
    fields: dict[str, Any] = {
        "id": "j", "name": "j", "project": "default", "queue": "cpu", "priority": 50, "state": JobState.RUNNING, "reason": "",
        "tasks": 3, "gpus": 0, "cpu_slots": 1, "memory_bytes": 0, "labels": {}, "epoch": 3, "attempts": 2, "created_at": T0,
        "spec": JobSpec(argv=("true",), tasks=3, supervised=True),
        "rank_charges": {str(rank): mine} if charges else {}, "retries_charged": mine.retries,
        "watchdog_charged": mine.watchdog, "infra_charged": mine.infra,
    }  # fmt: skip
    return JobRecord(**(fields | changes))


def member(
    facts: TaskFacts | None = KILLED, state: TaskState = TaskState.FAILED, **changes: Any
) -> TaskRecord:
    fields: dict[str, Any] = {
        "job_id": "j",
        "rank": 1,
        "epoch": 3,
        "attempt": 2,
        "state": state,
        "facts": facts,
        "host_id": "h",
        "host_name": "h",
        "barrier": True,
        "offered_at": T0,
        "ended_at": T0 + timedelta(seconds=9),
    }
    return TaskRecord(**(fields | changes))


trips = st.sampled_from(Watchdog).map(lambda dog: make_trip(dog, f"the {dog} watchdog", {}))
words = st.sampled_from([None, "no space left on device", "manifest unknown", ""])
logs = st.sampled_from(
    [
        "",
        "torch.OutOfMemoryError: CUDA out of memory",
        "NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus",
        "Connection reset by peer",
        "never again",
    ]
)
measured = {
    "oom": st.just(True), "trip": trips, "stopped": st.just(True), "stop_cause": st.sampled_from(Cause), "unkillable": st.just(True),
    "xids": st.sampled_from([(79,), (13,), (999,)]), "ecc_errors": st.just(2), "gpu_lost": words, "malformed": words,
    "lost": st.sampled_from(["lease_lapsed", "new_incarnation", "host_gone"]),
}  # fmt: skip
said = {
    "exit_code": st.sampled_from([0, 1, 2, 70, 72, 72, 75, 126, 137, 255]), "signal": st.sampled_from([2, 9, 15, 64]),
    "start_error": words, "pull_error": words, "runtime_error": words, "checkpoint_error": words, "log_tail": logs,
    "runtime_seconds": st.sampled_from([-1.0, 3.0, 59.9, 60.0, 7200.0]), "max_memory_bytes": st.just(99),
    "memory_limit_bytes": st.just(100),
}  # fmt: skip
some = st.fixed_dictionaries({}, optional=said)
facts = st.none() | st.builds(
    lambda more, rest: TaskFacts(**more, **rest),
    st.just({}) | st.fixed_dictionaries({}, optional=measured),
    some,
)
members = st.builds(
    member,
    facts,
    st.sampled_from([TaskState.FAILED, TaskState.FAILED, TaskState.PREEMPTED]),
    stop_cause=st.none() | st.sampled_from([Cause.HOST_DRAINED, Cause.START_TIMEOUT, *Cause]),
    stop_reason=words,
    replaced=st.integers(0, 2000),
    start_failures=st.integers(0, 12),
    host_name=st.sampled_from([None, "h"]),
    started_at=st.sampled_from([None, T0, T0 - timedelta(days=1)]),
    ended_at=st.sampled_from([None, T0 + timedelta(seconds=9)]),
)
charges = st.builds(
    RankCharges, retries=st.integers(0, 3), watchdog=st.integers(0, 5), infra=st.integers(0, 12)
)
policies = st.builds(
    Policy,
    retry=st.builds(
        RetryPolicy,
        max_retries=st.integers(0, 3),
        eligible_causes=st.just(ELIGIBLE) | st.sets(st.sampled_from(ELIGIBLE)).map(tuple),
    ),
    watchdog_cap=st.integers(0, 4),
    infra_cap=st.integers(0, 11),
    on_trip=st.sampled_from(["requeue", "fail"]),
    no_progress_limit=st.sampled_from([None, 1, 3]),
    budget_reset_seconds=st.sampled_from([None, 50.0, 3600.0]),
    start_failure_limit=st.integers(1, 8),
    held=st.sampled_from([None, "the cluster"]),
)
rules = st.sampled_from(
    [
        (),
        (OperatorRule(name="never", pattern="never again", never_retry=True),),
        (OperatorRule(name="code", exit_codes=(1, 72), cause=Cause.STALLED),),
        (OperatorRule(name="any", pattern=".", cause=Cause.START_TIMEOUT, never_retry=True),),
    ]
)


def apply(before: JobRecord, plan: Replacement) -> JobRecord:
    """The job after its member was given up, as `moves.jobs.members.replace_member` leaves it."""
    return msgspec.structs.replace(
        before,
        state=JobState.DRAINING,
        rank_charges={**before.rank_charges, "1": plan.charges},
        drain_cause=plan.cause,
        drain_reason=plan.reason,
        drain_since=T0 + timedelta(seconds=10),
        trigger_rank=1,
    )


def complete(
    after: JobRecord, fallen: TaskRecord, policy: Policy, given: tuple[OperatorRule, ...]
) -> Completion:
    """The drain that follows, in which the others end as they were told."""
    stopped = TaskFacts(signal=15, stopped=True)
    script = member(stopped, TaskState.PREEMPTED, rank=0)
    other = member(None, TaskState.BLOCKED, rank=2, host_id=None, host_name=None)
    done = plan_completion(after, [script, fallen, other], policy, given, chance=0.5)
    assert done is not None
    return done


@given(before=st.builds(job, charges), fallen=members, policy=policies, given_rules=rules)
@settings(max_examples=400, deadline=None)
def test_every_fall_has_its_answer(
    before: JobRecord, fallen: TaskRecord, policy: Policy, given_rules: tuple[OperatorRule, ...]
) -> None:
    plan = plan_replacement(before, fallen, policy, given_rules)
    assert plan.reason.startswith("rank 1")
    slow = plan.cause is Cause.START_TIMEOUT
    assert 0.0 <= plan.delay_seconds <= (MAX_START_DELAY_SECONDS if slow else MAX_DELAY_SECONDS)
    assert plan.start_failures == 0 or slow, (
        "any other end of a member ends the row of its failed starts"
    )
    assert not plan.parked or (
        plan.go_on and slow and plan.start_failures >= policy.start_failure_limit
    )
    mine = before.rank_charges.get("1", RankCharges())
    change = (plan.charges.infra - mine.infra, plan.charges.watchdog - mine.watchdog)
    reset = (
        policy.budget_reset_seconds is not None and plan.charges.retries == 0 and min(change) < 0
    )
    assert reset or change in ((0, 0), (1, 0), (0, 1)) or plan.charges == RankCharges(), (
        "MEMBER-2: one charge at the most"
    )
    if not plan.go_on:
        assert plan.delay_seconds == 0.0
        assert change == (0, 0) or reset or plan.charges == RankCharges(), (
            "what ends the job is charged by its drain, once"
        )
    elif CHARGED_TO[plan.cause] in (Budget.NOTHING, Budget.NEVER):
        assert change == (0, 0)
    found = find_member_cause(fallen, given_rules)
    if plan.rule != "replaced" and (found.never_retry or CHARGED_TO[found.cause] is Budget.NEVER):
        assert not plan.go_on, "never is never (RETRY-2)"
    if found.cause not in policy.retry.eligible_causes and plan.rule != "replaced":
        assert not plan.go_on
    if fallen.state is TaskState.FAILED:
        proof = classify(fallen.facts or TaskFacts(), given_rules).rule in PROOF_AGAINST_HOST
        assert plan.quarantine_host == proof, (
            "evidence against a host counts whatever its member's end is taken for"
        )


@given(before=st.builds(job, charges), fallen=members, policy=policies, given_rules=rules)
@settings(max_examples=400, deadline=None)
def test_what_is_given_up_is_given_up_by_the_drain_too(
    before: JobRecord, fallen: TaskRecord, policy: Policy, given_rules: tuple[OperatorRule, ...]
) -> None:
    """Else the whole gang would be started again and again for what its own budget had already
    refused."""
    plan = plan_replacement(before, fallen, policy, given_rules)
    assume(not plan.go_on)
    decision = complete(apply(before, plan), fallen, policy, given_rules).decision
    if plan.cause is Cause.USER_CANCELLED:
        assert decision.event is JobEvent.CANCEL
    elif plan.cause is Cause.TIME_LIMIT and decision.event in AGAIN:
        spent = before.rank_charges.get("1", RankCharges()).watchdog
        reset = policy.budget_reset_seconds is not None
        assert policy.on_trip == "requeue"
        assert (0 if reset else spent) < policy.watchdog_cap, "the watchdog budget forgives it"
        assert decision.charges.watchdog == 1 or decision.charges.watchdog == spent + 1, (
            "and is charged for it"
        )
    else:
        assert decision.event is JobEvent.FAIL, decision.reason


@given(before=st.builds(job, charges), fallen=members, policy=policies)
def test_what_the_script_gave_up_is_free_and_its_host_barred(
    before: JobRecord, fallen: TaskRecord, policy: Policy
) -> None:
    fallen = msgspec.structs.replace(fallen, facts=GIVEN_UP, state=TaskState.FAILED)
    plan = plan_replacement(before, fallen, policy, ())
    assert (plan.go_on, plan.bar_host, plan.delay_seconds, plan.charged_to) == (
        True,
        True,
        0.0,
        Budget.NOTHING,
    )
    assert plan.charges == before.rank_charges.get("1", RankCharges())


@pytest.mark.parametrize(
    "foreign",
    [
        {"lost": "lease_lapsed", "exit_code": None}, {"malformed": "no such field"},
        {"trip": make_trip(Watchdog.STALL, "silent", {})}, {"stopped": True, "stop_cause": Cause.HOST_DRAINED},
    ],
    ids=["lost", "malformed", "tripped", "stopped"],
)  # fmt: skip
def test_a_72_that_is_not_its_own_is_no_word_of_the_script(foreign: dict[str, Any]) -> None:
    plan = plan_replacement(
        job(), member(msgspec.structs.replace(GIVEN_UP, **foreign)), Policy(), ()
    )
    assert plan.rule != "replaced"
    assert not plan.bar_host


def test_who_heard_nothing_of_the_script_is_not_to_blame() -> None:
    """The script's host is gone, which only its lease will tell: all other managers end with 70
    long before."""
    silent = TaskFacts(exit_code=EXIT_SILENT, runtime_seconds=3.0)
    for number in range(20):
        plan = plan_replacement(
            job(RankCharges(infra=10)), member(silent, replaced=number), Policy(), ()
        )
        assert (plan.go_on, plan.charged_to, plan.charges, plan.bar_host) == (
            True,
            Budget.NOTHING,
            RankCharges(infra=10),
            False,
        )
        assert plan.delay_seconds == (
            0.0 if not number else min(2.0 ** (number - 1), MAX_DELAY_SECONDS)
        ), "MEMBER-3"
    assert "no longer heard from the script" in plan.reason
    tripped = msgspec.structs.replace(TRIPPED, exit_code=EXIT_SILENT, signal=None)
    assert plan_replacement(job(), member(tripped), Policy(), ()).charged_to is Budget.WATCHDOG


def test_a_broken_device_quarantines_its_host_also_where_the_script_was_first() -> None:
    plan = plan_replacement(
        job(), member(msgspec.structs.replace(GIVEN_UP, xids=(79,))), Policy(), ()
    )
    assert (plan.go_on, plan.bar_host, plan.quarantine_host, plan.charged_to) == (
        True,
        True,
        True,
        Budget.NOTHING,
    )


@pytest.mark.parametrize(
    ("end", "kind"),
    [(KILLED, "infra"), (BROKEN, "infra"), (TRIPPED, "watchdog")],
    ids=["killed", "broken", "tripped"],
)
@pytest.mark.parametrize("cap", [0, 1, 3])
def test_a_budget_of_n_forgives_n(end: TaskFacts, kind: str, cap: int) -> None:
    """BUDGET-2, for one rank; the next one is the job's end, and says so."""
    policy = Policy(infra_cap=cap, watchdog_cap=cap)
    mine = RankCharges()
    for number in range(cap):
        plan = plan_replacement(job(mine), member(end, replaced=number), policy, ())
        assert plan.go_on
        assert getattr(plan.charges, kind) == number + 1
        mine = plan.charges
    before, fallen = job(mine), member(end, replaced=cap)
    plan = plan_replacement(before, fallen, policy, ())
    assert not plan.go_on
    assert f"budget of {cap} is spent" in plan.reason
    assert plan.charges == mine
    decision = complete(apply(before, plan), fallen, policy, ()).decision
    assert decision.event is JobEvent.FAIL
    assert getattr(decision.charges, kind) == cap + 1


def test_the_time_limit_is_the_whole_jobs() -> None:
    before, fallen = job(), member(TOO_LONG)
    plan = plan_replacement(before, fallen, Policy(), ())
    assert not plan.go_on
    completion = complete(apply(before, plan), fallen, Policy(watchdog_cap=1), ())
    assert completion.decision.event is JobEvent.REQUEUE
    assert completion.rank_charges["1"].watchdog == 1
    again = job(completion.rank_charges["1"])
    plan = plan_replacement(again, fallen, Policy(), ())
    assert (
        complete(apply(again, plan), fallen, Policy(watchdog_cap=1), ()).decision.event
        is JobEvent.FAIL
    )


@given(ends=st.lists(st.sampled_from([KILLED, TRIPPED, GIVEN_UP]), min_size=2, max_size=20))
def test_a_rank_that_falls_soon_again_and_again_comes_back_ever_later(
    ends: list[TaskFacts],
) -> None:
    """MEMBER-3, for every cause of the fall. What the script gives up is its own pace."""
    policy, mine, delays = Policy(infra_cap=99, watchdog_cap=99), RankCharges(), []
    for number, end in enumerate(ends):
        plan = plan_replacement(job(mine), member(end, replaced=number), policy, ())
        assert plan.go_on
        mine = plan.charges
        if not plan.bar_host:
            delays.append(plan.delay_seconds)
        else:
            assert plan.delay_seconds == 0.0
    assert delays == sorted(delays)
    assert all(delay <= MAX_DELAY_SECONDS for delay in delays)
    if ends[0] is not GIVEN_UP:
        assert delays[0] == 0.0, "the first fall is answered at once"


def too_slow(failures: int, **changes: Any) -> TaskRecord:
    """A member that did not come up, after so many of its starts in a row that failed."""
    return member(
        None,
        TaskState.PREEMPTED,
        stop_cause=Cause.START_TIMEOUT,
        start_failures=failures,
        replaced=failures,
        **changes,
    )


@pytest.mark.parametrize("limit", [1, 2, 8, 12])
def test_a_rank_that_never_comes_up_is_tried_ever_more_rarely_and_then_parked(limit: int) -> None:
    """MEMBER-5: what a gang that cannot start comes to, for one rank. It is charged to nothing."""
    policy, delays, failures = Policy(start_failure_limit=limit), [], 0
    for _ in range(limit):
        plan = plan_replacement(job(), too_slow(failures), policy, ())
        assert (plan.go_on, plan.charged_to, plan.charges) == (True, Budget.NOTHING, RankCharges())
        failures = plan.start_failures
        delays.append(plan.delay_seconds)
    assert failures == limit
    assert plan.parked
    assert f"parked after {limit} failed starts in a row, until `holdfast retry`" in plan.reason
    assert (
        delays[:-1]
        == [0.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 3600.0, 3600.0, 3600.0, 3600.0][
            : limit - 1
        ]
    )
    forbidden = Policy(
        retry=RetryPolicy(
            eligible_causes=tuple(c for c in ELIGIBLE if c is not Cause.START_TIMEOUT)
        )
    )
    assert not plan_replacement(job(), too_slow(0), forbidden, ()).go_on


def test_a_start_that_succeeded_ends_the_row_of_those_that_failed() -> None:
    rules = (OperatorRule(name="slow", pattern="too slow", cause=Cause.START_TIMEOUT),)
    ran = TaskFacts(exit_code=1, log_tail="too slow", runtime_seconds=3.0)
    plan = plan_replacement(job(), member(ran, start_failures=7), Policy(), rules)
    assert (plan.start_failures, plan.parked) == (1, False)
    spoilt = TaskFacts(checkpoint_error="404", runtime_seconds=0.0)
    plan = plan_replacement(job(), member(spoilt, start_failures=7, started_at=T0), Policy(), ())
    assert (plan.start_failures, plan.parked) == (8, True), "its agent never started it"
    assert (
        plan_replacement(job(), member(KILLED, start_failures=7), Policy(), ()).start_failures == 0
    )


def test_a_member_that_ran_well_is_replaced_at_once() -> None:
    ran = msgspec.structs.replace(KILLED, runtime_seconds=STEADY_SECONDS)
    assert plan_replacement(job(), member(ran, replaced=7), Policy(), ()).delay_seconds == 0.0
    lost = member(
        TaskFacts(lost="lease_lapsed"),
        replaced=7,
        started_at=T0 - timedelta(seconds=STEADY_SECONDS),
    )
    assert plan_replacement(job(), lost, Policy(), ()).delay_seconds == 0.0, (
        "nobody told how long it ran; its row says so"
    )


def test_a_long_run_gives_its_rank_its_budgets_back() -> None:
    """BUDGET-4; and the drain does not forgive what the replacement did not."""
    policy = Policy(infra_cap=1, budget_reset_seconds=50.0)
    spent = RankCharges(infra=1)
    assert not plan_replacement(job(spent), member(KILLED), policy, ()).go_on
    long = msgspec.structs.replace(KILLED, runtime_seconds=51.0)
    plan = plan_replacement(job(spent), member(long), policy, ())
    assert plan.go_on
    assert plan.charges == RankCharges(infra=1)


def test_a_drain_that_was_asked_for_blames_no_member() -> None:
    """A start that ran out: its missing rank is on record as the one that was waited for, without a
    failure of its own."""
    missing = member(None, TaskState.PREEMPTED, barrier=False, ended_at=None)
    asked = job(
        state=JobState.DRAINING,
        drain_cause=Cause.START_TIMEOUT,
        drain_reason="not in time",
        trigger_rank=1,
    )
    completion = complete(asked, missing, Policy(), ())
    assert completion.decision.cause is Cause.START_TIMEOUT
    assert completion.decision.event in AGAIN
    assert all(m.cause is None for m in completion.members)
    cancelled = job(
        state=JobState.DRAINING, drain_cause=Cause.USER_CANCELLED, drain_reason="enough"
    )
    completion = complete(cancelled, member(KILLED), Policy(), ())
    assert completion.decision.event is JobEvent.CANCEL
    assert completion.trigger_rank is None
