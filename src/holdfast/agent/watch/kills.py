"""End a task after its watchdog tripped.

AGT-2  Every trip leads to the kill, even if forensics hang, because the kill has its own timer, set
       before forensics begin.
AGT-6  A task at its time limit, and one that a person left, gets TERM and its grace before the
       kill, because it did nothing wrong and may have work to save. The other trips kill at once:
       their tasks react to nothing, or may not go on. So does the time limit of a call, because a
       call saves nothing, and the calls behind it wait for its executor.
"""

import asyncio
import logging
from dataclasses import dataclass, field

from holdfast.agent.link import GuardianLink
from holdfast.agent.offload import Asides
from holdfast.agent.tasks.table import TaskTable
from holdfast.agent.tasks.task import AgentTask
from holdfast.agent.watch.forensics import ForensicsSender
from holdfast.agent.watch.stop_words import leave_word
from holdfast.core.causes import Watchdog
from holdfast.core.facts import Trip
from holdfast.process.syscalls import read_boottime

log = logging.getLogger("holdfast.agent.watch.kills")

_KILL_REPEAT_SECONDS = 5.0
_NO_FORENSICS = (Watchdog.LOST_LEASE, Watchdog.OPERATOR_STOP, Watchdog.IDLE)


@dataclass(eq=False)
class Kills:
    """Ends the tasks whose watchdogs tripped, after forensics if the task's settings ask for them."""

    table: TaskTable
    link: GuardianLink
    forensics: ForensicsSender
    _asides: Asides = field(default_factory=Asides)

    def take_trip(self, task: AgentTask, trip: Trip) -> None:
        """Begin forensics if they are wanted, and end the task."""
        if trip.watchdog is Watchdog.OPERATOR_STOP:
            return  # the order that brought it has sent the stop, with its grace
        seconds = 0.0 if trip.watchdog in _NO_FORENSICS else task.watch.settings.forensics_seconds
        if _may_save(task, trip):
            self.end(task, trip)
            if seconds > 0:
                self._asides.start(self._examine(task, trip, seconds))
        elif seconds <= 0:
            self.kill(task)
        else:
            asyncio.get_running_loop().call_later(seconds + 0.5, self.kill, task)  # AGT-2
            self._asides.start(self._examine_and_kill(task, trip, seconds))

    async def _examine_and_kill(self, task: AgentTask, trip: Trip, seconds: float) -> None:
        try:
            await self._examine(task, trip, seconds)
        finally:
            self.kill(task)

    async def _examine(self, task: AgentTask, trip: Trip, seconds: float) -> None:
        try:
            await self.forensics.gather(task, trip, seconds)
        except Exception:
            log.exception("forensics failed", extra=task.about())

    def end(self, task: AgentTask, trip: Trip) -> None:
        """TERM a task, and KILL what is left of it after its grace (AGT-6). An exit status of 0
        after that does not void the trip (END-1)."""
        if not task.live:
            return
        seconds, now = task.watch.settings.grace_seconds, read_boottime()
        if not task.saved.kill_sent:
            task.saved.kill_sent = True
            leave_word(task, f"{trip.watchdog}: {trip.reason}", now + seconds)
            log.info("stopping it", extra=task.about(grace_seconds=seconds))
        self.link.stop(task.key, seconds)
        self.table.save(task, now)
        asyncio.get_running_loop().call_later(seconds + 0.5, self.kill, task)  # AGT-2

    def go_on(self, task: AgentTask) -> None:
        """End a task whose trip an earlier agent recorded but did not live to carry out."""
        trip = task.watch.trip
        if trip is not None and _may_save(task, trip):
            self.end(task, trip)
        else:
            self.kill(task)

    def kill(self, task: AgentTask) -> None:
        """KILL all processes of a task; repeat it until the task's end is reported."""
        if not task.live:
            return
        if not task.saved.kill_sent:
            task.saved.kill_sent = True
            log.warning("killing it", extra=task.about())
        self.link.stop(task.key, 0.0)
        self.table.save(task, read_boottime())
        asyncio.get_running_loop().call_later(_KILL_REPEAT_SECONDS, self.kill, task)


def _may_save(task: AgentTask, trip: Trip) -> bool:
    """Return whether a task gets its grace after a trip (AGT-6)."""
    if trip.watchdog is Watchdog.TIME_LIMIT:
        return task.order is None or not task.order.executor
    return trip.watchdog is Watchdog.IDLE
