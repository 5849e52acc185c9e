"""Every pool's cycles, in one process."""

from holdfast.controller.fleet.cycle import PoolCycles
from holdfast.controller.runtime.context import Controller


class CyclesByPool:
    """The cycles of pools by name, made when they are first asked for."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller
        self._pools: dict[str, PoolCycles] = {}

    def of(self, name: str) -> PoolCycles:
        """Return a pool's cycles."""
        if name not in self._pools:
            self._pools[name] = PoolCycles(self._controller, name)
        return self._pools[name]

    async def keep(self, names: set[str]) -> None:
        """Drop the cycles of pools that are not in `names`, because the pools were deleted."""
        for name in [name for name in self._pools if name not in names]:
            await self._pools.pop(name).close()

    async def close(self) -> None:
        """Cancel all work in progress."""
        await self.keep(set())
