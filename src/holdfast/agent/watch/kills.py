"""End a task after its watchdog tripped.

AGT-2  Every trip leads to the kill, even if forensics hang, because the kill has its own timer, set
       before forensics begin.
AGT-6  A task that a person left gets TERM and its grace before the kill, because it did nothing
       wrong, and a notebook saves what is open. The other trips kill at once: their tasks react to
       nothing, or may not go on.
"""

import asyncio
import logging
from dataclasses import dataclass, field

from holdfast.agent.link import GuardianLink
from holdfast.agent.offload import Asides
from holdfast.agent.tasks import AgentTask, TaskTable
from holdfast.agent.watch.forensics import ForensicsSender
from holdfast.core.causes import Watchdog
from holdfast.core.facts import Trip
from holdfast.process.syscalls import read_boottime

log = logging.getLogger("holdfast.agent.watch.kills")

_KILL_REPEAT_SECONDS = 5.0
_NO_FORENSICS = (Watchdog.LOST_LEASE, Watchdog.OPERATOR_STOP)


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
        if trip.watchdog is Watchdog.IDLE:
            self.end(task)
            return
        seconds = task.watch.settings.forensics_seconds
        if trip.watchdog in _NO_FORENSICS or seconds <= 0:
            self.kill(task)
            return
        asyncio.get_running_loop().call_later(seconds + 0.5, self.kill, task)  # AGT-2
        self._asides.start(self._examine_and_kill(task, trip, seconds))

    async def _examine_and_kill(self, task: AgentTask, trip: Trip, seconds: float) -> None:
        try:
            await self.forensics.gather(task, trip, seconds)
        except Exception:
            log.exception("forensics failed", extra=task.about())
        finally:
            self.kill(task)

    def end(self, task: AgentTask) -> None:
        """TERM a task that a person left, and KILL what is left of it after its grace (AGT-6). That
        it then ends with 0 does not void the trip (END-1)."""
        if not task.live:
            return
        seconds = task.watch.settings.grace_seconds
        if not task.saved.kill_sent:
            task.saved.kill_sent = True
            log.info("stopping it", extra=task.about(grace_seconds=seconds))
        self.link.stop(task.key, seconds)
        self.table.save(task, read_boottime())
        asyncio.get_running_loop().call_later(seconds + 0.5, self.kill, task)  # AGT-2

    def go_on(self, task: AgentTask) -> None:
        """End a task whose verdict an earlier agent gave, and did not live to carry out."""
        trip = task.watch.trip
        if trip is not None and trip.watchdog is Watchdog.IDLE:
            self.end(task)
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
