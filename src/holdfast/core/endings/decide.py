"""decide(…) → Decision: the next step of a job whose attempt is over.

BUDGET-1  Only the trigger of a drain is charged, once per attempt.
BUDGET-2  A budget of n forgives n failures of its kind: the next one fails the job. So
          `watchdog_cap = 3` requeues three trips and fails on the fourth, as `max_retries = 3`
          means four attempts.
BUDGET-3  A cause charged to nothing requeues without limit; a cause that is never retried ends the
          job. An end that the controller alone made is charged to nothing, also where its job is not
          retried for such a cause.
BUDGET-4  An attempt that ran for `budget_reset_seconds` gives the job all its budgets back before
          it is charged.
RETRY-4   A job ends after `no_progress_limit` attempts in a row that got no further, even with
          budget left.
BUDGET-5  A start that failed before every task ran is charged to no budget: the first is tried
          again at once, later ones 60 s doubling to 1 h apart, and after `start_failure_limit` of
          them in a row the job is parked until a person says otherwise.
BUDGET-6  The first infrastructure failure is tried again at once. After the second in a row of
          attempts that did not last, the job waits as after a second failed start, with its own
          jitter, and avoids the host. So a broken host does not use the budget up within seconds.
BUDGET-7  A program that can never start on its host fails the job at once, unless another eligible
          host has not tried it yet: then it is a failed start (BUDGET-5), and that host is next.
BUDGET-8  A job that reaches the time limit of its own submission fails at once where its attempt
          left neither a checkpoint nor a step, because another attempt would begin anew and end the
          same.
BUDGET-9  A job whose program or configuration is wrong (`program_error`) fails at once, because no
          other host, hour or order of data mends it, unless its attempt got further than all
          before it: then the mistake stands behind work that was done, and a retry is charged.
          Where another build, driver, card or cache may mend it, a retry on another host is
          charged once.
ASIDE-2   A job whose start failed because its host lacked something is queued without a back-off
          where that host has set itself aside and others could run the job. It is counted as a
          failed start, so a job that breaks host after host is parked.
RETRY-5   While retries are held (the kill switch) none is dropped: the job waits, and its charge
          stands.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from holdfast.core.causes import CHARGED_TO, Budget, Cause
from holdfast.core.endings.classify import HOST_START, LEASE_DENIED, NEVER_STARTS
from holdfast.core.facts import Classified
from holdfast.core.retry import RetryPolicy, retry_delay_seconds
from holdfast.core.states import JobEvent, Outcome

PROOF_AGAINST_HOST = frozenset({"unkillable", "gpu-xid", "gpu-ecc", "gpu-lost"})
"""Rules whose evidence a job cannot make up. Only these quarantine a host; a line of a log never
does, because a job writes its own log."""


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """The settings in force for one job when its attempt ends.

    watchdog_cap, infra_cap: budgets of failures (BUDGET-2). on_trip: what a watchdog's trip does.
    no_progress_limit: attempts in a row without progress, None without a limit (RETRY-4).
    budget_reset_seconds: BUDGET-4. start_failure_limit: BUDGET-5. held: the kill switch that holds
    retries back ("the cluster", "project x"), or None.
    """

    retry: RetryPolicy = RetryPolicy()
    watchdog_cap: int = 3
    infra_cap: int = 10
    on_trip: Literal["requeue", "fail"] = "requeue"
    no_progress_limit: int | None = 3
    budget_reset_seconds: float | None = None
    start_failure_limit: int = 8
    held: str | None = None


class Charges(msgspec.Struct, frozen=True, kw_only=True):
    """The charges of a job before this end, and its progress.

    retries, watchdog, infra: failures charged to each budget; in a gang, those of the rank that is
    to be charged (GANG-4). best_step: the furthest step of any attempt. no_progress: attempts in a
    row that got no further than `best_step`. start_failures: failed starts in a row. infra_in_row:
    infrastructure failures in a row (BUDGET-6).
    """

    retries: int = 0
    watchdog: int = 0
    infra: int = 0
    best_step: int | None = None
    no_progress: int = 0
    start_failures: int = 0
    infra_in_row: int = 0


class AttemptEnding(msgspec.Struct, frozen=True, kw_only=True):
    """The attempt that is over.

    ran_seconds: its run time as its host reported it, 0 from a lost host. lasted_seconds: time from
    its start to the begin of its drain, by the store's clock. step: the furthest step that its
    beats reported, None without one. elsewhere: another eligible host has not tried it yet
    (BUDGET-7), and its program was not wrong on an earlier one (BUDGET-9). others_serve: its host
    has set itself aside, and other hosts could run it (ASIDE-2). own_limit: the submission itself
    set the time limit. saved: it left a checkpoint (BUDGET-8, BUDGET-9).
    """

    job_id: str
    interactive: bool = False
    ran_seconds: float = 0.0
    lasted_seconds: float = 0.0
    step: int | None = None
    elsewhere: bool = False
    others_serve: bool = False
    own_limit: bool = False
    saved: bool = False


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """The next step of a job, with the reason as a sentence for API, CLI and events alike.

    event: the edge that the job takes in `core.transitions`. outcome: the attempt's outcome.
    cause, rule: why the attempt failed, and the rule that found it. charged_to: the budget that
    pays; charges: the job's charges afterwards. exit_code: the code kept on the attempt.
    front: the job is queued at the front. avoid_host: the next attempt is placed on another host
    than the trigger's where one fits. quarantine_host: the trigger's host is quarantined.
    delay_seconds: time until the retry, with BACK_OFF only. parked: with BACK_OFF, only a person
    brings the job back. retry: "scheduled" after every charge, "exhausted" where a budget that was
    not 0 is spent. announce: an event job.retry_* is written. policy: the retry policy that was
    used. held: as in `Policy`. reset: all budgets were set back before this charge (BUDGET-4).
    """

    event: JobEvent
    outcome: Outcome
    cause: Cause | None
    rule: str | None
    charged_to: Budget | None
    charges: Charges
    reason: str
    exit_code: int | None
    front: bool = False
    avoid_host: bool = False
    quarantine_host: bool = False
    delay_seconds: float = 0.0
    retry: Literal["scheduled", "exhausted"] | None = None
    policy: RetryPolicy | None = None
    announce: bool = True
    held: str | None = None
    parked: bool = False
    reset: bool = False


def decide_success(charges: Charges, attempt: int, notices: Sequence[str] = ()) -> Decision:
    """Return the decision for an attempt whose every task is done. notices: remarks for the job's
    owner from the ends of its tasks."""
    reason = "succeeded" if attempt == 1 else f"succeeded on attempt {attempt}"
    return Decision(
        event=JobEvent.SUCCEED,
        outcome=Outcome.SUCCEEDED,
        cause=None,
        rule=None,
        charged_to=None,
        charges=charges,
        reason=add_notices(reason, notices),
        exit_code=0,
    )


def add_notices(reason: str, notices: Sequence[str]) -> str:
    """Append the first notice for the job's owner, and the number of others, to a reason."""
    if not notices:
        return reason
    more = f" (and {len(notices) - 1} more: see its events)" if len(notices) > 1 else ""
    return f"{reason}; {notices[0]}{more}"


def decide(
    found: Classified, charges: Charges, policy: Policy, ending: AttemptEnding, *, chance: float
) -> Decision:
    """Return the decision on a job whose trigger ended as `found`.

    charges: the job's charges before this end. chance: uniform in [0, 1), for random jitter. Pure:
    the same arguments always give the same decision.
    """
    may_move = Cause.START_TIMEOUT in policy.retry.eligible_causes and not ending.interactive
    if found.rule == NEVER_STARTS and ending.elsewhere and may_move:
        found = msgspec.structs.replace(found, cause=Cause.START_TIMEOUT)
    budget = find_budget(found)
    case = _EndCase(found, budget, policy, ending)
    seen = count_progress(charges, ending.step, counted=False)
    further = ending.saved or seen.best_step != charges.best_step
    if found.cause is Cause.USER_CANCELLED:
        return case.end(seen, found.message, JobEvent.CANCEL, Outcome.CANCELLED)
    refusal = _refuse(found, budget, policy, ending)
    if refusal is not None:
        return case.end(seen, f"{found.message}; {refusal}")
    if found.cause is Cause.START_TIMEOUT:
        return _back_off_start(case, seen)
    if budget is Budget.NOTHING:
        seen = msgspec.structs.replace(seen, start_failures=0)
        text = f"requeued at no charge: {found.message}"
        return case.requeue(seen, text, avoid=found.cause is Cause.STRAGGLER)
    charges = msgspec.structs.replace(charges, start_failures=0)
    enough = policy.budget_reset_seconds
    if enough is not None and ending.ran_seconds >= enough:
        charges = Charges(best_step=charges.best_step)
        case.reset = True
    if budget is not Budget.INFRA:
        charges = msgspec.structs.replace(charges, infra_in_row=0)
    charges = count_progress(charges, ending.step)
    moves = found.avoid_host and ending.elsewhere
    if found.cause is Cause.PROGRAM_ERROR and not further and not moves:
        text = f"{found.message}; another attempt would end the same, so none follows"
        return case.end(charges, text)
    limit = policy.no_progress_limit
    if limit is not None and charges.no_progress >= limit:
        text = f"{found.message}; {charges.no_progress} attempts in a row got no further than step {charges.best_step}"
        return case.end(charges, text, retry="exhausted")
    if budget is Budget.WATCHDOG:
        return _charge_watchdog(case, charges)
    if budget is Budget.INFRA:
        return _charge_infra(case, charges, chance)
    return _charge_retries(case, charges, chance)


def count_progress(charges: Charges, step: int | None, *, counted: bool = True) -> Charges:
    """Return the charges after an attempt that got to `step`; without steps, nothing is counted.

    counted: False for an end that is charged to nothing: it may show progress, never its lack.
    """
    best = charges.best_step
    if step is not None and (best is None or step > best):
        return msgspec.structs.replace(charges, best_step=step, no_progress=0)
    if best is None or not counted:
        return charges
    return msgspec.structs.replace(charges, no_progress=charges.no_progress + 1)


def find_budget(found: Classified) -> Budget:
    """Return the budget that pays for a failure: none for an end that the controller made."""
    return Budget.NOTHING if found.rule == LEASE_DENIED else CHARGED_TO[found.cause]


def is_final(found: Classified, policy: Policy) -> bool:
    """Return whether a failure like this is never retried, even with budget left."""
    if found.rule == LEASE_DENIED:
        return False
    never = found.never_retry or CHARGED_TO[found.cause] is Budget.NEVER
    return never or found.cause not in policy.retry.eligible_causes


def _refuse(found: Classified, budget: Budget, policy: Policy, ending: AttemptEnding) -> str | None:
    """Return why no attempt follows, even with budget left, or None."""
    if budget is Budget.NEVER:
        return f"{found.cause} is never retried"
    if ending.interactive:
        return "it was submitted to run once"
    if found.never_retry:
        return f"rule {found.rule} says it is never retried"
    if is_final(found, policy):
        return f"{found.cause} is not among the causes it is retried for"
    return None


FIRST_START_DELAY_SECONDS = 60.0
MAX_START_DELAY_SECONDS = 3600.0
STEADY_SECONDS = 600.0
"""An attempt that lasted so long was well placed, so its infrastructure failure counts as the first
in a row (BUDGET-6)."""


def start_delay_seconds(failures: int) -> float:
    """Return how long to wait after `failures` failed starts in a row (BUDGET-5)."""
    if failures <= 1:  # most often a host died, and others are there
        return 0.0
    return min(FIRST_START_DELAY_SECONDS * 2.0 ** min(failures - 2, 10), MAX_START_DELAY_SECONDS)


def _back_off_start(case: _EndCase, charges: Charges) -> Decision:
    failures, limit = charges.start_failures + 1, case.policy.start_failure_limit
    text = f"{case.found.message}; "
    after = msgspec.structs.replace(charges, start_failures=failures)
    if failures >= limit:
        text += (
            f"parked after {failures} failed starts in a row, until `holdfast retry` lets it go on"
        )
        return case.make(JobEvent.BACK_OFF, Outcome.REQUEUED, after, text, parked=True)
    if failures == 1 or (case.ending.others_serve and case.found.rule == HOST_START):
        return case.requeue(after, f"{text}queued again, at the front", avoid=True)
    delay = start_delay_seconds(failures)
    text += f"failed start {failures} of {limit}, tried again in {delay:.0f} s"
    again = (JobEvent.BACK_OFF, Outcome.REQUEUED)
    return case.make(*again, after, text, avoid_host=True, delay_seconds=delay)


def _charge_watchdog(case: _EndCase, charges: Charges) -> Decision:
    cap, text = case.policy.watchdog_cap, case.found.message
    after = msgspec.structs.replace(charges, watchdog=charges.watchdog + 1)
    if case.policy.on_trip == "fail":
        return case.end(after, f"{text}; its queue fails a job that trips")
    left_nothing = case.ending.step is None and not case.ending.saved
    if case.found.cause is Cause.TIME_LIMIT and case.ending.own_limit and left_nothing:
        why = "the attempt saved no checkpoint and told no step, so another would end the same"
        return case.end(after, f"{text}, which its submission names; {why}")
    if charges.watchdog >= cap:
        spent = f"{text}; stopped by a watchdog {say_times(after.watchdog)}, and its budget of {cap} is spent"
        return case.end(after, spent, retry="exhausted" if cap else None)
    forgiven = say_forgiven(Budget.WATCHDOG, after.watchdog, cap)
    text = f"{text}; it runs again, at the front of its queue; {forgiven}"
    return case.requeue(after, text, avoid=True)


def say_times(count: int) -> str:
    """Return how often something was, in words."""
    return "once" if count == 1 else f"{count} times"


def say_forgiven(budget: Budget, count: int, cap: int) -> str:
    """Return how often a watchdog or its hosts ended a job or a rank, and how often they may."""
    ends = "a watchdog has stopped" if budget is Budget.WATCHDOG else "its hosts have failed"
    return f"{ends} it {say_times(count)}, and may do so {say_times(cap)}"


def infra_delay_seconds(in_row: int, retry: RetryPolicy, *, job_id: str, chance: float) -> float:
    """Return how long to wait after `in_row` infrastructure failures in a row (BUDGET-6)."""
    if in_row <= 1:  # most often a host died, and others are there
        return 0.0
    paced = RetryPolicy(
        retry_delay=FIRST_START_DELAY_SECONDS,
        backoff="exponential",
        max_retry_delay=MAX_START_DELAY_SECONDS,
        jitter=retry.jitter,
        jitter_ratio=retry.jitter_ratio,
    )
    return retry_delay_seconds(paced, in_row - 2, job_id=job_id, chance=chance)


def _charge_infra(case: _EndCase, charges: Charges, chance: float) -> Decision:
    cap, text, ending = case.policy.infra_cap, case.found.message, case.ending
    in_row = 1 if ending.lasted_seconds >= STEADY_SECONDS else charges.infra_in_row + 1
    after = msgspec.structs.replace(charges, infra=charges.infra + 1, infra_in_row=in_row)
    if charges.infra >= cap:
        spent = f"{text}; failed by its hosts {say_times(after.infra)}, and its budget of {cap} is spent"
        return case.end(after, spent, retry="exhausted" if cap else None)
    forgiven = say_forgiven(Budget.INFRA, after.infra, cap)
    if in_row == 1:
        avoid = case.found.cause in (Cause.GPU_FAULT, Cause.SILENT_CORRUPTION)
        return case.requeue(after, f"{text}; it runs again; {forgiven}", avoid=avoid)
    delay = infra_delay_seconds(in_row, case.policy.retry, job_id=ending.job_id, chance=chance)
    text = f"{text}; it runs again in {delay:.4g} s, on another host where one fits"
    return case.pause(after, f"{text}; {forgiven}; that was failure {in_row} in a row", delay)


def _charge_retries(case: _EndCase, charges: Charges, chance: float) -> Decision:
    retry, text = case.policy.retry, case.found.message
    after = msgspec.structs.replace(charges, retries=charges.retries + 1)
    if charges.retries >= retry.max_retries:
        most = retry.max_retries
        spent = {0: "no retries were asked for", 1: "its one retry is spent"}
        reason = f"{text}; {spent.get(most, f'all {most} retries are spent')}"
        return case.end(after, reason, retry="exhausted" if most else None)
    delay = retry_delay_seconds(retry, charges.retries, job_id=case.ending.job_id, chance=chance)
    text = f"{text}; retry {after.retries} of {retry.max_retries} in {delay:.4g} s"
    return case.back_off(after, text, delay)


class _EndCase:
    """The end of one attempt, with the fields that are the same in every decision on it."""

    def __init__(
        self, found: Classified, budget: Budget, policy: Policy, ending: AttemptEnding
    ) -> None:
        self.found = found
        self.budget = budget
        self.policy = policy
        self.ending = ending
        self.reset = False

    def end(
        self,
        charges: Charges,
        reason: str,
        event: JobEvent = JobEvent.FAIL,
        outcome: Outcome = Outcome.FAILED,
        *,
        retry: Literal["exhausted"] | None = None,
    ) -> Decision:
        return self.make(event, outcome, charges, reason, retry=retry)

    def requeue(self, charges: Charges, reason: str, *, avoid: bool) -> Decision:
        """Queue the job at the front, at once; a charged attempt waits while retries are held
        (RETRY-5)."""
        if self.policy.held is not None and self.budget is not Budget.NOTHING:
            return self._back_off(charges, reason, 0.0, avoid=avoid, retry="scheduled")
        again = (JobEvent.REQUEUE, Outcome.REQUEUED)
        retry = None if self.budget is Budget.NOTHING else "scheduled"
        return self.make(*again, charges, reason, front=True, avoid_host=avoid, retry=retry)

    def back_off(self, charges: Charges, reason: str, delay_seconds: float) -> Decision:
        """Let the job back off for a retry. The job keeps its old place in the queue, because it
        has waited already."""
        kept: Any = {"avoid": True, "front": False, "retry": "scheduled"}
        return self._back_off(charges, reason, delay_seconds, **kept)

    def pause(self, charges: Charges, reason: str, delay_seconds: float) -> Decision:
        """Let the job back off and avoid the host, after a failure that was not the job's own."""
        return self._back_off(charges, reason, delay_seconds, avoid=True, retry="scheduled")

    def _back_off(
        self,
        charges: Charges,
        reason: str,
        delay_seconds: float,
        *,
        avoid: bool,
        front: bool = True,
        retry: Literal["scheduled"] | None = None,
    ) -> Decision:
        held = self.policy.held
        text = reason if held is None else f"{reason}; held, because {held} holds all retries"
        return self.make(
            JobEvent.BACK_OFF,
            Outcome.REQUEUED,
            charges,
            text,
            front=front,
            avoid_host=avoid,
            delay_seconds=delay_seconds,
            retry=retry,
            held=held,
        )

    def make(
        self,
        event: JobEvent,
        outcome: Outcome,
        charges: Charges,
        reason: str,
        *,
        avoid_host: bool = False,
        **more: Any,
    ) -> Decision:
        """Return a decision whose cause, rule and policy are the case's. more: other fields of
        `Decision`."""
        found = self.found
        return Decision(
            event=event,
            outcome=outcome,
            cause=found.cause,
            rule=found.rule,
            charged_to=self.budget,
            charges=charges,
            reason=reason,
            exit_code=found.exit_code,
            avoid_host=avoid_host or found.avoid_host,
            quarantine_host=found.rule in PROOF_AGAINST_HOST,
            policy=self.policy.retry,
            announce=self.policy.retry.emit_retry_events,
            reset=self.reset,
            **more,
        )
