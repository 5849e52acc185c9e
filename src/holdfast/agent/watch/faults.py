"""Ask the probe for faults of the devices of a GPU task that failed, before its end is reported.

FAULT-2  The report of an end waits for the devices' faults, never longer than `ASK_SECONDS`; if the
         driver hangs, the faults are unknown, and the report is not late.
FAULT-4  While GPU tasks run, the kernel log is read every `POLL_SECONDS`. A line that blames the
         hardware of a task's own device trips the task at once, with any settings, because the
         task has lost the device; a fault that the driver blames on the program trips nothing.
FAULT-3  The devices are read only after ends that a fault could explain: the task failed by itself,
         or a watchdog ended it because it made no progress.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from holdfast.agent.offload import Asides
from holdfast.agent.probes import READ_SECONDS, Probe, Probed
from holdfast.agent.probes.faults import DeviceFaults, DeviceMarks, add_device_faults
from holdfast.agent.tasks.table import TaskTable
from holdfast.agent.tasks.task import AgentTask
from holdfast.core.endings.classify import HANGS
from holdfast.core.endings.xids import Blame, find_xid
from holdfast.core.facts import TaskFacts
from holdfast.core.ids import TaskKey
from holdfast.core.states import AgentTaskState
from holdfast.core.watchdogs.verdicts import Evidence
from holdfast.process.syscalls import read_boottime

log = logging.getLogger("holdfast.agent.watch.faults")

ASK_SECONDS = READ_SECONDS + 2.0
POLL_SECONDS = 5.0


@dataclass(eq=False)
class FaultLooks:
    """Reads the state of a task's devices when it begins, and their faults when it ends.

    poke: has the watch runner decide soon, after the kernel log blamed a device.
    """

    probe: Probe
    table: TaskTable
    poke: Callable[[], None] = lambda: None
    _asides: Asides = field(default_factory=Asides)
    _heard: dict[TaskKey, DeviceFaults] = field(default_factory=dict)

    def begin(self, task: AgentTask) -> None:
        """Record the state of the task's devices as it is now."""
        if task.gpus and task.saved.devices is None:
            self._asides.start(self._note(task))

    async def _note(self, task: AgentTask) -> None:
        marks = await self.probe.mark_devices(task.gpus)
        if marks is not None and task.live:
            task.saved.devices = marks
            self.table.save(task, read_boottime())

    async def run(self) -> None:
        """Read for ever the kernel log for faults while GPU tasks run (FAULT-4)."""
        while True:
            await asyncio.sleep(POLL_SECONDS)
            try:
                await self.poll()
            except Exception:
                log.exception("the kernel log could not be asked")

    async def poll(self) -> None:
        """Trip each task if the kernel log calls a device of it broken."""
        running = [t for t in self.table if t.state is AgentTaskState.RUNNING and t.gpus]
        for task in running:
            marks = task.saved.devices
            if marks is None or task.watch.trip is not None:
                continue
            probed = Probed(task.key, task.pid, task.gpus)
            found = await self.probe.hear_kernel(probed, marks, task.started_at)
            words = _blame_hardware(found)
            if words is None or task.state is not AgentTaskState.RUNNING:
                continue
            self._heard[task.key] = found
            evidence: Evidence = {"kernel_log": "\n".join(found.lines)[:2000] or None}
            task.watch.gpu_failed(read_boottime(), words, evidence)
            self.poke()

    async def add_faults(self, task: AgentTask, facts: TaskFacts) -> TaskFacts:
        """Return the facts of an end, with the faults of its devices if they can explain it
        (FAULT-3)."""
        heard = self._heard.pop(task.key, None)
        if not facts.succeeded:
            facts = msgspec.structs.replace(facts, devices=_list_held(task))
        if not _may_explain(task, facts):
            return facts
        probed = Probed(task.key, task.pid, task.gpus)
        marks = task.saved.devices or DeviceMarks()
        try:
            async with asyncio.timeout(ASK_SECONDS):
                found = await self.probe.find_faults(probed, marks, task.started_at)
        except TimeoutError:
            log.warning("the devices of a task that ended do not answer", extra=task.about())
            found = DeviceFaults()
        except Exception:
            log.exception("the devices of a task that ended could not be asked", extra=task.about())
            found = DeviceFaults()
        if heard is not None and found.gpu_lost is None and not found.xids:
            found = msgspec.structs.replace(found, xids=heard.xids, gpu_lost=heard.gpu_lost)
        if found != DeviceFaults():
            log.error(f"its devices failed while it ran: {found}", extra=task.about())
        return add_device_faults(facts, found)


def _list_held(task: AgentTask) -> tuple[str, ...] | None:
    """Return the PCI addresses of the task's devices; None if one of them is not known."""
    marks = task.saved.devices.devices if task.saved.devices is not None else {}
    held = tuple(marks[index].pci for index in task.gpus if index in marks and marks[index].pci)
    return held if len(held) == len(task.gpus) else None


def _blame_hardware(found: DeviceFaults) -> str | None:
    """Return a sentence on a fault of the hardware; None if no message blames it."""
    xid = find_xid(found.xids, Blame.HARDWARE)
    if xid is not None:
        return f"the driver reported a GPU fault while it ran, {xid}"
    return None if found.gpu_lost is None else f"its GPU failed while it ran: {found.gpu_lost}"


def _may_explain(task: AgentTask, facts: TaskFacts) -> bool:
    if not task.gpus or facts.succeeded or facts.lost is not None or facts.unkillable:
        return False
    return not facts.stopped if facts.trip is None else facts.trip.watchdog in HANGS
