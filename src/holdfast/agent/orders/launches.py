"""How an order becomes a message to the guardian."""

import contextlib
from collections.abc import Mapping
from pathlib import Path

import msgspec

from holdfast.agent.calls.home import ExecutorHome, make_place
from holdfast.agent.containers.desk import ContainerDesk
from holdfast.agent.folders import OUT_FOLDER, TOKEN_FILE, WorkFolders
from holdfast.agent.orders.environment import make_command, make_task_environment
from holdfast.agent.orders.peers import Peers
from holdfast.agent.tasks import AgentTask
from holdfast.agent.uplink.checkpoints import in_path, input_path
from holdfast.errors import ValidationError
from holdfast.process.files import write_atomic
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
    path = task.folder / TOKEN_FILE
    write_atomic(path, f"{task.token}\n".encode())
    return {**controller, "HOLDFAST_TOKEN_FILE": str(path)}
