"""Keep the wish for a sync call soon, because something happened on this host: parts of the agent
report it, and the sync loop waits for it."""

import asyncio


class SyncWish:
    """Holds whether something happened here that the controller does not know yet."""

    def __init__(self) -> None:
        self._due = asyncio.Event()
        self._later: asyncio.TimerHandle | None = None

    @property
    def due(self) -> bool:
        """Return True if a sync call is to be made now."""
        return self._due.is_set()

    def report(self, *, within_seconds: float = 0.0) -> None:
        """Have a sync call made now; or after `within_seconds`, together with what happens
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

    def put_off(self, seconds: float) -> None:
        """Put a sync call that is due now off by `seconds`, unless another part reports something
        before."""
        if self._due.is_set():
            self._due.clear()
            self.report(within_seconds=seconds)

    def clear(self) -> None:
        """Note that a call reports everything that happened until now."""
        self._due.clear()
        if self._later is not None:
            self._later.cancel()
            self._later = None

    async def wait(self) -> None:
        """Wait until a sync call is due."""
        await self._due.wait()
