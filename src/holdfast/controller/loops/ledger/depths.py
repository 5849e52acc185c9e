"""How many jobs are queued, and for how long → a row a minute for each queue."""

from holdfast.controller.loops.loop import Loop, Summary


class QueueDepthsLoop(Loop):
    """Notes the depth of each queue once a minute, because nothing else says later how long people
    waited."""

    name = "queue_depths"
    interval_seconds = 60.0

    async def run_once(self) -> Summary:
        await self._controller.store.settings.note_queue_depths()
        return {}
