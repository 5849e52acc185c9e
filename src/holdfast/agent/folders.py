"""Make and delete the folders of tasks and jobs on disk.

Each task has its own folder, which is made for the task's key, and deleted when the task is over
and its logs are on record. A job's attempts share its work folder. A thread deletes folders,
because deletions wait for the disk (`Housekeeper`).

FOLDER-1  The work folder of a job is not deleted under a new task: the deletion is cancelled, or
        done, before `WorkFolders.make` returns.
"""

import contextlib
import os
import threading
from pathlib import Path

from holdfast.process.files import make_private_folder
from holdfast.wire.agent import LaunchOrder

OUT_FOLDER = "checkpoint-out"
STATUS_FILE = "container.status"  # written by the runner of a container
TASKS_FOLDER, WORK_FOLDER = "tasks", "work"
TRIAL_FOLDER = ".trial"  # no job or task has this name
ORDER_FILE, PEERS_FILE, STATE_FILE, TOKEN_FILE = "order.json", "peers.json", "state.json", "token"


class WorkFolders:
    """Holds the folders that jobs work in, below one root. Each has its job's name, and is
    shared by the job's attempts unless these want a fresh one."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._doomed: dict[str, set[str]] = {}  # job → folders to delete if they are empty
        self._lock = threading.Lock()

    def make(self, order: LaunchOrder) -> str:
        """Make the work folder of an order's task; return its path. Raises OSError."""
        job_id = order.key.job_id
        if job_id in self._doomed:
            with self._lock:  # FOLDER-1
                self._doomed.pop(job_id, None)
        folder = f"{self.root}/{job_id}"
        make_folder(folder)
        if order.fresh_workdir:
            folder = f"{folder}/{name_attempt(order)}"
            make_folder(folder)
        return folder

    def find(self, order: LaunchOrder) -> str:
        """Return the path of the work folder of an order's task."""
        folder = f"{self.root}/{order.key.job_id}"
        return f"{folder}/{name_attempt(order)}" if order.fresh_workdir else folder

    def leave(self, job_id: str, order: LaunchOrder | None) -> None:
        """Have the folder of a job deleted soon if it is empty; otherwise its age counts from
        now."""
        fresh = self._doomed.setdefault(job_id, set())
        if order is not None and order.fresh_workdir:
            fresh.add(name_attempt(order))

    def sweep(self) -> None:
        """Delete the folders that `leave` named. Call this in a thread, because it waits for the
        disk."""
        for job_id in list(self._doomed):
            with self._lock:
                if (fresh := self._doomed.get(job_id)) is not None:
                    self._delete(job_id, fresh)
                    self._doomed.pop(job_id, None)  # last, because `make` reads it without the lock

    def _delete(self, job_id: str, fresh: set[str]) -> None:
        folder = f"{self.root}/{job_id}"
        for name in fresh:
            with contextlib.suppress(OSError):
                os.rmdir(f"{folder}/{name}")
        try:
            os.rmdir(folder)  # most jobs leave no file there
        except OSError:
            with contextlib.suppress(OSError):
                os.utime(folder)


def make_task_folder(folder: Path) -> None:
    """Make the folder of a task; keep a folder that is there. Raises OSError."""
    make_folder(str(folder))
    make_folder(f"{folder}/{OUT_FOLDER}")


def make_folder(folder: str) -> None:
    """Make a folder, and its parents if a job has removed them. Raises OSError."""
    try:
        os.mkdir(folder, 0o700)
    except FileExistsError:
        if not os.path.isdir(folder):
            raise
    except FileNotFoundError:
        make_private_folder(Path(folder))


def make_trial(root: Path) -> Path:
    """Make a folder as for a task, for a trial of starts; return its path. Raises OSError."""
    make_folder(f"{root}/{TRIAL_FOLDER}")
    return root / TRIAL_FOLDER


def name_attempt(order: LaunchOrder) -> str:
    """Return the name of the fresh folder of an order's attempt."""
    return f"attempt-{order.attempt}"
