"""decide_unable(…) → CallDecision: what becomes of a call whose function cannot be imported on the
host that took it. Pure.

ABLE-2  Such a call is charged nothing and tried on up to `MOST_HOSTS` hosts, on all where there are
        fewer. It fails then, unless other hosts are known to run the app; those are tried as well,
        up to `MOST_TRIED`.
ABLE-3  A host that takes it again says nothing new, so it waits ever longer in between.
"""

import msgspec

from holdfast.core.calls.decide import UNABLE, CallDecision, CallOutcome
from holdfast.core.calls.values import CallCharges
from holdfast.core.causes import CHARGED_TO, Cause

MOST_HOSTS = 3
MOST_TRIED = 8
MAX_DELAY_SECONDS = 60.0


class AppHosts(msgspec.Struct, frozen=True, kw_only=True):
    """The hosts by their ids that may run a family's executors now, and those of them where its calls
    ended well lately."""

    able: frozenset[str] = frozenset()
    working: frozenset[str] = frozenset()


def decide_unable(
    message: str, charges: CallCharges, host_id: str, hosts: AppHosts
) -> CallDecision:
    """Return what becomes of the call. message: of the error. host_id: where it was tried."""
    before = charges.unable_on
    tried = frozenset((*before, host_id))
    left = (hosts.able if len(tried) < MOST_HOSTS else hosts.working) - tried
    over = not left or len(tried) >= MOST_TRIED
    again = host_id in before
    delay = min(MAX_DELAY_SECONDS, 2.0 ** min(len(before) - len(tried) + 1, 10)) if again else 0.0
    outcome = CallOutcome.WAIT if again else CallOutcome.READY
    one = "no other host lists the app now"
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
