"""When a host is checked, and when its agent asks for the next check."""

import msgspec

from holdfast.core.host_checks import CheckKind
from holdfast.core.states import HostState

FAILURES = 3
"""Number of failed tasks since the last check after which a host is checked again."""
ASK_SECONDS = 300.0
ASIDE_SECONDS = 600.0
"""Time between two checks of a host that is set aside."""


class CheckState(msgspec.Struct, frozen=True, kw_only=True):
    """The facts that decide when a host is checked.

    preflighted: this incarnation has passed or failed its preflight. last_check_seconds: time since
    the last check, or since the host registered. failed_since: number of tasks that failed since.
    """

    state: HostState
    preflighted: bool = False
    last_check_seconds: float = 0.0
    failed_since: int = 0


def choose_check(at: CheckState, period_seconds: float | None) -> CheckKind | None:
    """Return the check that is due now, or None. period_seconds: time between two periodic checks;
    None: no periodic checks."""
    if at.state is HostState.PREFLIGHT:
        return None if at.preflighted else "preflight"
    if at.state not in (HostState.ACTIVE, HostState.QUARANTINED):
        return None
    if at.failed_since >= FAILURES:
        return "failures"
    period = period_seconds
    if at.state is HostState.QUARANTINED:
        period = min(ASIDE_SECONDS, period) if period is not None else ASIDE_SECONDS
    if period is None:
        return None
    return "periodic" if at.last_check_seconds >= period else None


def choose_pause(at: CheckState, period_seconds: float | None) -> float:
    """Return the seconds after which the agent asks again, where no check is due now."""
    if at.state is HostState.PREFLIGHT:
        return 5.0
    if period_seconds is None:
        return ASK_SECONDS
    return min(ASK_SECONDS, max(1.0, period_seconds - at.last_check_seconds))
