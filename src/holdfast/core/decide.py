"""decide(…) → Decision: what becomes of a job whose attempt is over.

BUDGET-1  Only the trigger of a drain is charged, once per attempt.
BUDGET-2  A budget of n forgives n failures of its kind: the next one fails the job. So `watchdog_cap = 3` requeues
          three trips and fails on the fourth, as `max_retries = 3` means four attempts.
BUDGET-3  A cause charged to nothing requeues without limit; a cause that is never retried ends the job.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from holdfast.core.causes import CHARGED_TO, Budget, Cause
from holdfast.core.facts import Classified
from holdfast.core.states import JobEvent, Outcome

PROOF_AGAINST_HOST = frozenset({"unkillable"})
"""Rules whose evidence the job cannot have made up: only these quarantine a host. A line in a job's own log does not."""


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """What is in force for one job when its attempt ends."""

    max_retries: int = 0
    watchdog_cap: int = 3
    infra_cap: int = 10
    on_trip: Literal["requeue", "fail"] = "requeue"


class Charges(msgspec.Struct, frozen=True, kw_only=True):
    """What the job's budgets have been charged before this attempt's end."""

    retries: int = 0
    watchdog: int = 0
    infra: int = 0


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """What happens to the job, and the sentence of why that every face shows.

    event: the edge of the job's machine. outcome: of the attempt. front: back to the front of the queue.
    avoid_host: keep the next attempt away from the trigger's host where another fits.
    delay_seconds: with BACK_OFF only.
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


def decide_success(charges: Charges, attempt: int) -> Decision:
    """Every task is done."""
    reason = "succeeded" if attempt == 1 else f"succeeded on attempt {attempt}"
    return Decision(
        event=JobEvent.SUCCEED, outcome=Outcome.SUCCEEDED, cause=None, rule=None, charged_to=None,
        charges=charges, reason=reason, exit_code=0,
    )  # fmt: skip


def decide(found: Classified, charges: Charges, policy: Policy) -> Decision:
    """Return what becomes of the job after its trigger ended as `found`.

    `charges` are those before this end. Pure: the same arguments always give the same decision.
    """
    budget = CHARGED_TO[found.cause]
    if found.cause is Cause.USER_CANCELLED:
        return _end(found, budget, charges, JobEvent.CANCEL, Outcome.CANCELLED, found.message)
    if budget is Budget.NEVER:
        return _end(
            found,
            budget,
            charges,
            JobEvent.FAIL,
            Outcome.FAILED,
            f"{found.message}; {found.cause} is never retried",
        )
    if budget is Budget.NOTHING:
        reason = f"requeued at no charge: {found.message}"
        return _requeue(found, budget, charges, reason, avoid=False)
    if budget is Budget.WATCHDOG:
        after = msgspec.structs.replace(charges, watchdog=charges.watchdog + 1)
        if policy.on_trip == "fail":
            return _end(
                found,
                budget,
                after,
                JobEvent.FAIL,
                Outcome.FAILED,
                f"{found.message}; its queue fails a job that trips",
            )
        if charges.watchdog >= policy.watchdog_cap:
            text = f"{found.message}; trip {after.watchdog}, and its budget of {policy.watchdog_cap} is spent"
            return _end(found, budget, after, JobEvent.FAIL, Outcome.FAILED, text)
        text = f"{found.message}; requeued at the front, trip {after.watchdog} of {policy.watchdog_cap} forgiven"
        return _requeue(found, budget, after, text, avoid=True)
    if budget is Budget.INFRA:
        after = msgspec.structs.replace(charges, infra=charges.infra + 1)
        if charges.infra >= policy.infra_cap:
            text = (
                f"{found.message}; infrastructure failure {after.infra}, and its budget of {policy.infra_cap} is spent"
            )
            return _end(found, budget, after, JobEvent.FAIL, Outcome.FAILED, text)
        text = f"{found.message}; requeued, infrastructure failure {after.infra} of {policy.infra_cap} forgiven"
        return _requeue(found, budget, after, text, avoid=found.cause is Cause.GPU_FAULT)
    after = msgspec.structs.replace(charges, retries=charges.retries + 1)
    if charges.retries >= policy.max_retries:
        spent = (
            "no retries were asked for" if policy.max_retries == 0 else f"all {policy.max_retries} retries are spent"
        )
        return _end(found, budget, after, JobEvent.FAIL, Outcome.FAILED, f"{found.message}; {spent}")
    text = f"{found.message}; retry {after.retries} of {policy.max_retries}"
    return _requeue(found, budget, after, text, avoid=True)


def _end(
    found: Classified, budget: Budget, charges: Charges, event: JobEvent, outcome: Outcome, reason: str
) -> Decision:
    return Decision(
        event=event, outcome=outcome, cause=found.cause, rule=found.rule, charged_to=budget, charges=charges,
        reason=reason, exit_code=found.exit_code, quarantine_host=found.rule in PROOF_AGAINST_HOST,
    )  # fmt: skip


def _requeue(found: Classified, budget: Budget, charges: Charges, reason: str, *, avoid: bool) -> Decision:
    return Decision(
        event=JobEvent.REQUEUE, outcome=Outcome.REQUEUED, cause=found.cause, rule=found.rule, charged_to=budget,
        charges=charges, reason=reason, exit_code=found.exit_code, front=True, avoid_host=avoid,
        quarantine_host=found.rule in PROOF_AGAINST_HOST,
    )  # fmt: skip
