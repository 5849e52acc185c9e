"""Group commit of syncs: those that arrive together go to the store together, with the operators'
rules in force."""

import time
from collections.abc import Sequence

import msgspec

from holdfast.controller.runtime.hosts.doubts import Doubts
from holdfast.controller.runtime.hosts.group_commit import GroupCommit
from holdfast.controller.runtime.hosts.last_answers import START_SECONDS, LastAnswers
from holdfast.controller.runtime.metrics import Metrics
from holdfast.controller.runtime.outages import Outages
from holdfast.controller.runtime.settings import SettingsCache
from holdfast.core.placement.takes import MAX_TAKEN, SPARE
from holdfast.moves.jobs.reports import count_wanted
from holdfast.moves.values import HostSync, HostSynced
from holdfast.store.postgres.store import PostgresStore


class _WaitingSync(msgspec.Struct, frozen=True):
    """A sync that waits for its batch. came: the number of batches answered when it came."""

    sync: HostSync
    came: int


class SyncBatcher:
    """The group commit of syncs."""

    def __init__(
        self,
        store: PostgresStore,
        settings: SettingsCache,
        metrics: Metrics,
        outages: Outages,
        doubts: Doubts,
    ) -> None:
        self._store, self._settings = store, settings
        self._metrics, self._doubts = metrics, doubts
        self._last = LastAnswers()
        self._commit: GroupCommit[_WaitingSync, HostSynced] = GroupCommit(
            "sync",
            lambda waiting: f"host {waiting.sync.host_id}",
            self._send,
            outages,
            renews=True,
            weigh=lambda waiting: count_wanted(waiting.sync),
            most=MAX_TAKEN - SPARE,
        )

    async def submit(self, sync: HostSync) -> HostSynced:
        """Return the store's answer to a sync, as `GroupCommit.submit` does."""
        return await self._commit.submit(_WaitingSync(sync, self._last.number))

    async def close(self) -> None:
        """Let the batch in flight and those behind it end."""
        await self._commit.close()

    async def _send(self, waiting: Sequence[_WaitingSync]) -> Sequence[HostSynced]:
        began = time.perf_counter()
        current, last = await self._settings.current(), self._last
        last.turn = int(began // START_SECONDS)
        syncs = [last.shorten(one.sync, one.came) for one in waiting]
        found = await self._store.leases.sync_hosts(
            syncs, rules=current.rules, terms=current.take_terms
        )
        await self._doubts.confirm_syncs(syncs, found)
        answers = [
            last.keep_answer(one.sync, each) for one, each in zip(waiting, found, strict=True)
        ]
        last.number += 1
        self._metrics.sync_seconds.observe(time.perf_counter() - began)
        self._metrics.sync_batch.observe(len(syncs))
        self._metrics.syncs.inc(len(syncs))
        return answers
