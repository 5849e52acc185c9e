"""Read output that the controller does not keep from the task's file, for a reader, with secrets
masked.

One order is read and sent at a time, so that readers cost a host the memory of one piece. The
controller repeats an order until it is answered, so that a lost answer is sent again.
"""

import asyncio
import logging
from collections.abc import Sequence

from holdfast.agent.journal import about
from holdfast.agent.tasks.table import TaskTable
from holdfast.agent.tasks.task import AgentTask
from holdfast.agent.uplink.calls import ControllerCalls
from holdfast.agent.uplink.logs import StreamTail
from holdfast.errors import HoldfastError, ValidationError
from holdfast.process.syscalls import read_boottime
from holdfast.wire.agent import MAX_LOG_CHUNK_BYTES, LogReadOrder
from holdfast.wire.logs.uploads import LogReadAnswer

log = logging.getLogger("holdfast.agent.uplink.log_reads")

_AGAIN_SECONDS = 1.0
_PUNCHED = "the host keeps no more than log_disk_mb of a stream on its disk"


class LogReader:
    """Answers orders of readers from the files of tasks that run here, or whose folders are
    kept."""

    def __init__(self, table: TaskTable, calls: ControllerCalls, host_name: str) -> None:
        self._table = table
        self._calls = calls
        self._host_name = host_name
        self._waiting: dict[str, LogReadOrder] = {}
        self._sent_at: dict[str, float] = {}  # order id → CLOCK_BOOTTIME
        self._asked = asyncio.Event()

    def accept_orders(self, orders: Sequence[LogReadOrder]) -> bool:
        """Answer these orders soon, and forget orders that the sync answer no longer names.
        Return True if any of them is new."""
        now = read_boottime()
        told = {order.id: self._sent_at.get(order.id, 0.0) for order in orders}
        new = bool(told.keys() - self._sent_at.keys())
        self._sent_at = told
        # An order answered less than a second ago was repeated before that answer arrived.
        self._waiting = {o.id: o for o in orders if now - told[o.id] > _AGAIN_SECONDS}
        if self._waiting:
            self._asked.set()
        return new

    async def run(self) -> None:
        """Answer orders to read logs, for ever."""
        while True:
            while self._waiting:
                order = self._waiting[next(iter(self._waiting))]
                try:
                    await self._calls.send_logs([], [self.read(order)])
                except HoldfastError as error:
                    log.warning(f"a reader is not answered: {error}", extra=about(order.key))
                else:
                    self._sent_at[order.id] = read_boottime()
                self._waiting.pop(order.id, None)
            self._asked.clear()
            await self._asked.wait()

    def read(self, order: LogReadOrder) -> LogReadAnswer:
        """Return the bytes of an order that are still on the disk."""
        try:
            tail = StreamTail(self._find_task(order), order.stream)
            length = min(order.length, MAX_LOG_CHUNK_BYTES)
            start, data = tail.read_range(order.offset, length)
        except (OSError, ValidationError):
            reason = f"host {self._host_name} has removed the files of this task"
            return LogReadAnswer(id=order.id, offset=order.offset, reason=reason)
        task = self._table.get(order.key)
        lost = task.saved.output.get(order.stream) if task is not None else None
        punched = lost.reason if lost is not None and lost.reason else _PUNCHED
        reason = punched if start > order.offset else ""
        return LogReadAnswer(id=order.id, offset=start, data=data, reason=reason)

    def _find_task(self, order: LogReadOrder) -> AgentTask:
        """Return the task of an order; if the task is forgotten, a stand-in for its folder, in
        which all output was masked when it was shipped."""
        found = self._table.get(order.key)
        return found or AgentTask(order.key, self._table.folder_of(order.key), None, 0.0)
