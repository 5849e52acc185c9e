"""When a provider, or one of its offers, is asked for no more hosts for a while.

BREAKER-1  Only failed spawns count, and only those after the last host that served. While
         `BREAKER_FAILURES` of them lie in the window, the breaker is open and nothing is spawned;
         `PROBE_SECONDS` after the last failure one host is spawned as a probe.
BREAKER-2  An offer that was refused is left alone ever longer, with a jitter that differs by pool, so
         that many pools do not come back together.
"""

import hashlib
from collections.abc import Sequence

from holdfast.core.fleet.snapshot import OfferTrouble, SpawnOutcome

BREAKER_WINDOW_SECONDS = 900.0
BREAKER_FAILURES = 3
PROBE_SECONDS = 120.0
OFFER_BACK_OFF_SECONDS = 30.0
MAX_OFFER_BACK_OFF_SECONDS = 900.0
OFFER_JITTER_RATIO = 0.25


def count_failures(outcomes: Sequence[SpawnOutcome]) -> list[SpawnOutcome]:
    """Return the failures in the window that no success followed, newest first."""
    failures = []
    for outcome in sorted(outcomes, key=lambda each: each.age_seconds):
        if not outcome.fault or outcome.age_seconds > BREAKER_WINDOW_SECONDS:
            break
        failures.append(outcome)
    return failures


def find_allowance(outcomes: Sequence[SpawnOutcome], starting: int) -> tuple[int | None, str]:
    """Return how many hosts may be spawned now (None: any number) and, where that is bounded, why."""
    failures = count_failures(outcomes)
    if len(failures) < BREAKER_FAILURES:
        return None, ""
    newest = failures[0]
    words = f" ({newest.reason})" if newest.reason else ""
    fault = newest.fault.replace("_", " ")
    said = f"{len(failures)} spawns failed in a row, the last by {fault}{words}"
    wait = PROBE_SECONDS - newest.age_seconds
    if wait > 0:
        return 0, f"{said}; one is tried in {wait:.0f} s"
    return max(0, 1 - starting), f"{said}; one is tried before more"


def wait_for_offer(pool: str, offer: str, trouble: OfferTrouble | None) -> float:
    """Return the seconds for which an offer is not to be asked for; 0: it may be tried now."""
    if trouble is None or trouble.refusals <= 0:
        return 0.0
    delay = OFFER_BACK_OFF_SECONDS * 2.0 ** min(trouble.refusals - 1, 20)
    delay = min(delay, MAX_OFFER_BACK_OFF_SECONDS)
    digest = hashlib.sha1(f"{pool}\0{offer}\0{trouble.refusals}".encode()).digest()
    delay *= 1.0 + OFFER_JITTER_RATIO * digest[0] / 255
    return max(0.0, delay - trouble.age_seconds)
