"""End a rented host that its controller cannot reach.

SELF-1  A host that has had no answer for `seconds` ends its tasks and itself. Its leases ended long
        before, so that no work is lost, and the machine, which nothing else could end, costs no
        more.
"""

import asyncio
import logging
from collections.abc import Callable

log = logging.getLogger("holdfast.agent")
_LOOKS = 20


async def end_when_alone(
    seconds: float | None,
    heard_at: Callable[[], float],
    clock: Callable[[], float],
    end: Callable[[], None],
) -> None:
    """Call `end` once the controller has answered nothing for `seconds` (never if None); do not
    return.

    heard_at: returns the instant of the controller's last answer, on `clock`, which goes on while
    the machine sleeps.
    """
    while seconds is not None:
        left = heard_at() + seconds - clock()
        if left <= 0:
            log.error(
                f"no answer from the controller for {seconds:g} s: this host ends its tasks and "
                "itself (HOLDFAST_SELF_DESTRUCT_SECONDS)"
            )
            end()
            break
        await asyncio.sleep(min(left, max(0.05, seconds / _LOOKS)))
    await asyncio.Event().wait()
