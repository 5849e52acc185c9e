"""What happened to the devices of a GPU task that ended badly, asked of the probe before the end is
reported.

FAULT-2  An end waits for the devices' answer, never longer than `ASK_SECONDS`; a driver that hangs
         makes it unknown, not late.
FAULT-3  The devices are asked only about ends that they could explain: a failure by itself, or a
         trip because nothing moved.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field

from holdfast.agent.offload import Asides
from holdfast.agent.probes import READ_SECONDS, Probe, Probed
from holdfast.agent.probes.faults import DeviceFaults, DeviceMarks, add_device_faults
from holdfast.agent.tasks import AgentTask, TaskTable
from holdfast.core.endings.classify import HANGS
from holdfast.core.facts import TaskFacts
from holdfast.process.syscalls import read_boottime

log = logging.getLogger("holdfast.agent.watch.faults")

ASK_SECONDS = READ_SECONDS + 2.0


@dataclass(eq=False)
class FaultDesk:
    """Notes the devices when a task begins and looks again when it ends."""

    probe: Probe
    table: TaskTable
    _asides: Asides = field(default_factory=Asides)

    def begin(self, task: AgentTask) -> None:
        """Note how its devices are now."""
        if task.gpus and task.saved.devices is None:
            self._asides.start(self._note(task))

    async def _note(self, task: AgentTask) -> None:
        marks = await self.probe.mark_devices(task.gpus)
        if marks is not None and task.live:
            task.saved.devices = marks
            self.table.save(task, read_boottime())

    async def add_faults(self, task: AgentTask, facts: TaskFacts) -> TaskFacts:
        """Return the facts of an end with what happened to its devices, where that can matter."""
        if not _may_explain(task, facts):
            return facts
        probed = Probed(task.key, task.pid, task.gpus)
        marks = task.saved.devices or DeviceMarks()
        try:
            async with asyncio.timeout(ASK_SECONDS):
                found = await self.probe.find_faults(probed, marks, task.started_at)
        except TimeoutError:
            log.warning("the devices of a task that ended do not answer", extra=task.about())
            return facts
        except Exception:
            log.exception("the devices of a task that ended could not be asked", extra=task.about())
            return facts
        if found != DeviceFaults():
            log.error(f"its devices failed while it ran: {found}", extra=task.about())
        return add_device_faults(facts, found)


def _may_explain(task: AgentTask, facts: TaskFacts) -> bool:
    if not task.gpus or facts.succeeded or facts.lost is not None or facts.unkillable:
        return False
    return not facts.stopped if facts.trip is None else facts.trip.watchdog in HANGS
