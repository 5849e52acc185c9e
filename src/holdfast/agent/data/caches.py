"""Keep the caches of this host: a folder for each project and name, bounded, the longest unused
ones removed first.

CACHE-3  A cache that a live task uses is never removed, and one is removed whole or not at all, so
         a task never finds a part of one. The bound may therefore be exceeded while tasks run.
- Every cache is 0700 below the agent's own state folder. A container sees only those of its
  own job.
"""

import asyncio
import contextlib
import logging
import os
import secrets
import shutil
from collections.abc import Awaitable, Callable, Collection
from pathlib import Path
from urllib.parse import quote, unquote

from holdfast.agent.offload import run_aside
from holdfast.agent.tasks.table import TaskTable
from holdfast.core.data.named import list_cache_keys
from holdfast.errors import HoldfastError
from holdfast.process.files import make_private_folder
from holdfast.wire.data.caches import MAX_CACHES

log = logging.getLogger("holdfast.agent.data.caches")

LEAST_FREE = 0.05
"""The part of the disk that caches leave free."""
ROUND_SECONDS = 60.0
_DOOMED = ".doomed-"


class HostCaches:
    """Makes, lists and removes the caches below one folder. limit_bytes: most bytes of all."""

    def __init__(self, root: Path, limit_bytes: int) -> None:
        self.root = root
        self.limit_bytes = limit_bytes

    def open(self, project: str, name: str) -> str:
        """Return the path of a cache of a project, made if it is missing, and note that the cache
        was used. Raises OSError."""
        place = self.root / quote(project, safe="") / name
        for folder in (self.root, place.parent, place, place / "files"):
            make_private_folder(folder)
        os.utime(place)
        return str(place / "files")

    def list_keys(self) -> list[str]:
        """Return the keys of the caches on this host, the longest unused first (CACHE-1)."""
        return [key for _, key, _ in self._list_places()]

    def prune(self, busy: Callable[[], Collection[str]]) -> list[str]:
        """Remove the longest unused caches, except the caches in `busy`, until the others keep the
        bound and leave room on the disk. Return the keys of the removed caches. Call this in a
        thread, because it waits for the disk."""
        for left in self.root.glob(f"{_DOOMED}*"):
            shutil.rmtree(left, ignore_errors=True)
        places = self._list_places()
        sizes = {key: measure_folder(place) for _, key, place in places}
        total, gone = sum(sizes.values()), []
        for _, key, place in places:
            if total <= self.limit_bytes and not self._is_disk_full():
                break
            if key in busy():
                continue
            doomed = self.root / f"{_DOOMED}{secrets.token_hex(4)}"
            with contextlib.suppress(OSError):
                os.rename(place, doomed)
                shutil.rmtree(doomed, ignore_errors=True)
                total -= sizes[key]
                gone.append(key)
        return gone

    def _is_disk_full(self) -> bool:
        usage = shutil.disk_usage(self.root)
        return usage.free < LEAST_FREE * usage.total

    def _list_places(self) -> list[tuple[float, str, Path]]:
        found = []
        with contextlib.suppress(OSError):
            for project in os.scandir(self.root):
                if project.name.startswith(_DOOMED) or not project.is_dir(follow_symlinks=False):
                    continue
                for place in os.scandir(project):
                    used_at = place.stat(follow_symlinks=False).st_mtime
                    key = f"{unquote(project.name)}/{place.name}"
                    found.append((used_at, key, Path(place.path)))
        return sorted(found)


def measure_folder(folder: Path) -> int:
    """Return the bytes that a folder's files take on the disk. A file with several names counts
    once."""
    total, seen = 0, set()
    for where, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                found = os.lstat(os.path.join(where, name))
                if found.st_nlink > 1:
                    if (found.st_dev, found.st_ino) in seen:
                        continue
                    seen.add((found.st_dev, found.st_ino))
                total += found.st_blocks * 512
    return total


class CacheKeeper:
    """Prunes the caches of this host, and tells the controller which ones are warm, so that
    placement prefers this host for jobs that use them (CACHE-2)."""

    def __init__(
        self, caches: HostCaches, table: TaskTable, tell: Callable[[list[str]], Awaitable[None]]
    ) -> None:
        self._caches = caches
        self._table = table
        self._tell = tell
        self._told: list[str] | None = None
        self._poked = asyncio.Event()

    def poke(self) -> None:
        """Have the caches looked at soon, because a task that used a cache has ended."""
        self._poked.set()

    async def run(self) -> None:
        """Look at the caches for ever: at the start, when tasks end, and each minute."""
        while True:
            await self.look()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(ROUND_SECONDS):
                    await self._poked.wait()
            self._poked.clear()

    async def look(self) -> None:
        """Prune the caches, and tell the controller which caches are here where that has
        changed."""
        gone = await run_aside(lambda: self._caches.prune(self._list_busy))
        if gone:
            log.info(f"removed caches, the longest unused first: {', '.join(gone)}")
        keys = sorted((await run_aside(self._caches.list_keys))[-MAX_CACHES:])
        if keys == self._told or (self._told is None and not keys):
            return
        try:
            await self._tell(keys)
            self._told = keys
        except HoldfastError as error:
            log.warning(f"the controller does not know yet which caches are here: {error}")

    def _list_busy(self) -> frozenset[str]:
        orders = [task.order for task in list(self._table) if task.live and task.order]
        return frozenset().union(*(list_cache_keys(o.project, o.caches) for o in orders))
