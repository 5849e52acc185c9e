"""Write and read two private files in a task's folder: from the agent to the runner (`Plan`), and
back (`RunnerStatus`)."""

from pathlib import Path
from typing import Literal

import msgspec

from holdfast.agent.containers.runtimes import Runtime
from holdfast.agent.folders import STATUS_FILE
from holdfast.core.ids import TaskKey
from holdfast.process.files import read_private, write_atomic

PLAN_FILE = "container.json"
PID_FILE = "container.pid"
TASK_LABEL = "holdfast.task"
HOST_LABEL = "holdfast.host"


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The plan of one container.

    pull_seconds: the longest time of a pull. create: the options of `create`, before the image.
    command: the words after the image. variables: the variables that are passed by name, through
    the client's environment. file_variables: the variables that would change the client itself, and
    are passed through a file. locks: the folder of the locks of pulls. pulls_at_once: how many
    images this host pulls at once. tells_image: the container is told the image's id, which its
    environment is made for. grace_seconds, stop_tells: settings of the job.
    """

    runtime: Runtime
    name: str
    image: str
    pull: Literal["missing", "always", "never"]
    pull_seconds: float
    create: list[str]
    command: list[str]
    variables: dict[str, str]
    file_variables: dict[str, str]
    locks: str
    pulls_at_once: int
    tells_image: bool = False
    grace_seconds: float = 15.0
    stop_tells: Literal["main", "tree"] = "main"


class RunnerStatus(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The state of a container, as its runner last wrote it.

    pid: the host's pid of its first process. started_at: its start (CLOCK_BOOTTIME). Both are 0
    before it runs. exit_code, oom, runtime_seconds, max_memory_bytes: the facts of a container that
    ran to its end. stopped: True if it was told to stop before it ran. pull_error, runtime_error,
    start_error: why it never ran. lost: why it did not run to an end of its own. removed: True if
    nothing of it is left (BOX-3).
    """

    phase: Literal["preparing", "pulling", "starting", "running", "ended"] = "preparing"
    pid: int = 0
    started_at: float = 0.0
    exit_code: int | None = None
    oom: bool = False
    runtime_seconds: float = 0.0
    max_memory_bytes: int = 0
    stopped: bool = False
    pull_error: str | None = None
    runtime_error: str | None = None
    start_error: str | None = None
    lost: str | None = None
    removed: bool = False

    @property
    def failed(self) -> bool:
        """Return True if the container's program never ran, because of an error."""
        return (self.pull_error, self.runtime_error, self.start_error) != (None, None, None)


def name_container(mark: str, key: TaskKey) -> str:
    """Return the name of a task's container (BOX-2)."""
    return f"holdfast-{mark}-{key.job_id}.{key.rank}.{key.epoch}"


def mark_path(locks: str, kind: str) -> Path:
    """Return the path of the file that exists once this runtime was asked for a container here."""
    return Path(locks) / f"used-{kind}"


def write_plan(folder: Path, plan: Plan) -> None:
    """Write the plan for the runner. Raises OSError."""
    write_atomic(folder / PLAN_FILE, msgspec.json.encode(plan))


def take_plan(folder: Path) -> Plan:
    """Read the plan and delete it (BOX-4). Raises OSError, MsgspecError."""
    path = folder / PLAN_FILE
    plan = msgspec.json.decode(path.read_bytes(), type=Plan)
    path.unlink()
    return plan


def write_status(folder: Path, status: RunnerStatus) -> None:
    """Write the runner's status. Raises OSError."""
    write_atomic(folder / STATUS_FILE, msgspec.json.encode(status))


def read_status(folder: Path) -> RunnerStatus | None:
    """Return the runner's last status; None if there is none that can be read."""
    try:
        data = read_private(folder / STATUS_FILE)
        return msgspec.json.decode(data, type=RunnerStatus) if data else None
    except (OSError, msgspec.MsgspecError):
        return None
