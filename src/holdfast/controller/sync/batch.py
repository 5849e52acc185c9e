"""Group commit for syncs: those that arrive during a store call go together in the next one.

BATCH-1  A sync that comes while no store call is in flight goes at once; it waits for no others.
BATCH-2  A host is at most once in a batch, and its syncs go in the order they came.
BATCH-3  One bad sync does not make its neighbours fail: a batch that fails while the store answers
         is taken again one by one.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Iterable, Sequence

from holdfast.controller.runtime.metrics import Metrics
from holdfast.controller.runtime.outages import Outages
from holdfast.controller.runtime.settings import SettingsCache
from holdfast.errors import HoldfastError, Unavailable
from holdfast.moves.values import HostSync, HostSynced
from holdfast.store.port.store import Store

log = logging.getLogger("holdfast.controller")
MAX_BATCH = 256
_CLOSE_SECONDS = 1.0
Waiting = tuple[HostSync, "asyncio.Future[HostSynced]"]


class SyncBatcher:
    """Gathers syncs for the store, and hands it the operators' rules in force with them."""

    def __init__(
        self, store: Store, settings: SettingsCache, metrics: Metrics, outages: Outages
    ) -> None:
        self._store = store
        self._settings = settings
        self._metrics = metrics
        self._outages = outages
        self._pending: deque[Waiting] = deque()
        self._runner: asyncio.Task[None] | None = None

    async def submit(self, sync: HostSync) -> HostSynced:
        """Return the store's answer to `sync`. Raises Unavailable when the store is away: the sync
        may have been taken, and sending it again is right."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[HostSynced] = loop.create_future()
        self._pending.append((sync, answer))
        if self._runner is None:
            self._runner = loop.create_task(self._run())
        return await answer

    async def close(self) -> None:
        """Let the batch in flight and those behind it end, within `_CLOSE_SECONDS`."""
        if self._runner is not None:
            await asyncio.wait([self._runner], timeout=_CLOSE_SECONDS)
            if self._runner is not None:
                self._runner.cancel()

    async def _run(self) -> None:
        try:
            while self._pending:
                batch = self._take_batch()
                if batch:
                    with self._outages.asking():
                        await self._send(batch)
        finally:
            self._runner = None
            _fail(self._pending, Unavailable("the server shuts down"))
            self._pending.clear()

    def _take_batch(self) -> list[Waiting]:
        batch: list[Waiting] = []
        hosts: set[str] = set()
        left: deque[Waiting] = deque()
        while self._pending and len(batch) < MAX_BATCH:
            sync, answer = waiting = self._pending.popleft()
            if answer.done():  # its caller has gone
                continue
            (left if sync.host_id in hosts else batch).append(waiting)
            hosts.add(sync.host_id)
        self._pending.extendleft(reversed(left))
        return batch

    async def _send(self, batch: Sequence[Waiting]) -> None:
        began = time.perf_counter()
        try:
            settings = await self._settings.current()
            answers = await self._store.leases.sync_hosts(
                [sync for sync, _ in batch], rules=settings.rules, terms=settings.take_terms
            )
        except Unavailable as error:
            self._outages.note_failure(error)
            return _fail(batch, error)
        except Exception as error:
            if len(batch) == 1:
                if not isinstance(error, HoldfastError):
                    log.exception("a sync failed", extra={"host": batch[0][0].host_id})
                return _fail(batch, error)
            log.warning("a batch of %d syncs failed and is taken one by one: %r", len(batch), error)
            for waiting in batch:
                await self._send([waiting])
            return
        self._outages.note_renewal()
        self._metrics.sync_seconds.observe(time.perf_counter() - began)
        self._metrics.sync_batch.observe(len(batch))
        self._metrics.syncs.inc(len(batch))
        for (_, waiter), answer in zip(batch, answers, strict=True):
            if not waiter.done():
                waiter.set_result(answer)


def _fail(batch: Iterable[Waiting], error: Exception) -> None:
    for _, waiter in batch:
        if not waiter.done():
            waiter.set_exception(error)
