"""The folders of tasks on disk: made, handed on, deleted.

A folder costs its file system more to make and to delete than a short task's files do, and a
deletion may wait for the disk. So a task's folder that is empty again is handed on by a rename to
the next task, with its files emptied, and the missing ones are made while nothing ends, because an
idle machine takes 0.1 to 0.2 ms to make each, and a file system without a journal 0.4 ms where many
were deleted in the last minutes. The empty folder that a job worked in is handed on as well if the
job was short, because a person may be looking into another, which a thread deletes. The first tasks,
and a gang that starts again while its folders are still in use, get folders that were made for none.

FOLDER-1  A folder is handed on only when nothing of its task is in it, nothing was since it was
        looked at, and its rights are as they were. A file in it is handed on, emptied, only if
        nothing has it open. Until then it keeps its old name, under which the
        next agent finds no log in it and deletes it: `stdout` has its name from the start on.
FOLDER-2  A job's folder is not deleted, or handed on, once a task was given it: that is called off,
        or over, before `WorkFolders.make` returns. Those that lie ready are no job's yet.
FOLDER-3  The folder that a job worked in is handed on only if it is empty, nothing about it has changed
        since the job was given it (its ctime), and that was `SOON_SECONDS` ago at most.
"""

import contextlib
import math
import os
import shutil
import stat
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from holdfast.process.files import empty, make_empty, make_private_folder
from holdfast.process.spawn import READY
from holdfast.wire.agent import LaunchOrder

OUT_FOLDER = "checkpoint-out"
ORDER_FILE = "order.json"
READY_FOLDERS = tuple(f".ready-{number}" for number in range(8))  # no job or task is called so
TASKS_FOLDER, WORK_FOLDER = "tasks", "work"
TRIAL_FOLDER = ".ready-trial"
MAX_SPARES, MAX_PREPARED = 256, 8
SOON_SECONDS = 10.0
PEERS_FILE, STATE_FILE, TOKEN_FILE = "peers.json", "state.json", "token"
READY_STATE = f"{STATE_FILE}{READY}"  # becomes the state by a rename
_Look = tuple[int, ...]
_NEVER: _Look = ()
_PRIVATE = stat.S_IFDIR | 0o700
# What an ordinary task leaves; a folder with anything else in it is deleted.
_MADE_AHEAD = (ORDER_FILE, PEERS_FILE, TOKEN_FILE, READY_STATE, f"stdout{READY}", "stderr")
_FILES = frozenset({STATE_FILE, "stdout", *_MADE_AHEAD})
_LOGS = frozenset({"stdout", "stderr"})
# Looked at again before they are handed on, because a task appends to them. Each other file is looked
# at by its writer (`write_new`, `write_atomic`).
_APPENDED = (f"stdout{READY}", "stderr")
# Each file that is emptied, and its name then. The log goes first, because a folder with a log is a
# task's.
_EMPTIED = {
    "stdout": f"stdout{READY}",
    "stderr": "stderr",
    STATE_FILE: READY_STATE,
    **{name: name for name in (ORDER_FILE, PEERS_FILE, TOKEN_FILE)},
}


class TaskFolders:
    """Folders of tasks, each with an empty `checkpoint-out` in it when it is given to a task, and
    perhaps empty files for its order, its peers, its state and its logs. root: where folders are made
    that no task has left."""

    def __init__(self, root: Path | None = None) -> None:
        self._new = [f"{root}/{name}" for name in READY_FOLDERS] if root is not None else []
        self._spares: dict[str, _Look] = {}
        self._prepared: dict[str, _Look] = {}  # with the files, too
        self._preparing = ""  # without the lock, because no start may wait for the disk there
        self._lock = threading.Condition()

    def make(self, path: Path) -> None:
        """Make the folder of a task, or leave the one that is there. Raises OSError."""
        wanted = str(path)
        with self._lock:
            self._lock.wait_for(lambda: self._preparing != wanted)
            if wanted in self._spares or wanted in self._prepared:
                self._delete(wanted)
            for spares in (self._prepared, self._spares):
                while spares:
                    spare, look = spares.popitem()
                    try:
                        if _look_at(spare, _APPENDED if spares is self._prepared else ()) == look:
                            os.rename(spare, wanted)
                            return
                    except OSError:
                        pass
                    shutil.rmtree(spare, ignore_errors=True)
        for folder in (wanted, f"{wanted}/{OUT_FOLDER}"):
            _make(folder)

    def put_back(self, path: Path) -> None:
        """Empty the folder of a task that is over, to be handed on (FOLDER-1)."""
        folder = str(path)
        full = len(self._spares) + len(self._prepared) >= MAX_SPARES
        found = None if full else _empty_folder(folder)
        if found is None:
            self.remove(path)
        else:
            look, whole = found
            (self._prepared if whole else self._spares)[folder] = look

    def prepare(self, goes_on: Callable[[], bool] = lambda: True) -> None:
        """Make the files of the next tasks in a few spare folders, or in new ones. Called in a thread
        while nothing ends, because it costs as much as a short task, and only while `goes_on`."""
        while goes_on():
            with self._lock:
                found = self._find_spare() if len(self._prepared) < MAX_PREPARED else None
                if found is None:
                    return
                folder, look = found
                self._preparing = folder
            made = _make_new(folder) if look is None else _make_ahead(folder, look)
            with self._lock:
                if made is not None:
                    self._prepared[folder] = made
                self._preparing = ""
                self._lock.notify_all()
            if made is None and look is None:
                return  # the disk takes none

    def _find_spare(self) -> tuple[str, _Look | None] | None:
        """Return a folder that a task has left, and how it was then; or the name of a new one."""
        if self._spares:
            return self._spares.popitem()
        new = next((folder for folder in self._new if folder not in self._prepared), None)
        return None if new is None else (new, None)

    def remove(self, path: Path) -> None:
        """Delete a folder with all that is in it; what cannot be deleted is left."""
        with self._lock:
            self._lock.wait_for(lambda: self._preparing != str(path))
            self._delete(str(path))

    def _delete(self, folder: str) -> None:
        self._spares.pop(folder, None)
        self._prepared.pop(folder, None)
        shutil.rmtree(folder, ignore_errors=True)


def _empty_folder(folder: str) -> tuple[_Look, bool] | None:
    """Empty a task's files, or delete them all. Returns how the folder is then, and whether it has
    empty files; None unless only its `checkpoint-out` is left besides, empty and as it was made
    (FOLDER-1)."""
    try:
        left = set(os.listdir(folder))
        whole = _empty_files(folder, left)
        if not whole:
            for name in set(os.listdir(folder)) & _FILES:
                os.unlink(f"{folder}/{name}")
        look = _look_at(folder, _APPENDED if whole else ())
        as_made = left - _FILES == {OUT_FOLDER} and look[0] == look[1] == _PRIVATE
        as_made = as_made and not any(look[4:])  # a file that its task had no use for
        return (look, whole) if as_made and not os.listdir(f"{folder}/{OUT_FOLDER}") else None
    except OSError:
        return None


def _empty_files(folder: str, left: set[str]) -> bool:
    """Empty the files that a task has left, and make those that it lacks. Returns whether all are as
    `_make_ahead` makes them. Raises OSError."""
    for name, ready in _EMPTIED.items():
        if name in left:
            if not empty(f"{folder}/{name}", alone=name in _LOGS):
                return False
            if name != ready:
                os.rename(f"{folder}/{name}", f"{folder}/{ready}")
        elif ready not in left:
            make_empty(f"{folder}/{ready}")
    return True


def _make_ahead(folder: str, look: _Look) -> _Look | None:
    """Make the files of a next task in an emptied folder. Returns how it is then; a folder that has
    changed is deleted."""
    with contextlib.suppress(OSError):
        if _look_at(folder) == look:
            for name in _MADE_AHEAD:
                make_empty(f"{folder}/{name}")
            return _look_at(folder, _APPENDED)
    shutil.rmtree(folder, ignore_errors=True)
    return None


def _make_new(folder: str) -> _Look | None:
    """Make a folder with the files of a next task, in place of what an earlier agent left there.
    Returns how it is then; None where the disk takes none."""
    shutil.rmtree(folder, ignore_errors=True)
    try:
        os.mkdir(folder, 0o700)
        os.mkdir(f"{folder}/{OUT_FOLDER}", 0o700)
        look = _look_at(folder)
    except OSError:
        return None
    return _make_ahead(folder, look)


def _look_at(folder: str, files: Iterable[str] = ()) -> _Look:
    """Return the rights of a task's folder and of its `checkpoint-out`, when a name was last added
    or taken away there, and how long some files are. Raises OSError."""
    found, out = os.lstat(folder), os.lstat(f"{folder}/{OUT_FOLDER}")
    sizes = (os.lstat(f"{folder}/{name}").st_size for name in files)
    return found.st_mode, out.st_mode, found.st_mtime_ns, out.st_mtime_ns, *sizes


class WorkFolders:
    """The folders that jobs work in, below one root: each named by its job, and shared by its
    attempts unless these want a fresh one. A few lie ready for the next jobs, because an idle machine
    takes 0.2 to 0.5 ms to make one."""

    def __init__(self, root: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self.root = root
        self._clock = clock
        self._doomed: dict[str, set[str]] = {}  # job → folders to delete if they are empty
        self._given: dict[str, tuple[float, _Look]] = {}  # job → when, and how the folder was
        self._spares: dict[str, tuple[float, _Look]] = {}  # the same of those that jobs have left
        self._lock = threading.Lock()
        self._ready: list[str] = []

    def make(self, order: LaunchOrder) -> str:
        """Make the folder of an order's task. Raises OSError."""
        job_id = order.key.job_id
        if job_id in self._doomed or job_id in self._spares:
            with self._lock:  # FOLDER-2
                self._doomed.pop(job_id, None)
                self._spares.pop(job_id, None)
        folder = f"{self.root}/{job_id}"
        new = not os.path.lexists(folder)
        if not (new and (self._take_spare(folder) or self._take_ready(folder))):
            _make(folder)
        if new and not order.fresh_workdir:
            self._given[job_id] = self._clock(), _note_change(folder)
        if order.fresh_workdir:
            folder = f"{folder}/{name_attempt(order)}"
            _make(folder)
        return folder

    def _take_spare(self, folder: str) -> bool:
        """Give a folder that a short job has just left (FOLDER-3). False where there is none."""
        while self._spares:
            job_id, (given, change) = self._spares.popitem()
            left = f"{self.root}/{job_id}"
            with contextlib.suppress(OSError):
                if self._is_soon(given) and _note_change(left) == change:
                    os.rename(left, folder)
                    return True
            self._doomed.setdefault(job_id, set())
        return False

    def _take_ready(self, folder: str) -> bool:
        """Give a folder that lies ready to a job that has none. False where there is none."""
        if not self._ready:
            return False
        try:
            os.rename(self._ready.pop(), folder)
        except OSError:
            return False
        return True

    def leave(self, job_id: str, order: LaunchOrder | None) -> None:
        """Have the folder of a job handed on or deleted soon, if nothing is in it. Else its age
        counts from now."""
        given, change = self._given.pop(job_id, (-math.inf, _NEVER))
        if self._is_soon(given) and len(self._spares) < MAX_SPARES:
            folder = f"{self.root}/{job_id}"
            with contextlib.suppress(OSError):
                if _note_change(folder) == change and not os.listdir(folder):
                    self._spares[job_id] = given, change
                    return
        fresh = self._doomed.setdefault(job_id, set())
        if order is not None and order.fresh_workdir:
            fresh.add(name_attempt(order))

    def sweep(self) -> None:
        """Delete what `leave` has named. Called in a thread, because it waits for the disk."""
        for job_id in list(self._doomed):
            with self._lock:
                if (fresh := self._doomed.get(job_id)) is not None:
                    self._delete(job_id, fresh)
                    self._doomed.pop(job_id, None)  # not before: `make` must see it till then

    def prepare(self) -> None:
        """Make the folders of the next jobs, and delete those that jobs have left. Called in a thread
        while nothing ends."""
        for job_id in list(self._spares):
            with self._lock:
                if job_id in self._spares:
                    self._delete(job_id, set())
                    self._spares.pop(job_id, None)  # not before: `make` must see it till then
        for name in READY_FOLDERS:
            if (ready := f"{self.root}/{name}") not in self._ready:
                with contextlib.suppress(OSError):
                    with contextlib.suppress(FileNotFoundError):
                        os.rmdir(ready)  # an earlier agent's; one with something in it is not given
                    os.mkdir(ready, 0o700)
                    self._ready.append(ready)

    def _is_soon(self, given: float) -> bool:
        return self._clock() - given <= SOON_SECONDS

    def _delete(self, job_id: str, fresh: set[str]) -> None:
        folder = f"{self.root}/{job_id}"
        for name in fresh:
            with contextlib.suppress(OSError):
                os.rmdir(f"{folder}/{name}")
        try:
            os.rmdir(folder)  # most jobs never put anything there
        except OSError:
            with contextlib.suppress(OSError):
                os.utime(folder)


def _note_change(folder: str) -> _Look:
    """Return what changes with anything about a folder: names in it, and its rights."""
    found = os.lstat(folder)
    return found.st_ino, found.st_mode, found.st_ctime_ns


def _make(folder: str) -> None:
    """Make a folder, and its parents where a job has removed them. Raises OSError."""
    try:
        os.mkdir(folder, 0o700)
    except FileExistsError:
        if not os.path.isdir(folder):
            raise
    except FileNotFoundError:
        make_private_folder(Path(folder))


def make_trial(root: Path) -> Path:
    """Make a folder in the way of a task's, for a trial of starts. Raises OSError."""
    _make(f"{root}/{TRIAL_FOLDER}")
    return root / TRIAL_FOLDER


def name_attempt(order: LaunchOrder) -> str:
    """Return the name of the fresh folder of an order's attempt."""
    return f"attempt-{order.attempt}"
