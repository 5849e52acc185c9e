"""The cause and the message of a call's failed attempt."""

import msgspec

from holdfast.bounds import UNREADABLE
from holdfast.core.calls.decide import CallJudge, classify_exception, name_option
from holdfast.core.endings.classify import classify
from holdfast.core.facts import Classified, TaskFacts
from holdfast.wire.calls import CallEnd, CallError

DETAIL_CHARS = 4000


def explain_end(
    end: CallEnd | None, facts: TaskFacts | None, judge: CallJudge
) -> tuple[Classified, str, str]:
    """Return the cause of a failed attempt, the details for a person, and the error as JSON text.

    end: the end of the call itself; None where its executor ended, by `facts`.
    """
    if end is not None:
        error = read_error(end.value)
        found = classify_exception(
            error.kind,
            error.message,
            error.traceback,
            judge.rules,
            invalid=error.invalid,
            unable=error.unable,
        )
        return found, error.traceback[-DETAIL_CHARS:], end.value
    assert facts is not None
    found = name_option(classify(facts, judge.rules), facts.trip)
    error = CallError(kind=f"holdfast.{found.cause}", message=found.message)
    return found, facts.log_tail[-DETAIL_CHARS:], msgspec.json.encode(error).decode()


def read_error(value: str) -> CallError:
    """Read an exception from JSON; text that cannot be read becomes the message of an `Error`."""
    try:
        return msgspec.json.decode(value, type=CallError)
    except (UnicodeEncodeError, *UNREADABLE):
        return CallError(kind="Error", message=value[:DETAIL_CHARS])
