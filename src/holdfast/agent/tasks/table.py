"""The tasks of this agent by key, and the folders of their files."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from holdfast.agent.folders import (
    ORDER_FILE,
    OUT_FOLDER,
    SPARE_FOLDER,
    STATE_FILE,
    TASKS_FOLDER,
    TRIAL_FOLDER,
    SpareFolders,
    make_task_folder,
    remove_task_folder,
)
from holdfast.agent.journal import about
from holdfast.agent.tasks.task import MAX_TOMBSTONES, AgentTask, TaskFile, log
from holdfast.agent.tasks.works import TaskWorks
from holdfast.core.ids import TaskKey
from holdfast.core.states import AgentTaskEvent
from holdfast.core.watchdogs import TaskWatch
from holdfast.errors import ValidationError
from holdfast.process.files import make_private_folder, read_private, write_first
from holdfast.wire.agent import LaunchOrder

_SAFE_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")


class TaskTable:
    """Holds all tasks of this agent by key, and the folder of their files. make_token: makes a
    task's own token. works: the starts and ends under way."""

    def __init__(
        self, state_dir: Path, make_token: Callable[[TaskKey], str] = lambda key: ""
    ) -> None:
        self._make_token = make_token
        self._folder = state_dir / TASKS_FOLDER
        self._spares = SpareFolders(self._folder, holds=OUT_FOLDER)
        self._tasks: dict[TaskKey, AgentTask] = {}
        self._tombstones: dict[TaskKey, None] = {}
        self._disk_failed = False
        self.works = TaskWorks()

    def open(self) -> None:
        """Make the folder. Raises OSError."""
        make_private_folder(self._folder)

    def __iter__(self) -> Iterator[AgentTask]:
        return iter(list(self._tasks.values()))

    def __len__(self) -> int:
        return len(self._tasks)

    def get(self, key: TaskKey) -> AgentTask | None:
        """Return the task of a key; None if it is not known."""
        return self._tasks.get(key)

    def count_live(self) -> int:
        """Return how many tasks have an end still to report."""
        return sum(task.live for task in self._tasks.values())

    def list_others(self, task: AgentTask) -> list[AgentTask]:
        """Return the other ranks of the task's attempt on this host."""
        mine = (task.key.job_id, task.key.epoch)
        return [
            other
            for other in self._tasks.values()
            if other is not task and (other.key.job_id, other.key.epoch) == mine
        ]

    def ends_with_others(self, task: AgentTask) -> bool:
        """Return True if other ranks of the task's attempt are being stopped on this host as well,
        and still live."""
        falls = task.saved.stop_asked or task.fell
        return falls and any(o.live and o.saved.stop_asked for o in self.list_others(task))

    def has_young(self, now: float) -> bool:
        """Return True if a task here has only just begun, and so may end in a moment."""
        return any(task.is_young(now) for task in self._tasks.values())

    def has_job(self, job_id: str) -> bool:
        """Return True if a task of this job is here."""
        return any(key.job_id == job_id for key in self._tasks)

    def is_buried(self, key: TaskKey) -> bool:
        """Return True if the key has ended here and must not be launched again."""
        return key in self._tombstones

    def folder_of(self, key: TaskKey) -> Path:
        """Return the path of a task's folder. Raises ValidationError for a job id that is no
        file name."""
        if not is_job_id(key.job_id):
            raise ValidationError(f"{key.job_id!r} is not the id of a job")
        return Path(f"{self._folder}/{key.job_id}.{key.rank}.{key.epoch}")

    def add(self, order: LaunchOrder, now: float) -> AgentTask:
        """Add the task of an order, and write the order to disk (KEEP-1). Raises OSError,
        ValidationError."""
        folder = self.folder_of(order.key)
        make_task_folder(folder, self._spares)
        # An agent that is killed here has launched nothing, and the order is offered again.
        write_first(f"{folder}/{ORDER_FILE}", msgspec.json.encode(order))
        task = AgentTask(order.key, folder, order, now, self._make_token(order.key))
        self._tasks[task.key] = task
        return task

    def add_stub(self, key: TaskKey, now: float) -> AgentTask:
        """Add a task that has only an end to report. Raises ValidationError."""
        task = self._tasks[key] = AgentTask(key, self.folder_of(key), None, now)
        return task

    def restore(self, key: TaskKey, now: float) -> AgentTask:
        """Add a task of an earlier agent, with as much as can be read of its files. Its state is
        derived later (KEEP-3)."""
        folder = self.folder_of(key)
        order, saved = None, TaskFile()
        try:
            data = read_private(folder / ORDER_FILE)
            order = msgspec.json.decode(data, type=LaunchOrder) if data else None
            data = read_private(folder / STATE_FILE)
            saved = msgspec.json.decode(data, type=TaskFile) if data else saved
        except (OSError, msgspec.MsgspecError) as error:
            log.warning(f"the files of a task cannot be read: {error}", extra=about(key))
        task = AgentTask(key, folder, order, now, self._make_token(key))
        self._tasks[key] = task
        task.saved = saved
        if saved.watch is not None:
            settings, gpus = task.watch.settings, len(task.gpus)
            try:
                task.watch = TaskWatch.restore(saved.watch, now, settings, gpus=gpus)
            except ValidationError as error:
                log.warning(f"its watch begins anew: {error}", extra=task.about())
        return task

    def find_kept(self) -> list[TaskKey]:
        """Return the keys that have a folder on disk."""
        keys = []
        for entry in self._folder.iterdir():
            if entry.name in (TRIAL_FOLDER, SPARE_FOLDER):
                continue  # no task's
            try:
                job_id, rank, epoch = entry.name.rsplit(".", 2)
                keys.append(TaskKey(job_id, int(rank), int(epoch)))
            except ValueError:
                log.warning(f"{entry} is no folder of a task and is left alone")
        return keys

    def save(self, task: AgentTask, now: float) -> None:
        """Write a task's `state.json`; a disk that cannot store it is logged once and tried
        again later."""
        if not task.has_folder:
            return
        try:
            task.save(now)
        except OSError as error:
            task.dirty = True
            if not self._disk_failed and task.folder.exists():
                self._disk_failed = True
                log.error(
                    f"task states cannot be written and are kept in memory only: {error}",
                    extra=task.about(),
                )
        else:
            if self._disk_failed:
                self._disk_failed = False
                log.info("task states can be written again")

    def save_changed(self, task: AgentTask, now: float) -> None:
        """Write a task's `state.json` if it changed and the task still has its folder."""
        if task.dirty and task.folder.is_dir():
            self.save(task, now)

    def forget(self, task: AgentTask) -> None:
        """Remove a task from the table, and remember that its key must not be launched again.
        Its folder stays until `remove_folder`."""
        task.move(AgentTaskEvent.FORGET)
        self._tasks.pop(task.key, None)
        self._tombstones[task.key] = None
        if len(self._tombstones) > MAX_TOMBSTONES:
            del self._tombstones[next(iter(self._tombstones))]

    def drop(self, task: AgentTask) -> None:
        """Remove a task that never began; its key may still be launched."""
        self._tasks.pop(task.key, None)

    def remove_folder(self, key: TaskKey) -> None:
        """Delete a task's files; files that cannot be deleted are left for the next try."""
        remove_task_folder(self.folder_of(key), self._spares)


def is_job_id(text: str) -> bool:
    """Return True if a text can be the id of a job, and so the name of a folder."""
    return _SAFE_ID.fullmatch(text) is not None
