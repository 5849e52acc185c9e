"""The remains of tasks on disk: shipped logs for a while, job folders for a week, nothing for ever.

A log that the controller keeps whole is deleted at once. One that it keeps only in part stays
`LOGS_KEEP_SECONDS`, so that a person can still look at the middle, for at most `MAX_KEPT_FOLDERS`
tasks.
"""

import asyncio
import contextlib
import logging
import os
import shutil
import time
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

from holdfast.agent.tasks import AgentTask, TaskTable
from holdfast.agent.uplink.logs import STREAMS
from holdfast.core.ids import TaskKey
from holdfast.core.states import AgentTaskEvent
from holdfast.errors import ValidationError
from holdfast.process.syscalls import read_boottime
from holdfast.wire.agent import LaunchOrder

log = logging.getLogger("holdfast.agent.housekeeping")

MAX_KEPT_FOLDERS = 64
LOGS_KEEP_SECONDS = 3600.0
WORK_KEEP_SECONDS = 7 * 86_400.0  # of a job's folder, after its last attempt here
_ROUND_SECONDS = 60.0


def find_work_folder(work_folder: Path, order: LaunchOrder) -> Path:
    """Return the folder of an order's task: its job's, or a fresh one of its attempt in there."""
    folder = work_folder / order.key.job_id
    return folder / f"attempt-{order.attempt}" if order.fresh_workdir else folder


class Housekeeper:
    """Removes task folders and job folders that are not needed any more."""

    def __init__(self, table: TaskTable, work_folder: Path) -> None:
        self._table = table
        self._work_folder = work_folder
        self._kept: OrderedDict[TaskKey, float] = OrderedDict()  # → unix time of removal

    def put_away(self, task: AgentTask) -> None:
        """Clean up after a task whose end and logs are on record."""
        self._leave_work_folder(task)
        if all(task.saved.shipped.get(stream, 0) <= task.keep_bytes for stream in STREAMS):
            self._table.remove_folder(task.key)
            return
        self._table.save(task, read_boottime())  # for the next agent: its logs are shipped
        try:
            (task.folder / "order.json").unlink(missing_ok=True)  # it holds secrets (KEEP-1)
        except OSError as error:
            log.error(
                f"its order, with its secrets, stays on disk as long as its logs: {error}",
                extra=task.about(),
            )
        self._keep(task.key)

    def _leave_work_folder(self, task: AgentTask) -> None:
        job_id = task.key.job_id
        if any(other.key.job_id == job_id for other in self._table):
            return  # the next attempt may be standing in it already
        work = self._work_folder / job_id
        if task.order is not None and task.order.fresh_workdir:
            with contextlib.suppress(OSError):
                find_work_folder(self._work_folder, task.order).rmdir()
        with contextlib.suppress(OSError):
            os.utime(work)  # its age counts from the last attempt here
            work.rmdir()  # most jobs never put anything there

    def take_leftovers(self, now: float, follow: Callable[[AgentTask], None]) -> None:
        """Take the folders whose tasks no guardian knows any more: only their logs are left."""
        for key in self._table.find_kept():
            if self._table.get(key) is None:
                with contextlib.suppress(ValidationError):
                    self._take_leftover(key, now, follow)

    def _take_leftover(self, key: TaskKey, now: float, follow: Callable[[AgentTask], None]) -> None:
        """Have its logs shipped, or keep them for a while. Raises ValidationError."""
        task = self._table.restore(key, now)
        if task.saved.returned:  # the earlier agent may not have been heard
            task.move(AgentTaskEvent.GIVE_UP)
            return
        if not any(task.path_of(stream).exists() for stream in STREAMS):
            # An agent died between writing the order down and the launch, which is offered again.
            self._table.drop(task)
            self._table.remove_folder(key)
            return
        task.move(AgentTaskEvent.SALVAGE)
        if task.saved.shipped_whole:
            self._table.forget(task)
            self._keep(key)
        else:
            follow(task)

    def _keep(self, key: TaskKey) -> None:
        self._kept[key] = time.time() + LOGS_KEEP_SECONDS
        while len(self._kept) > MAX_KEPT_FOLDERS:
            self._table.remove_folder(self._kept.popitem(last=False)[0])

    async def run(self) -> None:
        """Clean for ever."""
        while True:
            self.clean(time.time())
            await asyncio.sleep(_ROUND_SECONDS)

    def clean(self, now: float) -> None:
        """One round. `now` is Unix time, as files have it."""
        while self._kept:
            key, until = next(iter(self._kept.items()))
            if until > now:
                break
            del self._kept[key]
            self._table.remove_folder(key)
        busy = {task.key.job_id for task in self._table}
        try:
            folders = list(os.scandir(self._work_folder))
        except OSError:
            return
        for folder in folders:
            if folder.name in busy or not folder.is_dir(follow_symlinks=False):
                continue
            try:
                idle_seconds = now - folder.stat(follow_symlinks=False).st_mtime
            except OSError:
                continue
            if idle_seconds >= WORK_KEEP_SECONDS:
                shutil.rmtree(folder.path, ignore_errors=True)
                days = idle_seconds / 86_400
                age = f"last seen {days:.1f} days ago"
                log.info(f"removed the work folder of a job {age}: {folder.name}")
