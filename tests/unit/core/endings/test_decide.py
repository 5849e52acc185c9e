"""decide: budgets, causes, progress, kill switches; by table, by property and by walking whole
chains (BUDGET-1…4, RETRY-1…5)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from holdfast.core.causes import CHARGED_TO, ELIGIBLE, Budget, Cause, Watchdog
from holdfast.core.endings.classify import LEASE_DENIED, classify
from holdfast.core.endings.decide import (
    AttemptEnding,
    Charges,
    Decision,
    Policy,
    count_progress,
    decide,
    decide_success,
    start_delay_seconds,
)
from holdfast.core.facts import Classified, TaskFacts
from holdfast.core.retry import RetryPolicy
from holdfast.core.states import JobEvent, Outcome
from holdfast.core.watchdogs.lost_lease import BY_SYNC
from holdfast.core.watchdogs.verdicts import make_trip

AGAIN = (JobEvent.REQUEUE, JobEvent.BACK_OFF)
BY_BUDGET = {budget: [c for c in Cause if CHARGED_TO[c] is budget] for budget in Budget}
FREE = [
    c for c in BY_BUDGET[Budget.NOTHING] if c is not Cause.START_TIMEOUT
]  # a failed start has a back-off of its own
COUNTED = (Budget.RETRIES, Budget.WATCHDOG, Budget.INFRA)
PLENTY = Policy(retry=RetryPolicy(max_retries=1000), watchdog_cap=1000, infra_cap=1000)
ENDING = AttemptEnding(job_id="j")


def found(cause: Cause, **more: Any) -> Classified:
    return Classified(cause=cause, rule="test", message="it happened", exit_code=3, **more)


def judge(
    cause: Cause,
    charges: Charges | None = None,
    policy: Policy | None = None,
    *,
    chance: float = 0.0,
    more: dict[str, Any] | None = None,
    **ending: Any,
) -> Decision:
    what = found(cause, **(more or {}))
    ending.setdefault("saved", cause is Cause.PROGRAM_ERROR)  # without, none follows (BUDGET-9)
    return decide(
        what,
        charges or Charges(),
        policy or Policy(),
        AttemptEnding(job_id="j", **ending),
        chance=chance,
    )


def retrying(retries: int, **fields: Any) -> Policy:
    return Policy(retry=RetryPolicy(max_retries=retries, **fields))


def run_until_end(cause: Cause, policy: Policy, limit: int = 200) -> tuple[int, Decision]:
    """Fail the same way again and again; return the number of attempts and the last decision."""
    charges = Charges()
    for attempt in range(1, limit + 1):
        decision = judge(cause, charges, policy)
        if decision.event not in AGAIN:
            return attempt, decision
        charges = decision.charges
    return limit, decision


# ---- budgets


@pytest.mark.parametrize(
    ("cause", "policy", "attempts"),
    [
        (Cause.NONZERO_EXIT, Policy(), 1),
        (Cause.NONZERO_EXIT, retrying(3), 4),
        (Cause.OOM_KILLED, retrying(1), 2),
        (Cause.IMAGE_PULL_FAILURE, retrying(2), 3),
        (Cause.UNKNOWN, retrying(5), 6),
        (Cause.STALLED, Policy(), 4),
        (Cause.STALLED, Policy(watchdog_cap=0), 1),
        (Cause.GPU_WEDGED, Policy(watchdog_cap=1), 2),
        (Cause.TIME_LIMIT, Policy(on_trip="fail"), 1),
        (Cause.AGENT_TRANSIENT, Policy(), 11),
        (Cause.GPU_FAULT, Policy(infra_cap=2), 3),
        (Cause.VALIDATION_ERROR, retrying(9), 1),
        (Cause.QUOTA_EXCEEDED, retrying(9), 1),
        (Cause.MALFORMED_REPORT, retrying(9), 1),
    ],
)
def test_budget_forgives_exactly_its_number(cause: Cause, policy: Policy, attempts: int) -> None:
    """BUDGET-2, RETRY-1."""
    number, decision = run_until_end(cause, policy)
    assert (number, decision.event) == (attempts, JobEvent.FAIL)


@pytest.mark.parametrize("cause", [c for b in COUNTED for c in BY_BUDGET[b]])
def test_exhaustion_says_so_only_where_there_was_a_budget(cause: Cause) -> None:
    none = Policy(watchdog_cap=0, infra_cap=0)
    assert run_until_end(cause, none)[1].retry is None
    one = Policy(retry=RetryPolicy(max_retries=1), watchdog_cap=1, infra_cap=1)
    number, decision = run_until_end(cause, one)
    assert (number, decision.retry) == (2, "exhausted")
    assert "spent" in decision.reason


def test_a_retry_waits_and_says_which_it_is() -> None:
    policy = retrying(3, retry_delay=10.0, backoff="exponential")
    decision = judge(Cause.NONZERO_EXIT, Charges(retries=1), policy)
    assert (decision.event, decision.outcome) == (JobEvent.BACK_OFF, Outcome.REQUEUED)
    assert (decision.delay_seconds, decision.retry, decision.policy) == (
        20.0,
        "scheduled",
        policy.retry,
    )
    assert decision.reason == "it happened; retry 2 of 3 in 20 s"
    assert not decision.front, "a retry keeps its place in its queue"
    assert decision.avoid_host
    jittered = retrying(3, retry_delay=10.0, jitter="random", jitter_ratio=1.0)
    assert judge(Cause.NONZERO_EXIT, policy=jittered, chance=0.5).delay_seconds == 15.0


@pytest.mark.parametrize("cause", [*BY_BUDGET[Budget.WATCHDOG], *BY_BUDGET[Budget.INFRA]])
def test_what_is_not_the_jobs_own_failure_runs_again_at_once_and_in_front(cause: Cause) -> None:
    decision = judge(cause)
    assert (decision.event, decision.front, decision.delay_seconds, decision.retry) == (
        JobEvent.REQUEUE,
        True,
        0.0,
        "scheduled",
    )


@given(
    cause=st.sampled_from(Cause),
    charges=st.builds(
        Charges,
        retries=st.integers(0, 50),
        watchdog=st.integers(0, 50),
        infra=st.integers(0, 50),
        best_step=st.none() | st.integers(0, 9),
        no_progress=st.integers(0, 4),
    ),
    policy=st.builds(
        Policy,
        retry=st.builds(RetryPolicy, max_retries=st.integers(0, 50)),
        watchdog_cap=st.integers(0, 50),
        infra_cap=st.integers(0, 50),
        on_trip=st.sampled_from(["requeue", "fail"]),
        no_progress_limit=st.none() | st.integers(1, 5),
        held=st.none() | st.just("the cluster"),
    ),
    step=st.none() | st.integers(0, 9),
    chance=st.floats(0, 1, exclude_max=True),
)
def test_charges_one_budget_at_most_and_says_why(
    cause: Cause, charges: Charges, policy: Policy, step: int | None, chance: float
) -> None:
    """BUDGET-1, BUDGET-3."""
    decision = judge(cause, charges, policy, chance=chance, step=step)
    before = (charges.retries, charges.watchdog, charges.infra)
    after = (decision.charges.retries, decision.charges.watchdog, decision.charges.infra)
    assert all(a >= b for a, b in zip(after, before, strict=True))
    assert sum(after) - sum(before) <= 1
    if decision.event in AGAIN and CHARGED_TO[cause] in COUNTED:
        assert sum(after) - sum(before) == 1
    if CHARGED_TO[cause] in (Budget.NOTHING, Budget.NEVER):
        assert after == before
    assert decision.reason.startswith(("it happened", "requeued at no charge: it happened"))
    assert decision.charged_to is CHARGED_TO[cause]
    if CHARGED_TO[cause] is Budget.NOTHING and cause is not Cause.START_TIMEOUT:
        assert (decision.event, decision.front) == (JobEvent.REQUEUE, True)
    if CHARGED_TO[cause] is Budget.NEVER:
        assert decision.event in (JobEvent.FAIL, JobEvent.CANCEL)
    assert (decision.delay_seconds == 0.0) or decision.event is JobEvent.BACK_OFF
    assert (decision.retry == "scheduled") == (
        decision.event in AGAIN and CHARGED_TO[cause] in COUNTED
    )
    assert (decision.retry == "exhausted") <= (decision.event is JobEvent.FAIL)
    best = [s for s in (charges.best_step, step) if s is not None]
    assert decision.charges.best_step == max(best, default=None)
    assert decision == judge(cause, charges, policy, chance=chance, step=step), (
        "the same arguments, the same decision"
    )


# ---- what is not run again


def test_cancel_ends_as_cancelled() -> None:
    decision = judge(Cause.USER_CANCELLED, policy=retrying(5))
    assert (decision.event, decision.outcome, decision.retry) == (
        JobEvent.CANCEL,
        Outcome.CANCELLED,
        None,
    )


@pytest.mark.parametrize(
    "cause", [c for c in BY_BUDGET[Budget.NEVER] if c is not Cause.USER_CANCELLED]
)
def test_never_is_never_even_where_a_policy_lists_it(cause: Cause) -> None:
    """RETRY-2: also where a policy names such a cause."""
    policy = msgspec.structs.replace(
        PLENTY, retry=RetryPolicy(max_retries=9, eligible_causes=tuple(Cause))
    )
    decision = judge(cause, policy=policy)
    assert (decision.event, decision.retry) == (JobEvent.FAIL, None)
    assert f"{cause} is never retried" in decision.reason


@pytest.mark.parametrize("cause", ELIGIBLE)
def test_eligible_causes_may_leave_out_any(cause: Cause) -> None:
    rest = tuple(c for c in ELIGIBLE if c is not cause)
    without = msgspec.structs.replace(
        PLENTY, retry=RetryPolicy(max_retries=9, eligible_causes=rest)
    )
    decision = judge(cause, policy=without)
    assert (decision.event, decision.retry) == (JobEvent.FAIL, None)
    assert f"{cause} is not among the causes it is retried for" in decision.reason
    assert decision.charges == Charges()
    alone = msgspec.structs.replace(
        PLENTY, retry=RetryPolicy(max_retries=9, eligible_causes=(cause,))
    )
    assert judge(cause, policy=alone).event in AGAIN


@pytest.mark.parametrize("cause", ELIGIBLE)
def test_an_interactive_job_is_never_run_again(cause: Cause) -> None:
    decision = judge(cause, policy=PLENTY, interactive=True)
    assert (decision.event, decision.retry) == (JobEvent.FAIL, None)
    assert "run once" in decision.reason


@pytest.mark.parametrize("cause", ELIGIBLE)
def test_an_operators_rule_may_say_never(cause: Cause) -> None:
    decision = judge(cause, policy=PLENTY, more={"never_retry": True})
    assert (decision.event, decision.retry) == (JobEvent.FAIL, None)
    assert "rule test says it is never retried" in decision.reason


def test_an_operators_rule_may_have_the_host_avoided() -> None:
    assert not judge(Cause.STALLED, policy=PLENTY, more={"avoid_host": False}).quarantine_host
    assert judge(Cause.AGENT_TRANSIENT, policy=PLENTY, more={"avoid_host": True}).avoid_host
    assert not judge(Cause.AGENT_TRANSIENT, policy=PLENTY).avoid_host


# ---- progress (RETRY-4)


def walk(
    steps: list[int | None], policy: Policy, cause: Cause = Cause.NONZERO_EXIT
) -> tuple[int, Decision]:
    """Attempts that get to `steps` one after the other, until one is the last."""
    charges = Charges()
    number = 0
    for step in steps:
        number += 1
        decision = judge(cause, charges, policy, step=step)
        charges = decision.charges
        if decision.event not in AGAIN:
            break
    return number, decision


@pytest.mark.parametrize(
    ("steps", "ended_by"),
    [
        ([5, 5, 5, 5, 5], 4),  # three in a row got no further than the first
        ([5, 5, 5, 6, 6, 6, 6], 7),  # progress begins the count anew
        ([5, 3, 4, 1, 9], 4),  # to get to where one was before is no progress
        ([5, None, None, None], 4),  # a death before the first step is none either
        ([None, None, None, None, None], None),  # without steps there is nothing to compare
        ([None, None, 2, 2, 2, 2], 6),
        ([1, 2, 3, 4, 5, 6, 7, 8], None),
    ],
)
def test_retries_that_get_nowhere_stop_early(steps: list[int | None], ended_by: int | None) -> None:
    number, decision = walk(steps, PLENTY)
    if ended_by is None:
        assert (number, decision.event) == (len(steps), JobEvent.BACK_OFF)
        return
    assert (number, decision.event, decision.retry) == (ended_by, JobEvent.FAIL, "exhausted")
    assert (
        f"3 attempts in a row got no further than step {decision.charges.best_step}"
        in decision.reason
    )


def test_the_limit_may_be_off_or_one() -> None:
    off = msgspec.structs.replace(PLENTY, no_progress_limit=None)
    assert walk([1] * 50, off)[1].event is JobEvent.BACK_OFF
    one = msgspec.structs.replace(PLENTY, no_progress_limit=1)
    assert walk([1] * 50, one)[0] == 2


@pytest.mark.parametrize("cause", [Cause.STALLED, Cause.AGENT_TRANSIENT])
def test_trips_and_lost_hosts_count_as_no_progress_too(cause: Cause) -> None:
    number, decision = walk([4, 4, 4, 4, 4], PLENTY, cause)
    assert (number, decision.event) == (4, JobEvent.FAIL)


@pytest.mark.parametrize("cause", FREE)
def test_an_uncharged_end_may_show_progress_and_never_the_lack_of_it(cause: Cause) -> None:
    stuck = Charges(best_step=10, no_progress=2)
    for step in (None, 3, 10):
        assert judge(cause, stuck, PLENTY, step=step).charges == stuck
    assert judge(cause, stuck, PLENTY, step=11).charges == Charges(best_step=11, no_progress=0)


@given(st.lists(st.none() | st.integers(0, 5), max_size=30))
def test_progress_is_the_furthest_step_and_how_long_ago(steps: list[int | None]) -> None:
    charges = Charges()
    for step in steps:
        charges = count_progress(charges, step)
    known = [s for s in steps if s is not None]
    assert charges.best_step == max(known, default=None)
    assert charges.no_progress == (len(steps) - 1 - steps.index(max(known)) if known else 0)


# ---- the window (BUDGET-4)


def test_stable_running_gives_the_budgets_back() -> None:
    policy = msgspec.structs.replace(
        retrying(1), watchdog_cap=1, infra_cap=1, budget_reset_seconds=100.0
    )
    spent = Charges(retries=1, watchdog=1, infra=1, best_step=7, no_progress=1)
    for cause in (Cause.NONZERO_EXIT, Cause.STALLED, Cause.AGENT_TRANSIENT):
        assert judge(cause, spent, policy, ran_seconds=99.9).event is JobEvent.FAIL
        decision = judge(cause, spent, policy, ran_seconds=100.0)
        assert decision.event in AGAIN
        assert (
            sum((decision.charges.retries, decision.charges.watchdog, decision.charges.infra)) == 1
        )
        assert decision.charges.best_step == 7
    assert (
        judge(
            Cause.NONZERO_EXIT,
            spent,
            msgspec.structs.replace(policy, budget_reset_seconds=None),
            ran_seconds=1e9,
        ).event
        is JobEvent.FAIL
    )


def test_a_window_does_not_open_what_is_closed() -> None:
    policy = msgspec.structs.replace(PLENTY, budget_reset_seconds=1.0)
    assert judge(Cause.VALIDATION_ERROR, policy=policy, ran_seconds=50.0).event is JobEvent.FAIL
    decision = judge(Cause.PREEMPTED, Charges(retries=3), policy, ran_seconds=50.0)
    assert decision.charges.retries == 3, "what is not charged resets nothing"


# ---- errors of the program (BUDGET-9)


@pytest.mark.parametrize(
    ("best", "step", "saved", "again"),
    [
        (None, None, False, False),
        (None, 3, False, True),
        (3, 3, False, False),
        (3, 2, False, False),
        (3, 4, False, True),
        (3, None, True, True),
    ],
)
def test_a_mistake_in_the_program_is_tried_again_only_behind_new_work(
    best: int | None, step: int | None, saved: bool, again: bool
) -> None:
    """BUDGET-9."""
    decision = judge(Cause.PROGRAM_ERROR, Charges(best_step=best), PLENTY, step=step, saved=saved)
    assert (decision.event in AGAIN) is again
    assert decision.charges.retries == int(again), "a retry that does not follow is not charged"
    assert ("would end the same" in decision.reason) is not again


@pytest.mark.parametrize(("avoid", "elsewhere"), [(True, True), (True, False), (False, True)])
def test_a_mistake_that_another_host_may_mend_is_tried_there_once(
    avoid: bool, elsewhere: bool
) -> None:
    """BUDGET-9."""
    found = Classified(
        cause=Cause.PROGRAM_ERROR, rule="log-lacking", message="m", exit_code=1, avoid_host=avoid
    )
    ending = AttemptEnding(job_id="j", elsewhere=elsewhere)
    decision = decide(found, Charges(), PLENTY, ending, chance=0.0)
    again = avoid and elsewhere
    assert (decision.event, decision.charges.retries) == (
        (JobEvent.BACK_OFF, 1) if again else (JobEvent.FAIL, 0)
    )
    assert decision.avoid_host is avoid


# ---- the kill switch (RETRY-5)


@pytest.mark.parametrize("cause", [c for b in COUNTED for c in BY_BUDGET[b]])
def test_a_held_retry_waits_with_its_charge(cause: Cause) -> None:
    held = msgspec.structs.replace(PLENTY, held="project x")
    decision, free = judge(cause, policy=held), judge(cause, policy=PLENTY)
    assert (decision.event, decision.held) == (JobEvent.BACK_OFF, "project x")
    assert "project x holds all retries" in decision.reason
    assert decision.charges == free.charges
    assert (decision.front, decision.avoid_host, decision.retry) == (
        free.front,
        free.avoid_host,
        free.retry,
    )
    assert decision.delay_seconds == free.delay_seconds


def test_the_kill_switch_holds_neither_what_costs_nothing_nor_an_end() -> None:
    held = msgspec.structs.replace(PLENTY, held="the cluster")
    assert judge(Cause.PREEMPTED, policy=held).event is JobEvent.REQUEUE
    assert judge(Cause.VALIDATION_ERROR, policy=held).held is None
    assert judge(Cause.NONZERO_EXIT, policy=Policy(held="the cluster")).event is JobEvent.FAIL


# ---- failed starts (BUDGET-5)


def test_failed_starts_back_off_and_end_in_a_park() -> None:
    policy, delays = Policy(start_failure_limit=9), []
    first = judge(Cause.START_TIMEOUT, Charges(retries=1, best_step=4, no_progress=1), policy)
    assert (first.event, first.front, first.avoid_host) == (JobEvent.REQUEUE, True, True)
    charges = first.charges
    for _ in range(7):
        decision = judge(Cause.START_TIMEOUT, charges, policy)
        assert (decision.event, decision.parked, decision.front) == (
            JobEvent.BACK_OFF,
            False,
            False,
        )
        delays.append(decision.delay_seconds)
        charges = decision.charges
    assert delays == [60, 120, 240, 480, 960, 1920, 3600]
    decision = judge(Cause.START_TIMEOUT, charges, policy)
    assert (decision.event, decision.parked) == (JobEvent.BACK_OFF, True)
    assert "parked after 9 failed starts" in decision.reason
    assert decision.charges == Charges(retries=1, best_step=4, no_progress=1, start_failures=9)
    assert judge(Cause.PREEMPTED, charges, policy).charges.start_failures == 0
    assert judge(Cause.STALLED, charges, policy).charges.start_failures == 0


# ---- infrastructure failures in a row (BUDGET-6)


def test_infrastructure_failures_in_a_row_back_off_and_avoid_the_host() -> None:
    first = judge(Cause.AGENT_TRANSIENT)
    assert (first.event, first.front, first.avoid_host) == (JobEvent.REQUEUE, True, False)
    charges, delays = first.charges, []
    for _ in range(8):
        decision = judge(Cause.AGENT_TRANSIENT, charges)
        assert (decision.event, decision.front, decision.avoid_host) == (
            JobEvent.BACK_OFF,
            True,
            True,
        )
        delays.append(decision.delay_seconds)
        charges = decision.charges
    assert delays == [60, 120, 240, 480, 960, 1920, 3600, 3600]
    assert judge(Cause.AGENT_TRANSIENT, first.charges).reason == (
        "it happened; it runs again in 60 s, on another host where one fits; its hosts have "
        "failed it 2 times, and may do so 10 times; that was failure 2 in a row"
    )


def test_what_breaks_a_row_of_infrastructure_failures() -> None:
    charges = Charges(infra=4, infra_in_row=4)
    lasted = judge(Cause.AGENT_TRANSIENT, charges, lasted_seconds=600.0)
    assert (lasted.event, lasted.charges.infra_in_row) == (JobEvent.REQUEUE, 1)
    assert judge(Cause.AGENT_TRANSIENT, charges, lasted_seconds=599.0).delay_seconds == 480
    assert judge(Cause.STALLED, charges).charges.infra_in_row == 0
    assert judge(Cause.PREEMPTED, charges).charges.infra_in_row == 4, "it says nothing of hosts"


@given(
    in_row=st.integers(0, 50),
    cause=st.sampled_from(BY_BUDGET[Budget.INFRA]),
    chance=st.floats(0, 1, exclude_max=True),
    jitter=st.sampled_from(["none", "deterministic", "random"]),
    ratio=st.floats(0, 1),
)
def test_a_row_of_infrastructure_failures_waits_within_its_bounds(
    in_row: int, cause: Cause, chance: float, jitter: Any, ratio: float
) -> None:
    retry = RetryPolicy(jitter=jitter, jitter_ratio=ratio)
    policy = msgspec.structs.replace(PLENTY, retry=retry)
    charges = Charges(infra=in_row, infra_in_row=in_row)
    decision = judge(cause, charges, policy, chance=chance)
    base = start_delay_seconds(in_row + 1)
    assert base <= decision.delay_seconds <= min(base * (1 + ratio), 3600.0)
    assert (decision.event is JobEvent.BACK_OFF) == (in_row > 0)
    assert decision.avoid_host or in_row == 0 or cause is Cause.GPU_FAULT
    assert decision.charges.infra_in_row == in_row + 1
    assert f"{in_row + 1} in a row" in decision.reason or in_row == 0


# ---- the rest


def test_success_names_the_attempt() -> None:
    assert decide_success(Charges(), 1).reason == "succeeded"
    assert decide_success(Charges(watchdog=1), 2).reason == "succeeded on attempt 2"


def test_only_evidence_a_job_cannot_forge_quarantines_its_host() -> None:
    by_text = Classified(
        cause=Cause.GPU_FAULT, rule="gpu-fault-text", message="its log says so", exit_code=1
    )
    by_kernel = Classified(
        cause=Cause.GPU_FAULT, rule="unkillable", message="it survived SIGKILL", exit_code=None
    )
    assert not decide(by_text, Charges(), Policy(), ENDING, chance=0.0).quarantine_host
    assert decide(by_text, Charges(), Policy(), ENDING, chance=0.0).avoid_host
    assert decide(by_kernel, Charges(), Policy(), ENDING, chance=0.0).quarantine_host


def test_a_policy_may_keep_its_events_to_itself() -> None:
    assert judge(Cause.NONZERO_EXIT, policy=retrying(1)).announce
    assert not judge(Cause.NONZERO_EXIT, policy=retrying(1, emit_retry_events=False)).announce


class Chain(RuleBasedStateMachine):
    """A job that fails in any way, again and again, under a policy that does not change."""

    def __init__(self) -> None:
        super().__init__()
        self.policy = Policy(
            retry=RetryPolicy(max_retries=2), watchdog_cap=1, infra_cap=3, no_progress_limit=4
        )
        self.charges = Charges()
        self.attempts: dict[Budget, int] = dict.fromkeys(Budget, 0)
        self.over = False

    @precondition(lambda self: not self.over)
    @rule(
        cause=st.sampled_from(Cause),
        step=st.none() | st.integers(0, 6),
        held=st.booleans(),
        chance=st.floats(0, 0.99),
    )
    def fail(self, cause: Cause, step: int | None, held: bool, chance: float) -> None:
        policy = msgspec.structs.replace(self.policy, held="the cluster" if held else None)
        decision = judge(cause, self.charges, policy, chance=chance, step=step)
        self.attempts[CHARGED_TO[cause]] += 1
        self.over = decision.event not in AGAIN
        assert self.over == (decision.outcome in (Outcome.FAILED, Outcome.CANCELLED))
        self.charges = decision.charges

    @precondition(lambda self: self.over)
    @rule()
    def revive(self) -> None:
        """A person's retry begins everything anew."""
        self.charges, self.attempts, self.over = Charges(), dict.fromkeys(Budget, 0), False

    @invariant()
    def attempts_stay_within_their_budgets(self) -> None:
        """RETRY-1, BUDGET-2: at most 1 + max_retries attempts end charged to retries; and so on."""
        caps = {
            Budget.RETRIES: self.policy.retry.max_retries,
            Budget.WATCHDOG: self.policy.watchdog_cap,
            Budget.INFRA: self.policy.infra_cap,
        }
        for budget, cap in caps.items():
            assert self.attempts[budget] <= cap + 1, budget
            assert self.over or self.attempts[budget] <= cap, (
                f"{budget} is over its cap, and the job goes on"
            )
        assert self.attempts[Budget.NEVER] <= 1


TestChain = Chain.TestCase
TestChain.settings = settings(max_examples=100, stateful_step_count=30)


def test_a_job_that_hits_the_limit_of_its_own_submission_and_left_nothing_fails_at_once() -> None:
    """BUDGET-8. A checkpoint or a step shows progress; the limit of a queue is its operator's."""
    own = AttemptEnding(job_id="j", own_limit=True)
    hit = found(Cause.TIME_LIMIT)
    ends = {
        "left nothing": own,
        "left a checkpoint": msgspec.structs.replace(own, saved=True),
        "told a step": msgspec.structs.replace(own, step=0),
        "the queue's limit": msgspec.structs.replace(own, own_limit=False),
    }
    said = {name: decide(hit, Charges(), Policy(), end, chance=0.0) for name, end in ends.items()}
    assert said["left nothing"].event is JobEvent.FAIL
    assert "which its submission names" in said["left nothing"].reason
    others = [each.event for name, each in said.items() if name != "left nothing"]
    assert others == [JobEvent.REQUEUE] * 3
    stalled = decide(found(Cause.STALLED), Charges(), Policy(), own, chance=0.0)
    assert stalled.event is JobEvent.REQUEUE


def test_an_end_that_the_controller_alone_made_is_charged_to_nothing() -> None:
    """Whatever the job is retried for, and however much of its budgets is spent (BUDGET-3)."""
    spent = Charges(retries=9, infra=9, watchdog=9)
    policy = Policy(
        retry=RetryPolicy(max_retries=0, eligible_causes=(Cause.NONZERO_EXIT,)), infra_cap=0
    )
    for source, name in ((BY_SYNC, LEASE_DENIED), ("the guardian's clock", "watchdog-lost_lease")):
        trip = make_trip(Watchdog.LOST_LEASE, "the lease was lost", {"source": source})
        what = classify(TaskFacts(trip=trip, signal=9))
        assert (what.rule, what.cause, what.exit_code) == (name, Cause.AGENT_TRANSIENT, 77)
        decision = decide(what, spent, policy, ENDING, chance=0.0)
        if name == LEASE_DENIED:
            assert (decision.event, decision.charged_to) == (JobEvent.REQUEUE, Budget.NOTHING)
            assert decision.charges == spent
        else:
            assert decision.event is JobEvent.FAIL
