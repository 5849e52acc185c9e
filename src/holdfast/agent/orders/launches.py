"""How an order becomes a message to the guardian, also before the order is on record.

EARLY-1  A launch that is prepared before its order is on record (SYNC-4) is a folder with the order in it, as an
        agent leaves it that is killed before a launch, and a message that was not sent. The task is in
        no table, so no report tells of it, and the folder is deleted unless the order comes.
"""

import contextlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec

from holdfast.agent.calls.home import ExecutorHome, make_place
from holdfast.agent.containers.desk import ContainerDesk
from holdfast.agent.folders import OUT_FOLDER, TOKEN_FILE, WorkFolders
from holdfast.agent.orders.environment import make_command, make_task_environment
from holdfast.agent.orders.link import make_frame
from holdfast.agent.orders.peers import Peers
from holdfast.agent.tasks import AgentTask, TaskTable
from holdfast.agent.uplink.checkpoints import in_path, input_path
from holdfast.core.ids import TaskKey
from holdfast.errors import ValidationError
from holdfast.process.files import write_new
from holdfast.process.syscalls import read_boottime
from holdfast.wire.agent import LaunchOrder
from holdfast.wire.guardian import LaunchTask


class TaskPlaces(msgspec.Struct, frozen=True, kw_only=True):
    """What all tasks of this host share. host_words: from `environment.describe_host`. controller: from
    `environment.describe_controller`."""

    host_mark: str
    beat_socket: str
    works: WorkFolders
    inherited: Mapping[str, str]
    executors: ExecutorHome
    host_words: Mapping[str, str] = {}
    controller: Mapping[str, str] = {}


def make_launch(
    task: AgentTask,
    order: LaunchOrder,
    places: TaskPlaces,
    containers: ContainerDesk,
    *,
    host_id: str,
    host_gpus: int,
    device_words: Mapping[int, str],
    peers: Peers | None,
) -> LaunchTask | str:
    """Return what the guardian is told of a task, or why its container cannot be made. Raises OSError,
    ValidationError."""
    work = places.works.make(order)
    boxed = order.image is not None
    env = make_task_environment(
        order,
        {} if boxed else places.inherited,
        host_id=host_id,
        host_mark=places.host_mark,
        beat_socket=places.beat_socket,
        work_folder=work,
        host_gpus=host_gpus,
        device_words=device_words,
        peers=peers,
        host_words=places.host_words,
        checkpoint_out=f"{task.folder}/{OUT_FOLDER}",
        checkpoint_in=in_path(task) if order.checkpoint else None,
        controller=_name_controller(task, places.controller),
    )
    if env.get("HOLDFAST_OUT_DIR"):
        with contextlib.suppress(OSError):  # the program says what it could not write
            Path(env["HOLDFAST_OUT_DIR"]).mkdir(parents=True, exist_ok=True)
    argv, cwd = make_command(order), order.cwd or work
    if order.executor:
        home = places.executors
        make_place(task.folder)
        argv, cwd = home.make_command(), home.path
        env |= home.make_environment(order, task.folder)
    if boxed:  # the guardian holds the runner: devices and limits are the container's
        try:
            argv = containers.prepare(task, order, env, work, places.beat_socket)
        except ValidationError as error:
            return str(error)
        env, cwd = dict(places.inherited), work
    return LaunchTask(
        key=order.key,
        argv=argv,
        env=env,
        cwd=cwd,
        leads=boxed,
        stdout=f"{task.folder}/stdout",
        stderr=f"{task.folder}/stderr",
        stdin=input_path(task) if order.stdin else "",
        deadline=task.deadline,
        memory_bytes=0 if boxed else order.memory_bytes,
        contain=bool(order.gpus) and not boxed,
        grace_seconds=order.watch.grace_seconds,
        log_disk_bytes=int(order.watch.log_disk_mb * 1024 * 1024),
    )


def _name_controller(task: AgentTask, controller: Mapping[str, str]) -> Mapping[str, str]:
    """Leave the task's token in its folder (0600), and name it and the controller (ENV-5). Raises
    OSError."""
    if not (task.token and controller):
        return {}
    path = f"{task.folder}/{TOKEN_FILE}"
    write_new(path, f"{task.token}\n".encode())
    return {**controller, "HOLDFAST_TOKEN_FILE": path}


class EarlyLaunch(NamedTuple):
    """A launch that was prepared before its order was on record. asked: the order as it was read."""

    asked: LaunchOrder
    task: AgentTask
    frame: bytes


class EarlyLaunches:
    """Launches that are prepared and not sent (EARLY-1). leave: has the work folder of an order deleted
    that no task needs."""

    def __init__(self, table: TaskTable, leave: Callable[[LaunchOrder], None]) -> None:
        self._table = table
        self._leave = leave
        self._ready: dict[TaskKey, EarlyLaunch] = {}

    def prepare(
        self,
        asked: LaunchOrder,
        deadline: float,
        find_port: Callable[[float], int],
        make: Callable[[AgentTask, LaunchOrder], LaunchTask | str],
    ) -> None:
        """Prepare the launch of a plain task of one rank; of another, nothing."""
        plain = asked.world_size == 1 and asked.image is None and not asked.executor
        plain = plain and "HOLDFAST_OUT_DIR" not in {**asked.env, **asked.secrets}
        if not plain or asked.also or asked.fetches:
            return
        order, now = asked, read_boottime()
        if not order.master_port:
            order = msgspec.structs.replace(order, master_port=find_port(now))
        try:
            task = self._table.write_down(order, now)
            task.deadline = deadline
            launch = make(task, order)
            if isinstance(launch, LaunchTask):
                self._ready[asked.key] = EarlyLaunch(asked, task, make_frame(launch))
                return
        except (OSError, ValidationError):
            pass
        with contextlib.suppress(ValidationError):
            self._undo(asked)

    def take(self, asked: LaunchOrder) -> EarlyLaunch | None:
        """Return the launch that was prepared for this very order; None where there is none."""
        found = self._ready.get(asked.key)
        if found is None or found.asked != asked:
            return None
        return self._ready.pop(asked.key)

    def drop(self) -> None:
        """Undo the launches that no order has asked for."""
        while self._ready:
            self._undo(self._ready.popitem()[1].asked)

    def _undo(self, asked: LaunchOrder) -> None:
        """Delete the folders of an order that no task has taken. Raises ValidationError."""
        if self._table.get(asked.key) is None:
            self._table.remove_folder(asked.key)
        if not any(task.key.job_id == asked.key.job_id for task in self._table):
            self._leave(asked)
