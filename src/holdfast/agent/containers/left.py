"""List the containers that an earlier incarnation of this host left, and that may still run.

A file keeps the list until their engine has answered, because the folders of their tasks are
deleted as soon as their logs are shipped.
"""

import logging
from collections.abc import Mapping
from pathlib import Path

import msgspec

from holdfast.agent.containers.plan import PID_FILE, RunnerStatus, read_status
from holdfast.agent.tasks.task import AgentTask
from holdfast.core.ids import TaskKey
from holdfast.process.files import make_private_folder, read_private, write_atomic
from holdfast.process.table import read_entry

log = logging.getLogger("holdfast.agent.containers")

_FILE = "left.json"


class _Left(msgspec.Struct, frozen=True):
    """A task whose container may still run. devices: the indexes of its GPUs."""

    key: TaskKey
    devices: tuple[int, ...]


def may_still_run(task: AgentTask) -> bool:
    """Return True if the container of a task that no guardian holds may run: it was started, and
    its first process is not known to be gone."""
    if task.live or not task.in_container:
        return False
    status = read_status(task.folder) or RunnerStatus(phase="starting")  # it may run
    if status.removed or status.phase in ("preparing", "pulling"):
        return False
    pid = status.pid or read_pid(task.folder)
    return not pid or read_entry(pid) is not None


def read_pid(folder: Path) -> int:
    """Return the pid of a container's first process if its runner had no time to report it; 0 if
    unknown."""
    try:
        return int((folder / PID_FILE).read_text())
    except (OSError, ValueError):
        return 0


def read_left(folder: Path) -> dict[TaskKey, tuple[int, ...]]:
    """Return the tasks that an earlier agent wrote down, with their devices."""
    try:
        data = read_private(folder / _FILE)
        found = msgspec.json.decode(data, type=list[_Left]) if data else []
    except (OSError, msgspec.MsgspecError) as error:
        log.warning(f"the list of containers that may still run cannot be read: {error}")
        return {}
    return {left.key: left.devices for left in found}


def write_left(folder: Path, left: Mapping[TaskKey, tuple[int, ...]]) -> None:
    """Write the tasks to disk, for the next agent. A disk that cannot store them is logged."""
    rows = [_Left(key, devices) for key, devices in left.items()]
    try:
        make_private_folder(folder)
        write_atomic(folder / _FILE, msgspec.json.encode(rows))
    except OSError as error:
        log.error(f"the list of containers that may still run cannot be written: {error}")


def forget_left(folder: Path) -> None:
    """Forget the tasks, because their engine answered."""
    (folder / _FILE).unlink(missing_ok=True)
