"""Arrays: members whose turn has come → released; members of cancelled arrays → cancelled."""

from holdfast.controller.loops.loop import Loop, Summary, advance_waiting


class ArraysLoop(Loop):
    """Wakes when a job may have ended, which is when there is room for another member."""

    name = "arrays"
    topic = "admit"
    also = "ended"
    by_look = True
    interval_seconds = 1.0

    async def run_once(self) -> Summary:
        controller = self._controller
        advance = controller.store.arrays.advance_arrays
        return await advance_waiting(controller, advance, "admit", "drain", "events")
