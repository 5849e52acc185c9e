"""Begin tasks: make a launch order into a message to the guardian, and prepare what the task
needs."""

import contextlib
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from holdfast.agent.abilities import Hindrances
from holdfast.agent.bundles.code import CodeUnpacking
from holdfast.agent.bundles.setups import wrap_box, wrap_command
from holdfast.agent.calls.executor_paths import ExecutorPaths, make_place
from holdfast.agent.containers.box import is_worth_mounting
from holdfast.agent.containers.tasks import ContainerTasks
from holdfast.agent.data.folders import NamedFolders
from holdfast.agent.data.outputs import OutputsKeeper
from holdfast.agent.folders import OUT_FOLDER, TOKEN_FILE, WorkFolders
from holdfast.agent.journal import about
from holdfast.agent.link import GuardianLink
from holdfast.agent.offload import run_aside
from holdfast.agent.orders.claims import PortChooser
from holdfast.agent.orders.environment import make_command, make_task_environment
from holdfast.agent.orders.peers import GangPeers, Peers, find_peers
from holdfast.agent.tasks.table import TaskTable
from holdfast.agent.tasks.task import AgentTask
from holdfast.agent.uplink.checkpoints import CheckpointTransfers, in_path, input_path
from holdfast.agent.uplink.logs import LogShipper
from holdfast.agent.uplink.sync_wish import SyncWish
from holdfast.core.facts import TaskFacts
from holdfast.core.ids import TaskKey
from holdfast.core.states import AgentTaskEvent
from holdfast.errors import Unavailable, ValidationError
from holdfast.process.files import write_first
from holdfast.process.syscalls import read_boottime
from holdfast.wire.agent import Gang, LaunchOrder
from holdfast.wire.guardian import LaunchTask

log = logging.getLogger("holdfast.agent.orders.launches")


class TaskPlaces(msgspec.Struct, frozen=True, kw_only=True):
    """The folders and variables that all tasks of this host share.

    host_mark: the value of HOLDFAST_HOST by which the guardian finds the tasks' processes.
    inherited: the part of the agent's environment that tasks get. host_words: the variables that
    `environment.describe_host` returns. controller: the variables that
    `environment.describe_controller` returns. folders: the caches and mounts of this host. outputs: keeps
    what tasks leave.
    """

    host_mark: str
    beat_socket: str
    works: WorkFolders
    inherited: Mapping[str, str]
    executors: ExecutorPaths
    host_words: Mapping[str, str] = {}
    controller: Mapping[str, str] = {}
    folders: NamedFolders | None = None
    outputs: OutputsKeeper | None = None


def make_launch(
    task: AgentTask,
    order: LaunchOrder,
    places: TaskPlaces,
    containers: ContainerTasks,
    *,
    host_id: str,
    host_gpus: int,
    device_words: Mapping[int, str],
    peers: Peers | None,
) -> LaunchTask | str:
    """Return the message that has the guardian launch a task, or a sentence on why its container
    cannot be made. Raises OSError, ValidationError."""
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
    _make_out_folder(env.get("HOLDFAST_OUT_DIR"))
    envs, argv, cwd = places.works.root.parent / "code" / "envs", [""], order.cwd or work
    if not boxed:
        argv = wrap_command(task, order, envs, make_command(order))
    if order.executor:
        home = places.executors
        make_place(task.folder)
        argv, cwd = home.make_command(), home.find_path(order, work)
        env |= home.make_environment(order, task.folder, work)
    try:
        order = _open_folders(order, places.folders, env)
        if boxed:  # the guardian runs the container's runner; the engine sets devices and limits
            inside = wrap_box(task, order, envs, make_command(order))
            argv = containers.prepare(task, inside, env, work, places.beat_socket)
            env, cwd = dict(places.inherited), work
    except ValidationError as error:
        return str(error)
    return _write_launch(task, order, argv, env, cwd)


def find_outputs_root(order: LaunchOrder, works: WorkFolders) -> str:
    """Return the folder of this host below which the names of outputs stand. Of a task in a
    container it is one that is mounted there, because its `cwd` may be a path of the image, and
    this host's folder of that path is none of the task's."""
    work, cwd = works.find(order), order.cwd
    if order.image is None or cwd is None:
        return work if cwd is None else cwd
    return cwd if is_worth_mounting(cwd) and os.path.isdir(cwd) else work


def _write_launch(
    task: AgentTask, order: LaunchOrder, argv: list[str], env: dict[str, str], cwd: str
) -> LaunchTask:
    """Return the message to the guardian."""
    boxed = order.image is not None
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
        stop_tells=order.watch.stop_tells,
        log_disk_bytes=int(order.watch.log_disk_mb * 1024 * 1024),
        terminal=order.terminal,
    )


def _make_out_folder(path: str | None) -> None:
    if path:
        with contextlib.suppress(OSError):  # the program reports it when it fails to write there
            Path(path).mkdir(parents=True, exist_ok=True)


def _open_folders(
    order: LaunchOrder, folders: NamedFolders | None, env: dict[str, str]
) -> LaunchOrder:
    """Add the variables of a task's caches and mounts to `env`; return the order, with their volumes
    for a container. Raises OSError, ValidationError."""
    if folders is None or not (order.caches or order.mounts):
        return order
    named = folders.open(order)
    env |= named.variables
    more = named.volumes if order.image is not None else []
    return msgspec.structs.replace(order, volumes=[*order.volumes, *more])


def _name_controller(task: AgentTask, controller: Mapping[str, str]) -> Mapping[str, str]:
    """Write the task's token into its folder (0600), and return the variables that name its file
    and the controller (ENV-5). Raises OSError."""
    if not (task.token and controller):
        return {}
    path = f"{task.folder}/{TOKEN_FILE}"
    write_first(path, f"{task.token}\n".encode())
    return {**controller, "HOLDFAST_TOKEN_FILE": path}


@dataclass(eq=False)
class Launcher:
    """Begins tasks: makes their folders, fetches what they need, and has the guardian launch them;
    or reports why they cannot begin.

    shipper: follows the logs of each task, whether it runs or has ended. hindrances: records what
    this host lacked to start a task. host_id, host_gpus: this host's id and its number of GPUs.
    device_words: device index → name, for devices that the driver knows by a name.
    """

    table: TaskTable
    link: GuardianLink
    places: TaskPlaces
    containers: ContainerTasks
    checkpoints: CheckpointTransfers
    code: CodeUnpacking
    shipper: LogShipper
    hindrances: Hindrances
    news: SyncWish
    ports: PortChooser
    host_id: str = ""
    host_gpus: int = 0
    device_words: dict[int, str] = field(default_factory=dict)
    _peers: GangPeers = field(default_factory=GangPeers)
    _unlogged: list[AgentTask] = field(default_factory=list)

    def learn(self, gangs: Sequence[Gang]) -> None:
        """Note on which hosts the ranks of gangs are, before their launches begin."""
        self._peers.learn(gangs)

    def begin(self, order: LaunchOrder, deadline: float) -> None:
        """Begin a task that is not known here."""
        try:
            self._begin(order, deadline, read_boottime())
        except OSError as error:
            self.hindrances.note_start(f"it cannot prepare tasks: {error}")
            self.fail(order.key, str(error))
        except ValidationError as error:
            self.fail(order.key, str(error))

    def _begin(self, order: LaunchOrder, deadline: float, now: float) -> None:
        if not order.master_port:
            order = msgspec.structs.replace(order, master_port=self._find_port(order, now))
        task = self.table.add(order, now)
        peers = self._peers.leave(order, task.folder)
        task.deadline = deadline
        if not order.fetches:
            self._start_task(task, order, peers)
        else:
            task.move(AgentTaskEvent.FETCH)
            self.table.works.begin(task.key, self._fetch_and_start(task, order))

    def _find_port(self, order: LaunchOrder, now: float) -> int:
        """Return a port for a rendezvous on this host alone: the port that other ranks of the
        gang have here, whichever agent launched them; or a free one."""
        mine = (order.key.job_id, order.key.epoch)
        if order.world_size > 1:
            for task in self.table:
                same = (task.key.job_id, task.key.epoch) == mine
                if same and task.order is not None and task.order.master_port:
                    return task.order.master_port
        return self.ports.find(now)

    async def _fetch_and_start(self, task: AgentTask, order: LaunchOrder) -> None:
        """Start a task once its code, its input and its checkpoint are here, or report why they
        cannot be had (SAVE-3)."""
        try:
            unready = await self.code.unpack(task, order)
        except Unavailable as away:
            self.fail(task.key, str(away))
            return
        except OSError as trouble:
            self.hindrances.note_start(f"it cannot lay the code of a task: {trouble}")
            self.fail(task.key, f"its code cannot be laid into its folder: {trouble}")
            return
        if unready is not None:
            log.error(f"the task is not started: {unready}", extra=task.about())
            self.give_up(task, TaskFacts(setup_error=unready[:4096]))
            return
        missing = await self._make_mounts(order)
        missing = missing or await self.checkpoints.fetch_input(task)
        if missing is not None:
            log.error(f"the task is not started: {missing}", extra=task.about())
            self.give_up(task, TaskFacts(start_error=missing[:4096]))
            return
        error = await self.checkpoints.fetch(task)
        if error is not None:
            log.error(
                f"the task is not started: its checkpoint cannot be had: {error}",
                extra=task.about(),
            )
            self.give_up(task, TaskFacts(checkpoint_error=error[:4096]))
            return
        self._start_or_fail(task, task.order or order)  # with the fetched checkpoint

    async def _make_mounts(self, order: LaunchOrder) -> str | None:
        """Make the mounts of an order in a thread, because a bucket may be slow. Return None, or
        why one of them cannot be used."""
        try:
            if (folders := self.places.folders) is not None and order.mounts:
                await run_aside(lambda: folders.open_mounts(order))
        except (OSError, ValidationError) as error:
            return str(error)
        return None

    def _start_or_fail(self, task: AgentTask, order: LaunchOrder) -> None:
        """Start a task, or report that it could not be prepared."""
        try:
            peers = find_peers(task.folder) if order.world_size > 1 else None
            self._start_task(task, order, peers)
        except OSError as error:
            self.hindrances.note_start(f"it cannot prepare tasks: {error}")
            self.fail(task.key, str(error))
        except ValidationError as error:
            self.fail(task.key, str(error))
        self.log_launches()

    def _start_task(self, task: AgentTask, order: LaunchOrder, peers: Peers | None) -> None:
        launch = make_launch(
            task,
            order,
            self.places,
            self.containers,
            host_id=self.host_id,
            host_gpus=self.host_gpus,
            device_words=self.device_words,
            peers=peers,
        )
        if isinstance(launch, str):
            log.error(f"the task cannot be started: {launch}", extra=task.about())
            self.give_up(task, TaskFacts(start_error=launch[:4096]))
        else:
            if order.outputs is not None and self.places.outputs is not None:
                root = find_outputs_root(order, self.places.works)
                self.places.outputs.begin(task, root, order.outputs, order.memory_bytes)
            self.link.launch(launch)
            task.move(AgentTaskEvent.LAUNCH)
            self._unlogged.append(task)
            self.shipper.follow(task)

    def log_launches(self) -> None:
        """Log the launches after they were sent, because the guardian can start the tasks
        meanwhile."""
        for task in self._unlogged:
            name = task.order.name if task.order else ""
            log.info(f"launching {name}", extra=task.about())
        self._unlogged.clear()

    # ---- ends of tasks that never began

    def give_up(self, task: AgentTask, facts: TaskFacts) -> None:
        """Report the end of a task that never began."""
        task.end(AgentTaskEvent.GIVE_UP, facts, read_boottime())
        self.shipper.follow(task)  # so that the controller learns that its logs, too, have ended
        self.news.report()

    def tell_end(self, key: TaskKey, facts: TaskFacts) -> None:
        """Report the end of a task that is not known here; do nothing for a key that is no id."""
        with contextlib.suppress(ValidationError):
            self.give_up(self.table.add_stub(key, read_boottime()), facts)

    def fail(self, key: TaskKey, sentence: str) -> None:
        """Report a task that could not be prepared."""
        log.error(f"the task could not be prepared: {sentence}", extra=about(key))
        # A full disk is the host's failure: `start_error` alone would charge it to the job.
        lost = f"it could not prepare the task: {sentence}"[:4096]
        facts = TaskFacts(start_error=sentence[:4096], lost=lost)
        task = self.table.get(key)
        if task is None:
            self.tell_end(key, facts)
        else:
            self.give_up(task, facts)
