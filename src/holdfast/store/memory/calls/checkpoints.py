"""Checkpoints of calls of the memory store."""

from collections.abc import Sequence

from holdfast.core.calls.values import CallState
from holdfast.moves.calls.checkpoints import CallHolder, CallKept, locate_call, read_blobs
from holdfast.moves.checkpoints import NewCheckpoint
from holdfast.store.memory.calls.tables import CallTables


class MemoryCallCheckpoints:
    """`CallCheckpointStore` in memory."""

    def __init__(self, calls: CallTables) -> None:
        self._calls = calls
        self._kept = calls.kept

    async def find_kept(self, holder: CallHolder) -> CallKept:
        n, index = locate_call(self._calls.batches.get(holder.batch), holder)
        place = self._calls.sets[n].id, index
        return self._kept.get(place) or CallKept(set_id=place[0], index=index)

    async def keep(self, holder: CallHolder, new: NewCheckpoint) -> tuple[str, ...]:
        before = await self.find_kept(holder)
        self._kept[before.set_id, before.index] = CallKept(
            set_id=before.set_id,
            index=before.index,
            blob=new.blob,
            size=new.size,
            sha256=new.sha256.hex(),
        )
        return () if before.blob is None else (before.blob,)

    async def find_unneeded_blobs(self, *, limit: int = 1000) -> tuple[str, ...]:
        found = [kept.blob for kept in self._kept.values() if kept.blob and self._is_over(kept)]
        return tuple(found[:limit])

    def _is_over(self, kept: CallKept) -> bool:
        n = self._calls.by_id.get(kept.set_id)
        return n is None or any(
            run.first <= kept.index < run.last and run.state == CallState.SUCCEEDED
            for run in self._calls.runs[n]
        )

    async def forget_blobs(self, names: Sequence[str]) -> None:
        gone = {*names}
        for at in [at for at, kept in self._kept.items() if kept.blob in gone]:
            del self._kept[at]

    async def find_known_blobs(self, names: Sequence[str]) -> set[str]:
        named = {kept.blob for kept in self._kept.values()}
        orphans = {
            one.blob
            for one in read_blobs(names)
            if one.set_id in self._calls.by_id and one.blob not in named
        }
        return {*names} - orphans
