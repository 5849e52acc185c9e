"""Arrays: members whose turn has come → released; members of cancelled arrays → cancelled."""

from holdfast.controller.loops.silhouette import Loop, Summary

MAX_BATCHES = 100


class ArraysLoop(Loop):
    """Wakes when a job may have ended, which is when there is room for another member."""

    name = "arrays"
    topic = "admit"
    interval_seconds = 1.0

    async def run_once(self) -> Summary:
        controller = self._controller
        released = cancelled = 0
        for _ in range(MAX_BATCHES):
            found = await controller.store.arrays.advance_arrays()
            released += found.released
            cancelled += found.cancelled
            if found.released or found.cancelled:
                controller.poke("admit", "drain", "events")
            if not found.left:
                break
        counts = {"released": released, "cancelled": cancelled}
        return {name: count for name, count in counts.items() if count}
