"""How much room bundles take, remembered for a moment: a measure reads a row of every pack."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from holdfast.store.postgres.bundles.bundles import BundleSizes

MEASURED_SECONDS = 2.0


class RoomMeter:
    """Remembers measures, and adds what this replica kept since. clock: of seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._known: dict[str, tuple[float, BundleSizes]] = {}

    async def measure(
        self, project: str, read: Callable[[str], Awaitable[BundleSizes]]
    ) -> BundleSizes:
        """Return the bytes that are kept; `read` asks the store."""
        now = self._clock()
        self._known = {p: one for p, one in self._known.items() if now < one[0] + MEASURED_SECONDS}
        if project not in self._known:
            self._known[project] = now, await read(project)
        return self._known[project][1]

    def add(self, project: str, size: int) -> None:
        """Note a pack that was kept."""
        for name, (at, sizes) in self._known.items():
            own = size if name == project else 0
            self._known[name] = at, BundleSizes(sizes.project + own, sizes.whole + size)
