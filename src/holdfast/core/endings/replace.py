"""plan_replacement(…): the decision on a fallen member of a supervised job while the others run on.

A supervised job is a gang of host managers under a policy script, which rank 0's task runs. The
script decides what the loss of a host means for its ranks; this module decides only whether and
when another host takes over. Pure.

MEMBER-1  Rank 0 is the job: with it the whole gang falls, by the ordinary drain. Every other rank
          is replaced by itself: same attempt, an epoch of its own, so that a report of its earlier
          host is never taken for its successor's (FENCE-1).
MEMBER-2  A host that the script gave up (exit code 72) is charged to nothing, and is not used again
          in this attempt. A manager that no longer heard from the script (exit code 70) is charged
          to nothing either, because most often the script's own host has died, which is not known
          yet. A trip is charged to the rank's watchdog budget, every other end to its
          infrastructure budget, because a host manager's end is never the training's. A rank over
          its budget ends the job.
MEMBER-3  A rank that was replaced before and falls again soon after its start comes back ever
          later, so that hosts which cannot run it are not tried in a circle.
MEMBER-5  A rank that does not start is charged to nothing. It is tried again at once after its
          first failed start in a row, then 60 s doubling to 1 h apart, and after
          `start_failure_limit` failed starts it is parked until a person says otherwise (BUDGET-5,
          for one rank). The other ranks run on: the script decides whether they can do without it.
"""

from collections.abc import Sequence

import msgspec

from holdfast.core.causes import CHARGED_TO, Budget, Cause
from holdfast.core.endings.classify import classify
from holdfast.core.endings.decide import (
    PROOF_AGAINST_HOST,
    Policy,
    find_budget,
    is_final,
    say_forgiven,
    say_times,
    start_delay_seconds,
)
from holdfast.core.endings.fallen import REPLACED, classify_fallen, name_rank
from holdfast.core.endings.rules import OperatorRule
from holdfast.core.facts import Classified
from holdfast.core.records import JobRecord, RankCharges, TaskRecord
from holdfast.core.states import TaskState

STEADY_SECONDS = 60.0
"""A member that ran for so long was well placed, so its next fall is answered at once."""
MAX_DELAY_SECONDS = 60.0
_NEVER_RAN = ("asked", "checkpoint")  # rules of failed starts; with any other rule the member ran


class Replacement(msgspec.Struct, frozen=True, kw_only=True):
    """The decision on a fallen member.

    go_on: another host takes over after `delay_seconds`; False: the whole job falls. charges: the
    rank's charges afterwards. bar_host: its host is not used again in this attempt; otherwise hosts
    that it had are used last. start_failures: its failed starts in a row, this one included.
    parked: it gets a host only when a person says so (MEMBER-5).
    """

    go_on: bool
    cause: Cause
    rule: str
    reason: str
    exit_code: int | None
    charged_to: Budget
    charges: RankCharges
    delay_seconds: float = 0.0
    bar_host: bool = False
    quarantine_host: bool = False
    start_failures: int = 0
    parked: bool = False


def plan_replacement(
    job: JobRecord, task: TaskRecord, policy: Policy, rules: Sequence[OperatorRule]
) -> Replacement:
    """Return the decision on `task`, a fallen member of the supervised `job`."""
    found = find_member_cause(task, rules)
    case = _MemberCase(job, task, found, is_proof=_is_proof(task, rules))
    if found.rule == REPLACED:
        return case.go_on(Budget.NOTHING, ", because the script replaced it", bar_host=True)
    budget = find_budget(found)
    if is_final(found, policy):
        return case.give_up(budget, "that is not to be run again")
    if found.cause is Cause.TIME_LIMIT:
        return case.give_up(budget, "the time limit is the whole job's")
    if found.cause is Cause.START_TIMEOUT:
        return case.try_again(policy.start_failure_limit)
    if budget is Budget.NOTHING:
        return case.go_on(budget, ", at no charge")
    return case.charge(budget, policy)


def find_member_cause(task: TaskRecord, rules: Sequence[OperatorRule]) -> Classified:
    """Return the cause of a member's fall: the reason for which Holdfast stopped this member alone,
    else the cause that its facts show."""
    if task.state is not TaskState.PREEMPTED or task.stop_cause is None:
        return classify_fallen(task.facts, rules, member=True)
    message = task.stop_reason or str(task.stop_cause)
    retried = CHARGED_TO[task.stop_cause] is Budget.RETRIES
    cause = Cause.AGENT_TRANSIENT if retried else task.stop_cause
    return Classified(cause=cause, rule="asked", message=message, exit_code=None)


def _is_proof(task: TaskRecord, rules: Sequence[OperatorRule]) -> bool:
    """Return whether the task's end is evidence against its host, even where the script gave the
    host up first."""
    return task.facts is not None and classify(task.facts, rules).rule in PROOF_AGAINST_HOST


class _MemberCase:
    """The fall of one member, with the fields that are the same in every decision on it."""

    def __init__(
        self, job: JobRecord, task: TaskRecord, found: Classified, *, is_proof: bool
    ) -> None:
        self._task = task
        self._found = found
        self._is_proof = is_proof
        self._charges = job.rank_charges.get(str(task.rank), RankCharges())
        facts = task.facts
        self._ran = 0.0 if facts is None else facts.runtime_seconds
        if task.started_at is not None and task.ended_at is not None:
            self._ran = max(self._ran, (task.ended_at - task.started_at).total_seconds())

    def charge(self, budget: Budget, policy: Policy) -> Replacement:
        """Return the decision for a failure that is charged to a budget of the member: the member
        is replaced while that budget lasts."""
        reset = policy.budget_reset_seconds
        if reset is not None and self._ran >= reset:
            self._charges = RankCharges()
        trip = budget is Budget.WATCHDOG
        spent = self._charges.watchdog if trip else self._charges.infra
        cap = policy.watchdog_cap if trip else policy.infra_cap
        if trip and policy.on_trip == "fail":
            return self.give_up(budget, "its queue fails a job that trips")
        if spent >= cap:
            ends = "stopped by a watchdog" if trip else "failed by its hosts"
            why = f"this rank was {ends} {say_times(spent + 1)}, and its budget of {cap} is spent"
            return self.give_up(budget, why)
        after = {"watchdog" if trip else "infra": spent + 1}
        self._charges = msgspec.structs.replace(self._charges, **after)
        return self.go_on(budget, f"; {say_forgiven(budget, spent + 1, cap)}")

    def go_on(self, budget: Budget, why: str, *, bar_host: bool = False) -> Replacement:
        """Return the decision to replace the member: with a longer delay each time (MEMBER-3), but
        at once where the script gave its host up."""
        delay = 0.0 if bar_host else self._pace()
        text = f"it is replaced{_say_delay(delay)}{why}"
        return self._make(True, budget, text, delay, bar_host)

    def _pace(self) -> float:
        count = self._task.replaced
        steady = self._ran >= STEADY_SECONDS or count == 0
        return 0.0 if steady else min(2.0 ** min(count - 1, 10), MAX_DELAY_SECONDS)

    def try_again(self, limit: int) -> Replacement:
        """Return the decision to start the member again, because its start failed: at once, then
        with a longer delay each time; after `limit` failures in a row the member is parked, until a
        person releases it (MEMBER-5)."""
        never_ran = self._found.rule in _NEVER_RAN
        failures = (self._task.start_failures if never_ran else 0) + 1
        delay = max(start_delay_seconds(failures), self._pace())
        why = f"it is replaced{_say_delay(delay)}, failed start {failures} of {limit} in a row"
        why += ", at no charge"
        parked = failures >= limit
        if parked:
            why = f"it is parked after {failures} failed starts in a row, until `holdfast retry`"
            why += " lets it be tried again"
        plan = self._make(True, Budget.NOTHING, why, 0.0 if parked else delay, False)
        return msgspec.structs.replace(plan, start_failures=failures, parked=parked)

    def give_up(self, budget: Budget, why: str) -> Replacement:
        """Return the decision to end the whole job, because this member cannot be replaced."""
        return self._make(False, budget, why, 0.0, False)

    def _make(
        self, go_on: bool, budget: Budget, why: str, delay: float, bar_host: bool
    ) -> Replacement:
        found = name_rank(self._found, self._task.rank, self._task.host_name)
        return Replacement(
            go_on=go_on,
            cause=found.cause,
            rule=found.rule,
            reason=f"{found.message}; {why}",
            exit_code=found.exit_code,
            charged_to=budget,
            charges=self._charges,
            delay_seconds=delay,
            bar_host=bar_host,
            quarantine_host=self._is_proof,
        )


def _say_delay(seconds: float) -> str:
    return f" in {seconds:.0f} s" if seconds else ""
