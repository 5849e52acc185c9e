"""Leadership: one replica runs the loops.

LEAD-1  Loops run only while `try_lead` says so, asked every two seconds; when it does not, they are
        cancelled at once.

Writes of the loops are tied to the lead under which they began (LEAD-3), so two leaders cannot both
change anything. One leader saves work, and LEASE-4 counts from its beginning.
"""

import asyncio
import logging
from collections.abc import Sequence

from holdfast.controller.loops import sweeps
from holdfast.controller.loops.admit import AdmitLoop
from holdfast.controller.loops.arrays import ArraysLoop
from holdfast.controller.loops.calls.calls import CallsLoop
from holdfast.controller.loops.calls.executors import ExecutorsLoop
from holdfast.controller.loops.checkpoints import CheckpointsLoop
from holdfast.controller.loops.dependencies import DependantsLoop
from holdfast.controller.loops.drains import DrainsLoop
from holdfast.controller.loops.due import DueLoop
from holdfast.controller.loops.fleet import FleetLoop
from holdfast.controller.loops.health import HealthLoop, PruneHealthLoop
from holdfast.controller.loops.ledger.depths import QueueDepthsLoop
from holdfast.controller.loops.ledger.ledger import LedgerLoop, PruneLedgerLoop
from holdfast.controller.loops.loop import Loop, end_if_cancelled, keep_running
from holdfast.controller.loops.members import MembersLoop
from holdfast.controller.loops.money.budgets import BudgetsLoop
from holdfast.controller.loops.money.idle import IdleGpusLoop
from holdfast.controller.loops.schedules import SchedulesLoop
from holdfast.controller.loops.webhooks import PruneDeliveriesLoop, WebhooksLoop
from holdfast.controller.loops.workflows import DispatchLoop, PruneRunsLoop
from holdfast.controller.runtime.background import keep_going
from holdfast.controller.runtime.context import Controller
from holdfast.errors import HoldfastError, Unavailable

log = logging.getLogger("holdfast.loops")
CONFIRM_SECONDS = 2.0
LOOPS: tuple[type[Loop], ...] = (
    AdmitLoop,
    DrainsLoop,
    MembersLoop,
    sweeps.StampsLoop,
    sweeps.LeasesLoop,
    sweeps.ReservationsLoop,
    sweeps.SessionsLoop,
    DueLoop,
    DependantsLoop,
    ArraysLoop,
    SchedulesLoop,
    sweeps.ChildrenLoop,
    sweeps.DeadHostsLoop,
    sweeps.HostDrainsLoop,
    sweeps.PruneLoop,
    sweeps.OutputsLoop,
    WebhooksLoop,
    PruneDeliveriesLoop,
    CheckpointsLoop,
    HealthLoop,
    PruneHealthLoop,
    FleetLoop,
    DispatchLoop,
    PruneRunsLoop,
    ExecutorsLoop,
    CallsLoop,
    LedgerLoop,
    PruneLedgerLoop,
    QueueDepthsLoop,
    BudgetsLoop,
    IdleGpusLoop,
)
"""Every loop of the leader."""


class Leader:
    """Seeks leadership, and runs the loops while this replica leads."""

    def __init__(self, controller: Controller, loops: Sequence[Loop] | None = None) -> None:
        self._controller = controller
        self._loops = [make(controller) for make in LOOPS] if loops is None else loops
        self._tasks: list[asyncio.Task[None]] = []

    async def run(self) -> None:
        """Seek leadership, lead, lose it and seek it again, until cancelled; then stop the loops
        and release leadership."""
        try:
            while True:
                await self._confirm()
                end_if_cancelled()
                await asyncio.sleep(CONFIRM_SECONDS)
        finally:
            await self._stop_loops()
            try:
                async with asyncio.timeout(1.0):
                    await self._controller.store.leadership.stop_leading()
            except (HoldfastError, TimeoutError):
                pass  # the lead runs out by itself

    async def _confirm(self) -> None:
        controller = self._controller
        try:
            leads = await controller.store.leadership.try_lead()
            if leads:
                await controller.leadership.confirm(begins=not self._tasks)
        except Unavailable as error:
            controller.outages.note_failure(error)
            leads = False
        except Exception:
            log.exception("leadership could not be asked for")
            leads = False
        if leads and not self._tasks:
            log.info("this server leads: it runs the loops")
            with controller.store.leadership.fenced():
                self._tasks = [
                    asyncio.create_task(keep_running(controller, loop), name=f"loop {loop.name}")
                    for loop in self._loops
                ]
                looking = keep_going("the look", controller.looks.run)
                self._tasks.append(asyncio.create_task(looking, name="the look"))
        elif not leads and self._tasks:
            log.warning("this server does not lead any more")
            await self._stop_loops()

    async def _stop_loops(self) -> None:
        self._controller.leadership.end()
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for loop in self._loops if tasks else ():
            await loop.stop()
