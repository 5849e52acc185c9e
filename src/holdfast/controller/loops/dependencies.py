"""Jobs that wait for others → released or cancelled, as their parents ended (AFTER-1)."""

import logging

from holdfast.controller.loops.loop import Loop, Summary, advance_waiting

log = logging.getLogger("holdfast.loops")


class DependantsLoop(Loop):
    """Wakes when jobs may have ended. A crash between an end and its dependants' release loses
    nothing, because the ended job stays in the index until they are decided."""

    name = "dependants"
    topic = "admit"
    also = "ended"
    by_look = True
    interval_seconds = 1.0

    async def run_once(self) -> Summary:
        controller = self._controller
        settle = controller.store.dependencies.settle_dependencies
        counts = await advance_waiting(controller, settle, "admit", "events")
        if cancelled := counts.get("cancelled"):
            log.info("%d jobs cancelled, because what they waited for ended otherwise", cancelled)
        return counts
