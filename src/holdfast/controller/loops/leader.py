"""Leadership: one replica runs the loops.

LEAD-1  Loops run only while `try_lead` says so, asked every two seconds; when it does not, they are
        cancelled at once.
LEAD-2  `leading_since` is the store's time at which this replica began to lead, or at which the
        last outage was over: LEASE-4 counts from it.
Even two leaders would do no harm beyond wasted work: every write is guarded. Leadership is for
economy, and for LEASE-4.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from holdfast.controller.loops.admit import AdmitLoop
from holdfast.controller.loops.checkpoints import CheckpointsLoop
from holdfast.controller.loops.drains import DrainsLoop
from holdfast.controller.loops.due import DueLoop
from holdfast.controller.loops.members import MembersLoop
from holdfast.controller.loops.silhouette import Loop, end_if_cancelled, keep_running
from holdfast.controller.loops.sweeps import (
    DeadHostsLoop,
    HostDrainsLoop,
    LeasesLoop,
    PruneLoop,
    ReservationsLoop,
)
from holdfast.controller.loops.webhooks import PruneDeliveriesLoop, WebhooksLoop
from holdfast.controller.runtime.context import Controller
from holdfast.errors import HoldfastError, Unavailable

log = logging.getLogger("holdfast.loops")
CONFIRM_SECONDS = 2.0


def make_loops(controller: Controller) -> list[Loop]:
    """Every loop there is."""
    return [
        AdmitLoop(controller),
        DrainsLoop(controller),
        MembersLoop(controller),
        LeasesLoop(controller),
        ReservationsLoop(controller),
        DueLoop(controller),
        DeadHostsLoop(controller),
        HostDrainsLoop(controller),
        PruneLoop(controller),
        WebhooksLoop(controller),
        PruneDeliveriesLoop(controller),
        CheckpointsLoop(controller),
    ]


class Leader:
    """Seeks leadership and holds the loops while it has it."""

    def __init__(self, controller: Controller, loops: Sequence[Loop] | None = None) -> None:
        self._controller = controller
        self._loops = list(loops) if loops is not None else make_loops(controller)
        self._tasks: list[asyncio.Task[None]] = []
        self._restart_count = False
        controller.outages.on_over = self._note_outage

    def _note_outage(self) -> None:
        # Nothing may be reaped by the old count, not even before the new one is read.
        self._controller.leading_since = None
        self._restart_count = True

    async def run(self) -> None:
        """Seek, lead, lose, seek again, until cancelled; then stop the loops and let the leadership
        go."""
        try:
            while True:
                await self._confirm()
                end_if_cancelled()
                await asyncio.sleep(CONFIRM_SECONDS)
        finally:
            await self._stop_loops()
            try:
                async with asyncio.timeout(1.0):
                    await self._controller.store.stop_leading()
            except (HoldfastError, TimeoutError):
                pass  # the session's end releases the lock

    async def _confirm(self) -> None:
        store = self._controller.store
        try:
            leads = await store.try_lead()
            if leads and (
                not self._tasks or self._restart_count or self._controller.leading_since is None
            ):
                self._restart_count = False
                self._controller.leading_since = await store.now()
        except Unavailable as error:
            self._controller.outages.note_failure(error)
            leads = False
        except Exception:
            log.exception("leadership could not be asked for")
            leads = False
        if leads and not self._tasks:
            log.info("this server leads: it runs the loops")
            self._tasks = [
                asyncio.create_task(keep_running(self._controller, loop), name=f"loop {loop.name}")
                for loop in self._loops
            ]
        elif not leads and self._tasks:
            log.warning("this server does not lead any more")
            await self._stop_loops()

    async def _stop_loops(self) -> None:
        self._controller.leading_since = None
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
