"""The leader's look: one statement a second that says which loops may have work.

LOOK-1  A loop that has no hint runs where the look finds work for it, and no later than it would
        find the work by itself at each of its intervals. Where no answer comes in time, the loop
        runs and finds out by itself.
"""

import asyncio
import logging
from collections.abc import Callable, Collection

from holdfast.controller.runtime.settings import SettingsCache
from holdfast.errors import Unavailable
from holdfast.store.postgres.store import PostgresStore

log = logging.getLogger("holdfast.loops")
LOOK_SECONDS = 1.0
"""Between two looks, and so the shortest interval of a loop."""
PATIENCE_SECONDS = 1.0
"""How long after the time of a look a loop waits for the answer."""
_DAY_SECONDS = 86_400.0


class LeaderLooks:
    """The questions of loops that wait for the leader's next look. Where no loop waits, the look
    sends no statement."""

    def __init__(
        self, store: PostgresStore, settings: SettingsCache, clock: Callable[[], float]
    ) -> None:
        self._store = store
        self._settings = settings
        self._clock = clock
        self._asked: dict[str, asyncio.Future[bool]] = {}

    def ask(self, name: str) -> asyncio.Future[bool]:
        """Return the answer of the next look: whether the loop of this name may have work."""
        if name not in self._asked:
            self._asked[name] = asyncio.get_running_loop().create_future()
        return self._asked[name]

    async def run(self) -> None:
        """Look once every `LOOK_SECONDS`, until cancelled."""
        while True:
            began = self._clock()
            await self.look()
            await asyncio.sleep(max(0.0, began + LOOK_SECONDS - self._clock()))

    async def look(self) -> None:
        """Answer every question that waits."""
        asked, self._asked = self._asked, {}
        due = await self._find_due(asked) if asked else ()
        for name, answer in asked.items():
            if not answer.done():
                answer.set_result(name in due)

    async def _find_due(self, asked: Collection[str]) -> Collection[str]:
        """Return the names among `asked` whose loops may have work: all of them where the look
        failed, because each loop can still find out by itself."""
        try:
            settings = self._settings.known or await self._settings.current()
            found = await self._store.leadership.look(
                asked,
                silent_seconds=settings.number("dead_host_seconds"),
                keep_seconds=settings.number("outputs_keep_days") * _DAY_SECONDS,
                ahead=settings.number("executors_ahead") > 0,
            )
        except Unavailable:
            return asked
        except Exception:
            log.exception("the look at what is due failed; every loop looks by itself")
            return asked
        self._settings.confirm(found.revision)
        return found.due
