"""Group commit of syncs: those that arrive together go to the store together, with the operators'
rules in force."""

import time
from collections.abc import Sequence

from holdfast.controller.runtime.hosts.doubts import Doubts
from holdfast.controller.runtime.hosts.group_commit import GroupCommit
from holdfast.controller.runtime.metrics import Metrics
from holdfast.controller.runtime.outages import Outages
from holdfast.controller.runtime.settings import SettingsCache
from holdfast.core.placement.takes import MAX_TAKEN, SPARE
from holdfast.moves.jobs.reports import count_wanted
from holdfast.moves.values import HostSync, HostSynced
from holdfast.store.postgres.store import PostgresStore


def batch_syncs(
    store: PostgresStore,
    settings: SettingsCache,
    metrics: Metrics,
    outages: Outages,
    doubts: Doubts,
) -> GroupCommit[HostSync, HostSynced]:
    """Return the group commit of syncs."""

    async def send(syncs: Sequence[HostSync]) -> Sequence[HostSynced]:
        began = time.perf_counter()
        current = await settings.current()
        answers = await store.leases.sync_hosts(
            syncs, rules=current.rules, terms=current.take_terms
        )
        await doubts.confirm_syncs(syncs, answers)
        metrics.sync_seconds.observe(time.perf_counter() - began)
        metrics.sync_batch.observe(len(syncs))
        metrics.syncs.inc(len(syncs))
        return answers

    return GroupCommit(
        "sync",
        lambda sync: f"host {sync.host_id}",
        send,
        outages,
        renews=True,
        weigh=count_wanted,
        most=MAX_TAKEN - SPARE,
    )
