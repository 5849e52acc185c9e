"""decide_unable(…) → CallDecision: what becomes of a call whose function cannot be imported on the
host that took it. Pure.

ABLE-2  Such a call is charged nothing and tried on up to `MOST_HOSTS` hosts, or on all if there are
        fewer. It then fails, unless other hosts are known to run the app; these are tried as well,
        up to `MOST_TRIED` in all.
ABLE-3  Another failure on a host that was tried already is no news, so the call waits ever longer
        between such tries.
"""

import msgspec

from holdfast.core.calls.decide import UNABLE, CallDecision, CallOutcome
from holdfast.core.calls.values import CallCharges
from holdfast.core.causes import CHARGED_TO, Cause

MOST_HOSTS = 3
MOST_TRIED = 8
MAX_DELAY_SECONDS = 60.0


class AppHosts(msgspec.Struct, frozen=True, kw_only=True):
    """Ids of hosts. able: hosts that may run a family's executors now. working: hosts of these on
    which calls of the family succeeded lately."""

    able: frozenset[str] = frozenset()
    working: frozenset[str] = frozenset()


def decide_unable(
    message: str, charges: CallCharges, host_id: str, hosts: AppHosts
) -> CallDecision:
    """Return the decision on a call whose host cannot import its function. message: text of the
    import error. host_id: the host that tried the import."""
    before = charges.unable_on
    tried = frozenset((*before, host_id))
    left = (hosts.able if len(tried) < MOST_HOSTS else hosts.working) - tried
    over = not left or len(tried) >= MOST_TRIED
    again = host_id in before
    delay = min(MAX_DELAY_SECONDS, 2.0 ** min(len(before) - len(tried) + 1, 10)) if again else 0.0
    outcome = CallOutcome.WAIT if again else CallOutcome.READY
    one = "no other host can run the app now"
    ended = (
        f"{message}; {one if len(tried) == 1 else f'it was tried on each of {len(tried)} hosts'}"
    )
    return CallDecision(
        outcome=CallOutcome.FAILED if over else outcome,
        cause=Cause.APP_UNUSABLE,
        rule=UNABLE,
        charged_to=str(CHARGED_TO[Cause.APP_UNUSABLE]),
        charges=msgspec.structs.replace(charges, unable_on=(*before, host_id)),
        reason=ended if over else f"{message}; it is tried on another host",
        delay_seconds=0.0 if over or not again else delay,
    )
