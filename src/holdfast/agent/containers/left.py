"""Containers that an earlier incarnation of this host left, and that may still run.

They are kept in a file until their engine was asked, because the folders of their tasks go as soon
as their logs are shipped.
"""

import logging
from collections.abc import Mapping
from pathlib import Path

import msgspec

from holdfast.agent.containers.plan import PID_FILE, RunnerStatus, read_status
from holdfast.agent.tasks import AgentTask
from holdfast.core.ids import TaskKey
from holdfast.process.files import make_private_folder, read_private, write_atomic
from holdfast.process.table import read_entry

log = logging.getLogger("holdfast.agent.containers")

_FILE = "left.json"


class _Left(msgspec.Struct, frozen=True):
    key: TaskKey
    devices: tuple[int, ...]


def may_still_run(task: AgentTask) -> bool:
    """Return whether the container of a task that no guardian holds may run: it was started, and its
    first process is not known to be gone."""
    if task.live or not task.in_container:
        return False
    status = read_status(task.folder) or RunnerStatus(phase="starting")  # unknown is not gone
    if status.removed or status.phase in ("preparing", "pulling"):
        return False
    pid = status.pid or read_pid(task.folder)
    return not pid or read_entry(pid) is not None


def read_pid(folder: Path) -> int:
    """The first process of a container whose runner had no time to say it; 0 if unknown."""
    try:
        return int((folder / PID_FILE).read_text())
    except (OSError, ValueError):
        return 0


def read_left(folder: Path) -> dict[TaskKey, tuple[int, ...]]:
    """Tasks and their devices, as an earlier agent kept them."""
    try:
        data = read_private(folder / _FILE)
        found = msgspec.json.decode(data, type=list[_Left]) if data else []
    except (OSError, msgspec.MsgspecError) as error:
        log.warning(f"the list of containers that may still run cannot be read: {error}")
        return {}
    return {left.key: left.devices for left in found}


def write_left(folder: Path, left: Mapping[TaskKey, tuple[int, ...]]) -> None:
    """Keep them. A disk that cannot take it is logged."""
    rows = [_Left(key, devices) for key, devices in left.items()]
    try:
        make_private_folder(folder)
        write_atomic(folder / _FILE, msgspec.json.encode(rows))
    except OSError as error:
        log.error(f"the list of containers that may still run cannot be written: {error}")


def forget_left(folder: Path) -> None:
    """Forget them: their engine answered."""
    (folder / _FILE).unlink(missing_ok=True)
