"""What the controller is to be told soon: the parts of the agent say so, the sync loop hears it."""

import asyncio


class News:
    """Whether something happened here that the controller does not know yet."""

    def __init__(self) -> None:
        self._due = asyncio.Event()
        self._later: asyncio.TimerHandle | None = None

    @property
    def due(self) -> bool:
        """Whether a call is to tell of it now."""
        return self._due.is_set()

    def report(self, *, within_seconds: float = 0.0) -> None:
        """Something happened: tell the controller now, or this much later with what happens
        meanwhile."""
        if within_seconds <= 0.0:
            self._due.set()
            return
        loop = asyncio.get_running_loop()
        if self._later is not None:
            if self._later.when() <= loop.time() + within_seconds:
                return
            self._later.cancel()
        self._later = loop.call_later(within_seconds, self._due.set)

    def take(self) -> None:
        """Note that a call tells all that happened until now."""
        self._due.clear()
        if self._later is not None:
            self._later.cancel()
            self._later = None

    async def wait(self) -> None:
        """Wait until a call is due."""
        await self._due.wait()
