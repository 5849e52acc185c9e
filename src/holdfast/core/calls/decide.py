"""decide_call(…) → CallDecision: what becomes of a call that ended badly, by the rules of jobs.

A call's charges are its own, and a batch's other calls are charged nothing (CALLSET-2). Rules about a
whole job (its steps, its gang, the limit of its start) do not apply to a call.
"""

from collections.abc import Callable, Sequence
from enum import StrEnum

import msgspec
from msgspec import UNSET

from holdfast.core.calls.executors import as_job
from holdfast.core.calls.values import CallCharges, FunctionSpec
from holdfast.core.causes import Cause, Watchdog
from holdfast.core.endings.classify import classify
from holdfast.core.endings.decide import AttemptEnding, Charges, Policy, decide
from holdfast.core.endings.rules import OperatorRule
from holdfast.core.facts import Classified, TaskFacts, Trip
from holdfast.core.retry import RetryFields, make_policy
from holdfast.core.settings.resolve import job_layer, resolve_all
from holdfast.core.states import JobEvent

HELD_SECONDS = 30.0
"""How long a call waits before the kill switch that holds its retries is looked at again."""
MAX_TEXT = 4000
UNABLE = "app-unusable"
"""The name of the rule for a call that ended because its host cannot run the app."""

_OPTIONS = {
    Watchdog.STALL: "stall_timeout of @holdfast.task allows a longer silence, ctx.beat() ends it",
    Watchdog.TIME_LIMIT: "time_limit of @holdfast.task allows more",
}

PolicyOf = Callable[[str, FunctionSpec], Policy]
"""Queue and function → the policy for failures of its calls, by the settings in force."""


class CallOutcome(StrEnum):
    """The next state of a call after an attempt that did not succeed."""

    READY = "ready"
    WAIT = "wait"
    FAILED = "failed"
    CANCELLED = "cancelled"


class CallDecision(msgspec.Struct, frozen=True, kw_only=True):
    """The next state of a call, with the reason as a sentence for API, CLI and Python alike.

    charged_to: the budget that pays for the failure; charges: the call's charges after it.
    delay_seconds: time until the retry, with WAIT only. held: a kill switch holds the retry.
    """

    outcome: CallOutcome
    cause: Cause
    rule: str
    charged_to: str
    charges: CallCharges
    reason: str
    delay_seconds: float = 0.0
    held: bool = False


def default_policy(queue: str, spec: FunctionSpec) -> Policy:
    """Return the policy of a function where no other layer sets anything."""
    found = resolve_all([("job", job_layer(as_job(spec)))])
    values = {name: effective.value for name, effective in found.items()}
    policy = Policy(
        retry=make_policy(values),
        watchdog_cap=int(values["watchdog_cap"] or 0),
        infra_cap=int(values["infra_cap"] or 0),
        on_trip="fail" if values["on_trip"] == "fail" else "requeue",
    )
    return pace_retries(policy, spec, float(values["call_retry_delay_seconds"] or 0))


def pace_retries(policy: Policy, spec: FunctionSpec, delay_seconds: float) -> Policy:
    """Return a job's policy with the shorter retry delays of a call, because most calls take less
    time than a job's delays. Where the function sets no delay, the first retry comes after
    `delay_seconds`, and each next one after a multiple of the last, unless it sets the back-off."""
    own = spec.retry or RetryFields()
    if own.retry_delay is not UNSET:
        return policy
    backoff = policy.retry.backoff if own.backoff is not UNSET else "exponential"
    retry = msgspec.structs.replace(policy.retry, retry_delay=delay_seconds, backoff=backoff)
    return msgspec.structs.replace(policy, retry=retry)


def classify_exception(
    kind: str,
    message: str,
    traceback: str,
    rules: Sequence[OperatorRule],
    *,
    invalid: bool = False,
    unable: bool = False,
) -> Classified:
    """Return the cause of an exception that left a call.

    kind: the exception's class name. invalid: arguments or result do not match their types, which
    no retry mends. unable: the function cannot be imported on the call's host.
    """
    if unable:
        return Classified(
            cause=Cause.APP_UNUSABLE, rule=UNABLE, message=message[:MAX_TEXT], exit_code=1
        )
    said = " ".join(f"{kind}: {message}".split()) if message else kind
    said = said[:MAX_TEXT]
    if invalid:
        return Classified(
            cause=Cause.VALIDATION_ERROR, rule="call-invalid", message=said, exit_code=1
        )
    tail = traceback[-16_000:] or said
    found = classify(TaskFacts(exit_code=1, log_tail=tail), rules)
    if found.rule == "exit-code":
        return msgspec.structs.replace(found, rule="call-raised", message=said)
    return found


def name_option(found: Classified, trip: Trip | None) -> Classified:
    """Add to the message of a call that a watchdog ended the option of `@holdfast.task` that allows
    more time."""
    option = None if trip is None else _OPTIONS.get(trip.watchdog)
    if option is None:
        return found
    return msgspec.structs.replace(found, message=f"{found.message}; {option}")


def decide_call(
    found: Classified,
    charges: CallCharges,
    policy: Policy,
    *,
    name: str,
    chance: float,
    lasted_seconds: float = 0.0,
    own_limit: bool = False,
    left: bool = False,
) -> CallDecision:
    """Return the next state of a call after an attempt that ended as `found`.

    charges: the call's charges before this end. name: `SET.INDEX`, which seeds the jitter so that
    it can be computed again. chance: uniform in [0, 1). own_limit: the function itself sets the
    time limit. left: the attempt left a checkpoint or reported a step (BUDGET-8).
    """
    before = Charges(
        retries=charges.retries,
        watchdog=charges.watchdog,
        infra=charges.infra,
        infra_in_row=charges.infra_in_row,
    )
    ending = AttemptEnding(
        job_id=name,
        ran_seconds=lasted_seconds,
        lasted_seconds=lasted_seconds,
        own_limit=own_limit,
        saved=left,
    )
    decision = decide(found, before, policy, ending, chance=chance)
    after = decision.charges
    outcome, delay = _OUTCOMES[decision.event], decision.delay_seconds
    if decision.held is not None:
        delay = max(delay, HELD_SECONDS)
    elif outcome is CallOutcome.WAIT and delay <= 0:
        outcome = CallOutcome.READY
    return CallDecision(
        outcome=outcome,
        cause=found.cause,
        rule=found.rule,
        charged_to=str(decision.charged_to or ""),
        charges=CallCharges(
            after.retries, after.watchdog, after.infra, after.infra_in_row, charges.unable_on
        ),
        reason=decision.reason,
        delay_seconds=delay if outcome is CallOutcome.WAIT else 0.0,
        held=decision.held is not None,
    )


_OUTCOMES = {
    JobEvent.REQUEUE: CallOutcome.READY,
    JobEvent.BACK_OFF: CallOutcome.WAIT,
    JobEvent.FAIL: CallOutcome.FAILED,
    JobEvent.CANCEL: CallOutcome.CANCELLED,
}


class CallJudge(msgspec.Struct, frozen=True):
    """The inputs of every decision on a failed call: the policy in force, the operators' rules, and
    a source of numbers uniform in [0, 1) for random jitter."""

    policy_of: PolicyOf
    rules: Sequence[OperatorRule]
    chance: Callable[[], float]
