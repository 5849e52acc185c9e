"""The exceptions of calls without a result, raised where the result is asked for."""

from __future__ import annotations

import msgspec

from holdfast.errors import HoldfastError
from holdfast.wire.calls import CallError


class CallFailed(HoldfastError, code="call_failed", status=500):
    """A call failed for good. kind: the exception's class, or empty where the call's process ended.

    remote_traceback: the traceback as the executor saw it. attempts: the number of attempts made.
    reason: why there is no further attempt.
    """

    def __init__(
        self, call: str, kind: str, message: str, traceback: str, *, attempts: int, reason: str
    ) -> None:
        what = f"{kind}: {message}" if kind else message
        more = reason.removeprefix(what).removeprefix(
            "; "
        )  # a reason mostly begins with the failure itself
        because = f" ({more})" if more and more != message else ""
        super().__init__(f"call {call} failed: {what}{because}")
        self.call, self.kind, self.remote_traceback = call, kind, traceback
        self.attempts, self.reason = attempts, reason
        if traceback:
            self.add_note(f"on its host:\n{traceback.rstrip()}")


class CallCancelled(CallFailed, code="call_cancelled", status=409):
    """A call was cancelled."""


def read_failure(
    call: str, value: str, *, cancelled: bool, attempts: int, reason: str
) -> CallFailed:
    """Return the exception of a call without a result; `value` is its `CallError` or empty."""
    try:
        error = msgspec.json.decode(value, type=CallError)
    except msgspec.MsgspecError:
        error = CallError(kind="", message=reason or "there is no word of why")
    if cancelled:
        text = reason or "its user cancelled it"
        return CallCancelled(call, "", text, "", attempts=attempts, reason="")
    return CallFailed(
        call, error.kind, error.message, error.traceback, attempts=attempts, reason=reason
    )
