"""Checkpoints that are no longer needed: those of jobs and calls that succeeded, and blobs that no
row names."""

import logging
import math

from holdfast.blobs.interface import BlobsUnavailable
from holdfast.controller.calls.values import VALUES
from holdfast.controller.loops.loop import Loop, Summary
from holdfast.controller.runtime.bundles.kept import PACKS, PLANS
from holdfast.controller.runtime.context import Controller
from holdfast.moves.calls.checkpoints import FOLDER
from holdfast.store.postgres.calls.checkpoints import PostgresCallCheckpoints
from holdfast.store.postgres.checkpoints import PostgresCheckpoints

log = logging.getLogger("holdfast.loops")
ORPHAN_SECONDS = 3600.0
"""The age from which a blob without a row is deleted. Milliseconds pass between a blob's last byte
and its row; an hour also covers a database that was away meanwhile."""
SWEEP_SECONDS = 900.0
YOUNG_PACK_SECONDS = 86_400.0
"""How long a pack stays that no bundle uses, because its bundle's manifest may still come."""
_BATCH = 1000
_MAX_BATCHES = 100


class CheckpointsLoop(Loop):
    """Blobs of jobs and calls that have succeeded or are gone → deleted, then their rows; now and
    then, blobs without a row → deleted.

    A success wakes the loop. It also looks by itself, because another replica or a crash may have
    left blobs.
    """

    name = "checkpoints"
    topic = "checkpoints"
    interval_seconds = 60.0

    def __init__(self, controller: Controller, orphan_seconds: float = ORPHAN_SECONDS) -> None:
        super().__init__(controller)
        self._orphan_seconds = orphan_seconds
        self._sweep_at = controller.clock()
        self._failed = False

    async def run_once(self) -> Summary:
        controller, cleared, swept = self._controller, 0, 0
        store = controller.store
        try:
            for rows in (store.checkpoints, store.call_checkpoints):
                cleared += await self._clear(rows)
            if controller.clock() >= self._sweep_at:
                swept = await self._sweep_bundles() + await self._sweep()
                self._sweep_at = controller.clock() + SWEEP_SECONDS
        except BlobsUnavailable as error:
            if not self._failed:
                log.error("unneeded blobs cannot be deleted; the loop tries again: %s", error)
            self._failed = True
            self._sweep_at = controller.clock() + self.interval_seconds
        else:
            self._failed = False
        return {"cleared": cleared, "swept": swept} if cleared or swept else {}

    async def _clear(self, rows: PostgresCheckpoints | PostgresCallCheckpoints) -> int:
        cleared = 0
        for _ in range(_MAX_BATCHES):
            # The blobs first: no attempt starts from them any more, and a blob that stayed is found
            # again by its row.
            blobs = await rows.find_unneeded_blobs(limit=_BATCH)
            if blobs:
                await self._controller.blobs.delete(blobs)
                await rows.forget_blobs(blobs)
            cleared += len(blobs)
            if len(blobs) < _BATCH:
                break
        return cleared

    async def _sweep_bundles(self) -> int:
        """Delete bundles that nothing on record names, and packs that no bundle uses (BUNDLE-3)."""
        controller, swept = self._controller, 0
        days = (await controller.settings.current()).number("bundle_keep_days")
        young = min(YOUNG_PACK_SECONDS, days * 86_400 + self._orphan_seconds)
        for _ in range(_MAX_BATCHES):
            plans = await controller.store.bundles.drop_unused_bundles(days * 86_400, limit=_BATCH)
            packs = await controller.store.bundles.drop_unused_packs(young, limit=_BATCH)
            names = [*(PLANS + plan for plan in plans), *(PACKS + pack for pack in packs)]
            await controller.bundles.delete(names)
            swept += len(names)
            if len(plans) < _BATCH and len(packs) < _BATCH:
                break
        return swept

    async def _sweep(self) -> int:
        """Delete old blobs that no row names, old values, and the remains of uploads that broke
        off."""
        blobs, batch, values = self._controller.blobs, list[str](), list[str]()
        swept = await blobs.sweep(self._orphan_seconds)
        values_seconds = await self._find_values_seconds()
        async for found in blobs.list():
            is_value = found.name.startswith(VALUES)
            if found.age_seconds >= (values_seconds if is_value else self._orphan_seconds):
                (values if is_value else batch).append(found.name)
            if len(batch) >= _BATCH:
                swept += await self._sweep_batch(batch)
                batch = []
        swept += await self._sweep_batch(batch) if batch else 0
        return swept + (await self._sweep_values(values) if values else 0)

    async def _sweep_values(self, names: list[str]) -> int:
        """Delete old values that nothing on record names (VALUE-1, HISTORY-1)."""
        store, hashes = self._controller.store, [name.removeprefix(VALUES) for name in names]
        known = await store.calls.find_known_values(hashes)
        known |= await store.checkpoints.find_inputs(hashes)
        orphans = [VALUES + sha256 for sha256 in hashes if sha256 not in known]
        for start in range(0, len(orphans), _BATCH):
            await self._controller.blobs.delete(orphans[start : start + _BATCH])
        return len(orphans)

    async def _find_values_seconds(self) -> float:
        """Return how long values of calls are kept at least (VALUE-1)."""
        days = (await self._controller.settings.current()).value("history_days")
        return float(days) * 86_400 if isinstance(days, (int, float)) else math.inf

    async def _sweep_batch(self, names: list[str]) -> int:
        store = self._controller.store
        of_calls = [name for name in names if name.startswith(FOLDER)]
        of_bundles = [name for name in names if name.startswith((PACKS, PLANS))]
        of_jobs = [name for name in names if not name.startswith((FOLDER, PACKS, PLANS))]
        known = await store.checkpoints.find_known_blobs(of_jobs)
        known |= await store.call_checkpoints.find_known_blobs(of_calls)
        known |= await self._find_known_bundles(of_bundles)
        orphans = [name for name in names if name not in known]
        await self._controller.blobs.delete(orphans)
        return len(orphans)

    async def _find_known_bundles(self, names: list[str]) -> set[str]:
        """Return which blobs of packs and plans a row names."""
        if not names:
            return set()
        packs = [name.removeprefix(PACKS) for name in names if name.startswith(PACKS)]
        plans = [name.removeprefix(PLANS) for name in names if name.startswith(PLANS)]
        known = await self._controller.store.bundles.find_known(packs, plans)
        return {name for name in names if name.partition("/")[2] in known}
