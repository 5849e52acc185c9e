"""Make and delete the folders of tasks and jobs on disk.

Each task has its own folder, which is made for the task's key, and deleted when the task is over
and its logs are on record. A job's attempts share its work folder. A thread deletes folders,
because deletions wait for the disk (`Housekeeper`).

FOLDER-1  The work folder of a job is not deleted under a new task: the deletion is cancelled, or
        done, before `WorkFolders.make` returns.
FOLDER-2  A folder that is empty again becomes the next task's under another name, because a disk
        may take milliseconds to make a folder or to delete one, and keeps the parent folder locked
        meanwhile. A folder of which a job changed the owner, the rights or the attributes is
        deleted instead, so each task gets its folder as if it were new.
"""

import contextlib
import os
import shutil
import stat
import threading
from collections import deque
from pathlib import Path

from holdfast.process.files import make_private_folder
from holdfast.wire.agent import LaunchOrder

OUT_FOLDER = "checkpoint-out"
STATUS_FILE = "container.status"  # written by the runner of a container
TASKS_FOLDER, WORK_FOLDER = "tasks", "work"
TRIAL_FOLDER = ".trial"  # no job or task has this name
SPARE_FOLDER = ".spare"  # nor this one
ORDER_FILE, PEERS_FILE, STATE_FILE, TOKEN_FILE = "order.json", "peers.json", "state.json", "token"
_MAX_SPARES = 256  # more than half a second's tasks of a busy host
_BLOCK_BYTES = 4096


class SpareFolders:
    """Keeps empty folders of one parent folder `root` for the tasks to come (FOLDER-2).

    holds: the name of the one empty folder that each of them has inside; "" for none.
    """

    def __init__(self, root: Path, holds: str = "") -> None:
        self._root = f"{root}/{SPARE_FOLDER}"
        self._holds = holds
        self._names: deque[str] = deque()
        self._owner: tuple[int, int] | None = None

    def use_spare(self, folder: str) -> bool:
        """Make `folder`, which must not exist, of a spare one. Return False if there is none."""
        if self._owner is None:
            with contextlib.suppress(OSError):
                self._open()
        while self._names:
            try:
                spare = f"{self._root}/{self._names.popleft()}"
                os.rename(spare, folder)
                os.utime(folder)  # its age is its new task's
            except (IndexError, OSError):
                continue
            return True
        return False

    def put(self, folder: str) -> bool:
        """Keep a folder whose task is over, unless it is not as new. Return whether it is kept."""
        name = os.path.basename(folder)
        if len(self._names) >= _MAX_SPARES:
            return False
        try:
            if self._owner is None:
                self._open()
            inner = self._holds
            if not self._is_as_new(folder, [inner] if inner else []):
                return False
            if inner and not self._is_as_new(f"{folder}/{inner}", []):
                return False
            os.rename(folder, f"{self._root}/{name}")
        except OSError:
            return False
        self._names.append(name)
        return True

    def _open(self) -> None:
        """Make the folder of the spares, or take over those of an earlier agent. Raises OSError."""
        make_folder(self._root)
        found = os.stat(self._root)
        self._names.extend(os.listdir(self._root))
        self._owner = found.st_uid, found.st_gid

    def _is_as_new(self, folder: str, names: list[str]) -> bool:
        found = os.stat(folder, follow_symlinks=False)
        made = found.st_mode == stat.S_IFDIR | 0o700 and found.st_size <= _BLOCK_BYTES
        if not made or (found.st_uid, found.st_gid) != self._owner:
            return False
        own = [name for name in os.listxattr(folder) if not name.startswith("security.")]
        return not own and os.listdir(folder) == names


class WorkFolders:
    """Holds the folders that jobs work in, below one root. Each has its job's name, and is
    shared by the job's attempts unless these want a fresh one."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._spares = SpareFolders(root)
        self._doomed: dict[str, set[str]] = {}  # job → folders to delete if they are empty
        self._lock = threading.Lock()

    def make(self, order: LaunchOrder) -> str:
        """Make the work folder of an order's task; return its path. Raises OSError."""
        job_id = order.key.job_id
        if job_id in self._doomed:
            with self._lock:  # FOLDER-1
                self._doomed.pop(job_id, None)
        folder = f"{self.root}/{job_id}"
        make_folder(folder, self._spares)
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
        if self._spares.put(folder):  # most jobs leave no file there
            return
        try:
            os.rmdir(folder)
        except OSError:
            with contextlib.suppress(OSError):
                os.utime(folder)


def make_task_folder(folder: Path, spares: SpareFolders) -> None:
    """Make the folder of a task; keep a folder that is there. Raises OSError."""
    if not make_folder(str(folder), spares):
        make_folder(f"{folder}/{OUT_FOLDER}")


def make_folder(folder: str, spares: SpareFolders | None = None) -> bool:
    """Make a folder, and its parents if a job has removed them. Return True if it was made of a
    spare one. Raises OSError."""
    if spares is not None and not os.path.lexists(folder) and spares.use_spare(folder):
        return True
    try:
        os.mkdir(folder, 0o700)
    except FileExistsError:
        if not os.path.isdir(folder):
            raise
    except FileNotFoundError:
        make_private_folder(Path(folder))
    return False


def remove_task_folder(folder: Path, spares: SpareFolders) -> None:
    """Delete a task's files; files that cannot be deleted are left for the next try."""
    with contextlib.suppress(OSError):
        for name in os.listdir(folder):
            if name != OUT_FOLDER:
                os.unlink(f"{folder}/{name}")
        if spares.put(str(folder)):
            return
    shutil.rmtree(folder, ignore_errors=True)


def make_trial(root: Path) -> Path:
    """Make a folder as for a task, for a trial of starts; return its path. Raises OSError."""
    make_folder(f"{root}/{TRIAL_FOLDER}")
    return root / TRIAL_FOLDER


def name_attempt(order: LaunchOrder) -> str:
    """Return the name of the fresh folder of an order's attempt."""
    return f"attempt-{order.attempt}"
