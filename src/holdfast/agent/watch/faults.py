"""When a GPU task ends badly: what happened to its devices meanwhile, asked of the probe before the
end is told.

FAULT-2  An end waits for the devices' word, never longer than `ASK_SECONDS`; a driver that hangs
         makes it unknown, not late.
FAULT-3  Only ends that a device could explain are asked about: a failure by itself, or a trip
         because nothing moved.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from holdfast.agent.probes import READ_SECONDS, Probe, Probed
from holdfast.agent.probes.faults import DeviceFaults, DeviceMarks, add_device_faults
from holdfast.agent.tasks import AgentTask, TaskTable
from holdfast.core.endings.classify import HANGS
from holdfast.core.facts import TaskFacts
from holdfast.core.ids import TaskKey
from holdfast.process.syscalls import read_boottime
from holdfast.wire.guardian import TaskEnded

log = logging.getLogger("holdfast.agent.watch.faults")

ASK_SECONDS = READ_SECONDS + 2.0


class FaultDesk:
    """Notes the devices when a task begins and looks again when it ends; `conclude` takes the facts
    then."""

    def __init__(
        self,
        probe: Probe,
        table: TaskTable,
        conclude: Callable[[AgentTask, TaskEnded, TaskFacts], None],
    ) -> None:
        self._probe = probe
        self._table = table
        self._conclude = conclude
        self._asked: set[TaskKey] = set()
        self._asides: set[asyncio.Task[None]] = set()

    def begin(self, task: AgentTask) -> None:
        """Note how its devices are now."""
        if task.gpus and task.saved.devices is None:
            self._aside(self._note(task))

    async def _note(self, task: AgentTask) -> None:
        marks = await self._probe.mark_devices(task.gpus)
        if marks is not None and task.live:
            task.saved.devices = marks
            self._table.save(task, read_boottime())

    def examine(self, task: AgentTask, ended: TaskEnded, facts: TaskFacts) -> None:
        """Conclude the end, with what happened to its devices where that can matter (FAULT-3)."""
        if not _may_explain(task, facts):
            self._conclude(task, ended, facts)
        elif task.key not in self._asked:  # an end is repeated until it is acknowledged
            self._asked.add(task.key)
            self._aside(self._ask(task, ended, facts))

    async def _ask(self, task: AgentTask, ended: TaskEnded, facts: TaskFacts) -> None:
        found = DeviceFaults()
        try:
            async with asyncio.timeout(ASK_SECONDS):
                probed = Probed(task.key, task.pid, task.gpus)
                found = await self._probe.find_faults(
                    probed, task.saved.devices or DeviceMarks(), task.started_at
                )
        except TimeoutError:
            log.warning("the devices of a task that ended do not answer", extra=task.about())
        except Exception:
            log.exception("the devices of a task that ended could not be asked", extra=task.about())
        finally:
            self._asked.discard(task.key)
        if found != DeviceFaults():
            log.error(f"its devices failed while it ran: {found}", extra=task.about())
        if task.live:
            self._conclude(task, ended, add_device_faults(facts, found))

    def _aside(self, work: Coroutine[Any, Any, None]) -> None:
        aside = asyncio.create_task(work)
        self._asides.add(aside)
        aside.add_done_callback(self._asides.discard)


def _may_explain(task: AgentTask, facts: TaskFacts) -> bool:
    if not task.gpus or facts.succeeded or facts.lost is not None or facts.unkillable:
        return False
    return not facts.stopped if facts.trip is None else facts.trip.watchdog in HANGS
