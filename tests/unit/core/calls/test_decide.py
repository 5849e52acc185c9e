"""A failed call is decided as a job is, charged by itself."""

from __future__ import annotations

from typing import Literal

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET, UnsetType

from holdfast.core.calls.decide import (
    HELD_SECONDS,
    CallOutcome,
    classify_exception,
    decide_call,
    default_policy,
    name_option,
    pace_retries,
)
from holdfast.core.calls.values import CallCharges, FunctionSpec
from holdfast.core.causes import CHARGED_TO, Budget, Cause, Watchdog
from holdfast.core.endings.classify import classify
from holdfast.core.endings.decide import Policy
from holdfast.core.facts import Classified, TaskFacts, Trip
from holdfast.core.retry import RetryFields, RetryPolicy, retry_delay_seconds

COUNTS = st.integers(0, 12)
CHARGES = st.builds(CallCharges, COUNTS, COUNTS, COUNTS, COUNTS)
POLICIES = st.builds(
    Policy,
    retry=st.builds(
        RetryPolicy,
        max_retries=st.integers(0, 5),
        retry_delay=st.sampled_from([0.0, 2.0, 60.0]),
        backoff=st.sampled_from(["fixed", "exponential"]),
    ),
    watchdog_cap=st.integers(0, 4),
    infra_cap=st.integers(0, 4),
    on_trip=st.sampled_from(["requeue", "fail"]),
    held=st.sampled_from([None, "the cluster"]),
)
CAUSES = st.sampled_from(list(Cause))


def found(cause: Cause) -> Classified:
    return Classified(cause=cause, rule="r", message="it fell", exit_code=1)


@given(CAUSES, CHARGES, POLICIES)
def test_a_call_is_charged_to_one_budget_and_ends_over_it(
    cause: Cause, charges: CallCharges, policy: Policy
) -> None:
    # Without a step or a checkpoint none follows a mistake of the program (BUDGET-9).
    left = cause is Cause.PROGRAM_ERROR
    decision = decide_call(found(cause), charges, policy, name="s.1", chance=0.5, left=left)
    budget = CHARGED_TO[cause]
    before = [charges.retries, charges.watchdog, charges.infra]
    after = [decision.charges.retries, decision.charges.watchdog, decision.charges.infra]
    grown = [b - a for a, b in zip(before, after, strict=True)]
    kinds = (Budget.RETRIES, Budget.WATCHDOG, Budget.INFRA)
    assert grown == [int(budget is kind) for kind in kinds]
    caps = [policy.retry.max_retries, policy.watchdog_cap, policy.infra_cap]
    over = any(g and b >= cap for g, b, cap in zip(grown, before, caps, strict=True))
    failed = over or (budget is Budget.WATCHDOG and policy.on_trip == "fail")
    if cause is Cause.USER_CANCELLED:
        assert decision.outcome is CallOutcome.CANCELLED
    elif budget is Budget.NEVER or failed:
        assert decision.outcome is CallOutcome.FAILED
    else:
        assert decision.outcome in (CallOutcome.READY, CallOutcome.WAIT)
    assert (decision.outcome is CallOutcome.WAIT) == (decision.delay_seconds > 0)
    assert "it fell" in decision.reason


@given(CAUSES, CHARGES, POLICIES)
def test_a_kill_switch_makes_charged_calls_wait(
    cause: Cause, charges: CallCharges, policy: Policy
) -> None:
    held = msgspec.structs.replace(policy, held="project x")
    decision = decide_call(found(cause), charges, held, name="s.1", chance=0.5)
    free = msgspec.structs.replace(policy, held=None)
    freely = decide_call(found(cause), charges, free, name="s.1", chance=0.5)
    again = (CallOutcome.READY, CallOutcome.WAIT)
    assert (decision.outcome in again) == (freely.outcome in again)
    if decision.outcome in again and CHARGED_TO[cause] is not Budget.NOTHING:
        assert decision.held
        assert decision.delay_seconds >= HELD_SECONDS


@given(st.integers(0, 4))
def test_a_call_that_always_raises_ends(retries: int) -> None:
    policy = default_policy(
        "cpu", FunctionSpec(function="m:f", retry=RetryFields(max_retries=retries))
    )
    charges, attempts = CallCharges(), 0
    while True:
        attempts += 1
        fell = classify_exception("ValueError", "bad", "Traceback …\nValueError: bad", ())
        decision = decide_call(fell, charges, policy, name="s.1", chance=0.5)
        charges = decision.charges
        if decision.outcome is CallOutcome.FAILED:
            break
    assert attempts == retries + 1


def test_exceptions_are_classified_by_their_words() -> None:
    plain = classify_exception("ValueError", "no  such\nrow", "Traceback …", ())
    assert (plain.cause, plain.message) == (Cause.NONZERO_EXIT, "ValueError: no such row")
    words = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"
    oom = classify_exception("OutOfMemoryError", "…", words, ())
    assert oom.cause is classify(TaskFacts(exit_code=1, log_tail=words)).cause
    assert oom.rule != plain.rule
    never = classify_exception("TypeError", "x is not int", "", (), invalid=True)
    assert never.cause is Cause.VALIDATION_ERROR
    assert classify_exception("Stop", "", "", ()).message == "Stop"


def test_a_trip_is_charged_to_the_watchdogs() -> None:
    trip = Trip(watchdog=Watchdog.STALL, exit_code=76, reason="no beat for 2 s")
    fell = classify(TaskFacts(signal=9, trip=trip))
    policy = default_policy("cpu", FunctionSpec(function="m:f", watchdog_cap=1))
    first = decide_call(fell, CallCharges(), policy, name="s.1", chance=0.5)
    assert (first.outcome, first.charges.watchdog) == (CallOutcome.READY, 1)
    second = decide_call(fell, first.charges, policy, name="s.1", chance=0.5)
    assert second.outcome is CallOutcome.FAILED


@given(st.floats(0, 100), st.sampled_from([UNSET, 0.0, 7.0]), st.sampled_from([UNSET, "fixed"]))
def test_a_call_is_retried_soon_and_ever_more_rarely_unless_its_function_says_otherwise(
    delay: float, own: float | UnsetType, backoff: Literal["fixed"] | UnsetType
) -> None:
    spec = FunctionSpec(function="m:f", retry=RetryFields(retry_delay=own, backoff=backoff))
    jobs = Policy(retry=RetryPolicy(max_retries=9))
    paced = pace_retries(jobs, spec, delay).retry
    first = retry_delay_seconds(paced, 0, job_id="s.1", chance=0.5)
    fourth = retry_delay_seconds(paced, 3, job_id="s.1", chance=0.5)
    if own is not UNSET:
        assert paced == jobs.retry
    elif backoff is not UNSET:
        assert first == fourth == delay
    else:
        assert (first, fourth) == (delay, 8 * delay)
    assert default_policy("cpu", FunctionSpec(function="m:f")).retry.retry_delay == 1.0


def test_the_reason_of_a_watchdogs_end_names_the_option_that_allows_more() -> None:
    for watchdog, option in (
        (Watchdog.STALL, "stall_timeout"),
        (Watchdog.TIME_LIMIT, "time_limit"),
    ):
        trip = Trip(watchdog=watchdog, exit_code=76, reason="no beat for 2 min")
        found = name_option(classify(TaskFacts(signal=9, trip=trip), []), trip)
        assert found.message.startswith("no beat for 2 min; ")
        assert f"{option} of @holdfast.task" in found.message
    other = classify(TaskFacts(exit_code=1), [])
    assert name_option(other, None) == other
