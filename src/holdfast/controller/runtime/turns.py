"""Turns at work that would otherwise take a server over, given round its callers.

TURNS-1  At most `at_once` turns are taken at a time. A turn that becomes free goes to the caller
         whose last turn is the longest ago among those that wait, so a caller with ten pieces of
         work delays another caller's by one turn each.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

AT_ONCE = 2


class Turns:
    """The turns of one kind of work."""

    def __init__(self, at_once: int = AT_ONCE) -> None:
        self.free = at_once
        """The turns that can be taken now."""
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}  # the next caller first

    @asynccontextmanager
    async def wait_turn(self, caller: str) -> AsyncIterator[None]:
        """Wait for a turn, and give it back afterwards."""
        if self.free and not self._waiting:
            self.free -= 1
        else:
            await self._wait(caller)
        try:
            yield
        finally:
            self._pass_on()

    async def _wait(self, caller: str) -> None:
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(caller, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # it was given just now
                self._pass_on()
            raise

    def _pass_on(self) -> None:
        """Give a free turn to the next caller that still waits for one."""
        while self._waiting:
            caller = next(iter(self._waiting))
            line = self._waiting.pop(caller)
            turn = line.popleft()
            if line:
                self._waiting[caller] = line  # behind the other callers
            if not turn.done():
                turn.set_result(None)
                return
        self.free += 1
