"""Whether an executor gives its slot to another family. Pure.

LEAVE-1  An idle executor leaves when an executor of another family has waited for such a slot for
         longer than its placing takes, instead of waiting for its own idle time.
LEAVE-2  A busy one leaves after its calls in hand where that family has none at all and has waited
         for `YIELD_SECONDS`, unless it is the only one of its own.
"""

from collections.abc import Collection, Iterable

import msgspec

IDLE_YIELD_SECONDS = 3.0
YIELD_SECONDS = 30.0
YIELD_GAP_SECONDS = 10.0
"""Between two busy executors that leave, so that one slot is not asked for many times."""


class WantedSlot(msgspec.Struct, frozen=True, kw_only=True):
    """An executor that waits for a place. alone: its family has none that runs."""

    family: str
    app: str
    queue: str
    gpus: int
    waited_seconds: float
    alone: bool


def list_claims(
    wanted: Iterable[WantedSlot],
    family: str,
    gpus: int,
    apps: Collection[str],
    queues: Collection[str],
) -> list[WantedSlot]:
    """Return those that an executor's slot would serve. apps, queues: of its host; queues empty:
    all."""
    return [
        slot
        for slot in wanted
        if slot.family != family
        and (slot.gpus > 0) == (gpus > 0)
        and slot.app in apps
        and (not queues or slot.queue in queues)
    ]


def yields_when_idle(claims: Collection[WantedSlot]) -> bool:
    """LEAVE-1."""
    return any(c.waited_seconds > IDLE_YIELD_SECONDS for c in claims)


def yields_when_busy(claims: Collection[WantedSlot], running: int) -> bool:
    """LEAVE-2. running: executors of its own family."""
    late = any(c.alone and c.waited_seconds > YIELD_SECONDS for c in claims)
    return late and running > 1
