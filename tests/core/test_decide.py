"""decide: budgets, by table and by property (BUDGET-1…3)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.causes import CHARGED_TO, Budget, Cause
from holdfast.core.decide import Charges, Policy, decide, decide_success
from holdfast.core.facts import Classified
from holdfast.core.states import JobEvent, Outcome


def found(cause: Cause) -> Classified:
    return Classified(cause=cause, rule="test", message="it happened", exit_code=3)


def run_until_end(cause: Cause, policy: Policy, limit: int = 200) -> tuple[int, JobEvent]:
    """Fail the same way again and again; return the number of attempts and the last event."""
    charges = Charges()
    for attempt in range(1, limit + 1):
        decision = decide(found(cause), charges, policy)
        if decision.event is not JobEvent.REQUEUE:
            return attempt, decision.event
        charges = decision.charges
    return limit, JobEvent.REQUEUE


@pytest.mark.parametrize(
    ("cause", "policy", "attempts"),
    [
        (Cause.NONZERO_EXIT, Policy(), 1),
        (Cause.NONZERO_EXIT, Policy(max_retries=3), 4),
        (Cause.STALLED, Policy(), 4),
        (Cause.STALLED, Policy(watchdog_cap=0), 1),
        (Cause.GPU_WEDGED, Policy(watchdog_cap=1), 2),
        (Cause.TIME_LIMIT, Policy(on_trip="fail"), 1),
        (Cause.AGENT_TRANSIENT, Policy(), 11),
        (Cause.GPU_FAULT, Policy(infra_cap=2), 3),
        (Cause.VALIDATION_ERROR, Policy(max_retries=9), 1),
        (Cause.MALFORMED_REPORT, Policy(max_retries=9), 1),
    ],
)
def test_budget_forgives_exactly_its_number(cause: Cause, policy: Policy, attempts: int) -> None:
    """BUDGET-2."""
    assert run_until_end(cause, policy) == (attempts, JobEvent.FAIL)


def test_cancel_ends_as_cancelled() -> None:
    decision = decide(found(Cause.USER_CANCELLED), Charges(), Policy(max_retries=5))
    assert (decision.event, decision.outcome) == (JobEvent.CANCEL, Outcome.CANCELLED)


@given(
    cause=st.sampled_from(Cause),
    charges=st.builds(Charges, retries=st.integers(0, 50), watchdog=st.integers(0, 50), infra=st.integers(0, 50)),
    policy=st.builds(
        Policy, max_retries=st.integers(0, 50), watchdog_cap=st.integers(0, 50), infra_cap=st.integers(0, 50),
        on_trip=st.sampled_from(["requeue", "fail"]),
    ),
)  # fmt: skip
def test_charges_one_budget_at_most_and_says_why(cause: Cause, charges: Charges, policy: Policy) -> None:
    """BUDGET-1, BUDGET-3."""
    decision = decide(found(cause), charges, policy)
    before = (charges.retries, charges.watchdog, charges.infra)
    after = (decision.charges.retries, decision.charges.watchdog, decision.charges.infra)
    grown = sum(after) - sum(before)
    assert grown == (0 if CHARGED_TO[cause] in (Budget.NOTHING, Budget.NEVER) else 1)
    assert all(a >= b for a, b in zip(after, before, strict=True))
    assert decision.reason.startswith(("it happened", "requeued at no charge: it happened"))
    if CHARGED_TO[cause] is Budget.NOTHING:
        assert decision.event is JobEvent.REQUEUE
    if CHARGED_TO[cause] is Budget.NEVER:
        assert decision.event in (JobEvent.FAIL, JobEvent.CANCEL)


def test_success_names_the_attempt() -> None:
    assert decide_success(Charges(), 1).reason == "succeeded"
    assert decide_success(Charges(watchdog=1), 2).reason == "succeeded on attempt 2"


def test_only_evidence_a_job_cannot_forge_quarantines_its_host() -> None:
    by_text = Classified(cause=Cause.GPU_FAULT, rule="gpu-fault-text", message="its log says so", exit_code=1)
    by_kernel = Classified(cause=Cause.GPU_FAULT, rule="unkillable", message="it survived SIGKILL", exit_code=None)
    assert not decide(by_text, Charges(), Policy()).quarantine_host
    assert decide(by_text, Charges(), Policy()).avoid_host
    assert decide(by_kernel, Charges(), Policy()).quarantine_host
