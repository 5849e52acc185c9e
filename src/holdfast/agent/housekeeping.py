"""Delete the files of ended tasks: shipped logs after a while, work folders of jobs after a week.

A log that the controller keeps whole is deleted at once. One that it keeps only in part stays
`LOGS_KEEP_SECONDS`, so that a person can still read its middle, for `MAX_KEPT_FOLDERS` tasks at
most.
"""

import asyncio
import contextlib
import logging
import os
import shutil
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Collection
from pathlib import Path

from holdfast.agent.folders import ORDER_FILE, SPARE_FOLDER, TRIAL_FOLDER, WorkFolders
from holdfast.agent.offload import run_aside
from holdfast.agent.tasks.table import TaskTable
from holdfast.agent.tasks.task import AgentTask
from holdfast.agent.uplink.checkpoints import input_path
from holdfast.agent.uplink.logs import STREAMS
from holdfast.core.ids import TaskKey
from holdfast.core.states import AgentTaskEvent, AgentTaskState
from holdfast.errors import ValidationError
from holdfast.process.syscalls import read_boottime

log = logging.getLogger("holdfast.agent.housekeeping")

MAX_KEPT_FOLDERS = 64
LOGS_KEEP_SECONDS = 3600.0
WORK_KEEP_SECONDS = 7 * 86_400.0  # age of a job's work folder since its last attempt here
_ROUND_SECONDS = 60.0
_SWEEP_SECONDS = 0.5
_SETTLE_SECONDS = 2.0


class Housekeeper:
    """Forgets tasks that are over, and deletes folders of tasks and jobs that are not needed any
    more."""

    def __init__(
        self,
        table: TaskTable,
        works: WorkFolders,
        sweep_code: Callable[[Collection[str], float], None] = lambda busy, now: None,
    ) -> None:
        self._table = table
        self._works = works
        self._sweep_code = sweep_code  # deletes code of jobs that are not here any more
        self._half_settled: set[AgentTask] = set()
        self._over: deque[TaskKey] = deque()  # tasks whose folders have to be deleted
        self._left = asyncio.Event()  # there is something to delete
        self._kept: OrderedDict[TaskKey, float] = OrderedDict()  # task → Unix time of its removal

    def forget_recorded(self, task: AgentTask) -> None:
        """Forget a task if its end and its logs are on record; otherwise save soon how far it
        is."""
        if task.state is AgentTaskState.ACKNOWLEDGED and task.saved.shipped_whole:
            self._table.forget(task)
            self._half_settled.discard(task)
            # After the orders of the same answer, because a busy disk takes longer than a short
            # task.
            asyncio.get_running_loop().call_soon(self.put_away, task)
            return
        # Mostly the end or the logs follow in a moment, and all files are deleted. If the agent is
        # killed before, the next one ships the log again, which does no harm.
        task.dirty = True
        if not self._half_settled:
            asyncio.get_running_loop().call_later(_SETTLE_SECONDS, self._save_half_settled)
        self._half_settled.add(task)

    def _save_half_settled(self) -> None:
        """Save the tasks of which only the end or only the logs are on record. One timer does it
        for all, because a timer for each short task would cost more than the tasks."""
        saved, self._half_settled = self._half_settled, set()
        for task in saved:
            self._table.save_changed(task, read_boottime())

    def put_away(self, task: AgentTask) -> None:
        """Delete or keep the files of a task whose end and logs are on record."""
        self._leave_work_folder(task)
        if all(_count_here(task, stream) <= task.keep_bytes for stream in STREAMS):
            task.has_folder = False
            self._over.append(task.key)
            self._left.set()
            return
        self._table.save(task, read_boottime())  # tells the next agent that its logs are shipped
        try:
            (task.folder / ORDER_FILE).unlink(missing_ok=True)  # the order has secrets (KEEP-1)
            Path(input_path(task)).unlink(missing_ok=True)
        except OSError as error:
            log.error(
                f"its order, with its secrets, stays on disk as long as its logs: {error}",
                extra=task.about(),
            )
        self._keep(task.key)

    def _leave_work_folder(self, task: AgentTask) -> None:
        job_id = task.key.job_id
        if self._table.has_job(job_id):
            return  # the next attempt may work there already
        self._works.leave(job_id, task.order)
        self._left.set()

    def take_leftovers(self, now: float, follow: Callable[[AgentTask], None]) -> None:
        """Ship or delete the folders of tasks that no guardian knows any more."""
        for key in self._table.find_kept():
            if self._table.get(key) is None:
                with contextlib.suppress(ValidationError):
                    self._take_leftover(key, now, follow)

    def _take_leftover(self, key: TaskKey, now: float, follow: Callable[[AgentTask], None]) -> None:
        """Have a task's logs shipped, or keep them for a while. Raises ValidationError."""
        task = self._table.restore(key, now)
        if not task.path_of("stdout").exists():  # the first file that a start makes
            # An agent died between writing the order and launching it; the launch is offered again.
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
        """Delete files of tasks that are over, again and again, for ever."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._clean_often())
            group.create_task(self._sweep_often())

    async def _clean_often(self) -> None:
        while True:
            self.clean(time.time())
            await asyncio.sleep(_ROUND_SECONDS)

    async def _sweep_often(self) -> None:
        while True:
            await self._left.wait()
            await asyncio.sleep(_SWEEP_SECONDS)  # many deletions share one thread
            self._left.clear()
            await run_aside(self.sweep)  # no slot waits for a deletion

    def sweep(self) -> None:
        """Delete the folders of tasks that are over, and empty work folders of jobs that are not
        here any more. Called in a thread, and once more when the agent leaves."""
        with contextlib.suppress(IndexError):
            while True:
                self._table.remove_folder(self._over.popleft())
        self._works.sweep()
        self._sweep_code({task.key.job_id for task in list(self._table)}, time.time())

    def clean(self, now: float) -> None:
        """Delete files of tasks that are over, once. `now` is Unix time, as the times of files
        are."""
        while self._kept:
            key, until = next(iter(self._kept.items()))
            if until > now:
                break
            del self._kept[key]
            self._table.remove_folder(key)
        self._left.set()  # code of jobs that are gone is looked at, too
        busy = {TRIAL_FOLDER, SPARE_FOLDER, *(task.key.job_id for task in self._table)}
        try:
            folders = list(os.scandir(self._works.root))
        except OSError:
            return
        for folder in folders:
            if folder.name in busy or not folder.is_dir(follow_symlinks=False):
                continue
            with contextlib.suppress(OSError):
                os.rmdir(folder.path)  # an agent that was killed left it empty
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


def _count_here(task: AgentTask, stream: str) -> int:
    """Return how many bytes of a shipped stream were on this disk. Bytes that a full disk
    refused do not count, because their files would then be kept on it for nothing."""
    told = task.saved.output.get(stream)
    return task.saved.shipped.get(stream, 0) - (told.lost_bytes if told is not None else 0)
