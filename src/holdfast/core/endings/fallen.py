"""classify_fallen(facts, rules) → why one task of an attempt fell, in one voice (CLASSIFY-4)."""

from collections.abc import Mapping, Sequence

import msgspec

from holdfast.core.causes import CHARGED_TO, Budget, Cause
from holdfast.core.endings.classify import NEVER_STARTS, classify
from holdfast.core.endings.rules import OperatorRule
from holdfast.core.facts import Classified, TaskFacts
from holdfast.core.placement.ranks import name_ranks

EXIT_REPLACED = 72
"""The exit code of a host manager whose host the policy script replaced."""
EXIT_SILENT = 70
"""The exit code of a host manager that no longer heard from the policy script."""
REPLACED = "replaced"
_OWN_ENDS: Mapping[int | None, tuple[Cause, str, str]] = {
    EXIT_REPLACED: (
        Cause.AGENT_TRANSIENT,
        REPLACED,
        "its host manager ended with 72: the script gave this host up",
    ),
    EXIT_SILENT: (
        Cause.SIBLING_DRAINED,
        "script-silent",
        "its host manager ended with 70: it no longer heard from the script",
    ),
}


def classify_fallen(
    facts: TaskFacts | None, rules: Sequence[OperatorRule], *, member: bool
) -> Classified:
    """Return the cause of a task's fall and its sentence.

    rules: the operators' rules in force. member: the task is a host manager of a supervised job.
    Because the end of a host manager is never the training's own, a failure that would be charged
    to retries for another task is charged to infrastructure here (MEMBER-2).
    """
    facts = facts or TaskFacts()
    found = classify(facts, rules)
    if not member:
        return found
    code = find_own_code(facts)
    if code in _OWN_ENDS:
        cause, rule, message = _OWN_ENDS[code]
        return msgspec.structs.replace(found, cause=cause, rule=rule, message=message)
    if CHARGED_TO[found.cause] is Budget.RETRIES or found.rule == NEVER_STARTS:
        return msgspec.structs.replace(found, cause=Cause.AGENT_TRANSIENT)
    return found


def find_own_code(facts: TaskFacts) -> int | None:
    """Return the exit code that a host manager chose itself; None after a stop, trip or loss."""
    foreign = facts.trip is not None or facts.malformed is not None or facts.lost is not None
    return None if foreign or facts.stopped else facts.exit_code


def name_silent(found: Classified, ranks: Sequence[int], of: int) -> Classified:
    """Put the ranks of a gang of `of` ranks that fell silent together in front of the message of
    `found`."""
    who = f"all {of} ranks" if len(ranks) == of else f"{name_ranks(ranks)} of {of}"
    return msgspec.structs.replace(found, message=f"{who} together: {found.message}")


def name_rank(found: Classified, rank: int, host: str | None) -> Classified:
    """Put the rank of a gang and its host in front of the message of `found`."""
    where = f" on {host}" if host else ""
    return msgspec.structs.replace(found, message=f"rank {rank}{where}: {found.message}")
