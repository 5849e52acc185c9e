"""Jobs that wait for others → released or cancelled, as their parents ended (AFTER-1)."""

import logging

from holdfast.controller.loops.silhouette import Loop, Summary

log = logging.getLogger("holdfast.loops")
MAX_BATCHES = 100


class DependantsLoop(Loop):
    """Wakes when jobs may have ended. A crash between an end and its dependants' release loses
    nothing, because the ended job stays in the index until they are decided."""

    name = "dependants"
    topic = "admit"
    interval_seconds = 1.0

    async def run_once(self) -> Summary:
        controller = self._controller
        released = cancelled = 0
        for _ in range(MAX_BATCHES):
            found = await controller.store.dependencies.settle_dependencies()
            released += found.released
            cancelled += found.cancelled
            if found.released or found.cancelled:
                controller.poke("admit", "events")
            if not found.left:
                break
        if cancelled:
            log.info("%d jobs cancelled, because what they waited for ended otherwise", cancelled)
        counts = {"released": released, "cancelled": cancelled}
        return {name: count for name, count in counts.items() if count}
