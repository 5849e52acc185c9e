"""Prepare container tasks for the guardian, follow them until they run, and confirm their ends.

DESK-1  Whenever an agent starts, it removes every container of this host that no living task owns
        (BOX-2). A runtime that was used here and does not answer delays only the work that its
        containers may still touch: the host starts no container, the tasks of an earlier
        incarnation whose containers may still run keep their leases, and no other task gets their
        devices. A runtime counts as used once it had an image and was asked for a container.
- An end is reported once the runner wrote that the container is gone. If it did not, the
  agent removes the container first, in as many tries as that needs. If that fails while the
  container's process lives, the task is unkillable.
"""

import asyncio
import contextlib
import logging
import os
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from holdfast.agent.containers.box import Surroundings, make_box
from holdfast.agent.containers.images import clean_words
from holdfast.agent.containers.left import (
    forget_left,
    may_still_run,
    read_left,
    read_pid,
    write_left,
)
from holdfast.agent.containers.plan import (
    HOST_LABEL,
    TASK_LABEL,
    Plan,
    RunnerStatus,
    mark_path,
    name_container,
    read_status,
    write_plan,
)
from holdfast.agent.containers.runtimes import Kind, Runtime, find_runtime, read_traits
from holdfast.agent.offload import run_bounded
from holdfast.agent.tasks.task import AgentTask
from holdfast.core.facts import TaskFacts
from holdfast.core.gpus import Gpu
from holdfast.core.host_faults import ANY_RUNTIME
from holdfast.core.ids import TaskKey
from holdfast.core.states import AgentTaskState
from holdfast.errors import ValidationError
from holdfast.process.files import make_private_folder
from holdfast.process.syscalls import read_boottime
from holdfast.process.table import read_entry
from holdfast.wire.agent import LaunchOrder
from holdfast.wire.guardian import TaskEnded

log = logging.getLogger("holdfast.agent.containers")

PULLS_AT_ONCE = 3  # more would only share the same network and disk
_FOLLOW_SECONDS = (0.05, 0.25)
_COMMAND_SECONDS = 30.0
_AGAIN_SECONDS = (0.2, 5.0)
_GIVE_UP_SECONDS = 60.0
_KINDS: tuple[Kind, ...] = ("podman", "docker")


class ContainerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The operator's options. runtimes: the global options of each runtime. extra: the options
    of every `create`."""

    runtimes: dict[str, list[str]] = {}
    extra: list[str] = []


def read_options(environ: Mapping[str, str]) -> ContainerOptions:
    """Return the options in HOLDFAST_PODMAN_ARGS, HOLDFAST_DOCKER_ARGS and
    HOLDFAST_CONTAINER_ARGS. Raises ValidationError for a variable with an open quote."""

    def split(name: str) -> list[str]:
        try:
            return shlex.split(environ.get(name, ""))
        except ValueError as error:
            why = f"{name} cannot be split into words: {error}"
            raise ValidationError(why, field=name) from None

    return ContainerOptions(
        runtimes={"podman": split("HOLDFAST_PODMAN_ARGS"), "docker": split("HOLDFAST_DOCKER_ARGS")},
        extra=split("HOLDFAST_CONTAINER_ARGS"),
    )


@dataclass(eq=False)
class ContainerTasks:
    """Holds all container tasks.

    folder: the folder of locks and of the list of leftover containers. mark: the host's mark.
    begun: called with a task, the pid of its container's first process, and its start. unable:
    called with a sentence when an engine was away. gpus: the devices of this host.
    """

    folder: Path
    mark: str
    options: ContainerOptions
    begun: Callable[[AgentTask, int, float], None]
    unable: Callable[[str], None] = lambda reason: None
    gpus: list[Gpu] = field(default_factory=list)
    _away: set[Kind] = field(default_factory=set)
    _left: dict[TaskKey, tuple[int, ...]] = field(default_factory=dict)
    _works: dict[TaskKey, asyncio.Task[None]] = field(default_factory=dict)

    # ---- the beginning

    def prepare(
        self,
        task: AgentTask,
        order: LaunchOrder,
        environment: Mapping[str, str],
        work: str,
        beats: str,
    ) -> list[str]:
        """Write the plan of a task's container; return the command of its runner. Raises
        ValidationError, OSError."""
        assert order.image is not None
        runtime = find_runtime(order.runtime, self.options.runtimes, os.environ)
        traits = read_traits(runtime.kind, os.environ)
        around = Surroundings(
            mark=self.mark,
            task_folder=str(task.folder),
            work_folder=work,
            beat_socket=beats,
            gpus=self.gpus,
            extra=self.options.extra,
        )
        box = make_box(order, runtime, traits, environment, around)
        make_private_folder(self.folder)
        plan = Plan(
            runtime=runtime,
            name=name_container(self.mark, order.key),
            image=order.image,
            pull=order.pull,
            pull_seconds=order.pull_seconds,
            create=box.options,
            command=box.command,
            variables=box.variables,
            file_variables=box.file_variables,
            locks=str(self.folder),
            pulls_at_once=PULLS_AT_ONCE,
            tells_image=order.makes_environment,
            grace_seconds=order.watch.grace_seconds,
            stop_tells=order.watch.stop_tells,
        )
        write_plan(task.folder, plan)
        return [sys.executable, "-P", "-m", "holdfast.agent.containers.runner", str(task.folder)]

    def follow(self, task: AgentTask) -> None:
        """Begin to wait until the container of a task whose runner runs has started."""
        if task.key in self._works:
            return
        work = self._works[task.key] = asyncio.create_task(self._follow(task))

        def note_done(done: asyncio.Task[None]) -> None:
            if self._works.get(task.key) is done:
                del self._works[task.key]
            error = None if done.cancelled() else done.exception()
            if error is not None:
                log.error("a container could not be followed", exc_info=error, extra=task.about())

        work.add_done_callback(note_done)

    async def _follow(self, task: AgentTask) -> None:
        pause, slowest = _FOLLOW_SECONDS
        said = ""
        while task.state is AgentTaskState.LAUNCHED:
            status = read_status(task.folder)
            if status is not None and status.phase != said:
                said = status.phase
                if said == "pulling":
                    image = task.order.image if task.order else "its image"
                    log.info(f"pulling {image}", extra=task.about())
                pause = _FOLLOW_SECONDS[0]
            if status is not None and status.pid and not status.removed:
                self.begun(task, status.pid, status.started_at)
                return
            await asyncio.sleep(pause)
            pause = min(pause * 1.1, slowest)

    # ---- the end

    async def confirm_gone(self, task: AgentTask) -> tuple[RunnerStatus, bool]:
        """Wait until the container of a task that ended is gone (BOX-3). Return the last status
        of its runner, and True if the container's process cannot be killed."""
        following = self._works.pop(task.key, None)
        if following is not None:
            following.cancel()
        status = read_status(task.folder) or RunnerStatus()
        if status.removed:
            return status, False
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + _GIVE_UP_SECONDS
        pause, longest = _AGAIN_SECONDS
        pid = status.pid or read_pid(task.folder)
        while not await self._remove(TASK_LABEL, str(task.key), ()):
            if loop.time() > give_up_at:
                if pid and read_entry(pid):
                    return status, True
                log.error(
                    "its container's record cannot be removed; its process is gone",
                    extra=task.about(),
                )
                break
            await asyncio.sleep(pause)
            pause = min(2 * pause, longest)
        return status, False

    # ---- containers of dead tasks

    def note_unable(self, asked: Kind | None, reason: str) -> None:
        """Note that a container could not be made, because the engine of its runtime was away."""
        with contextlib.suppress(ValidationError):
            self._away.add(find_runtime(asked, self.options.runtimes, os.environ).kind)
        self.unable(reason)

    def list_lacking(self) -> tuple[tuple[str, ...], tuple[int, ...]]:
        """Return the words of `core.host_faults` for the runtimes that are away, and the devices
        that containers of an earlier incarnation may still use."""
        words: set[str] = set(self._away)
        with contextlib.suppress(ValidationError):
            if find_runtime(None, self.options.runtimes, os.environ).kind in words:
                words.add(ANY_RUNTIME)
        devices = {device for left in self._left.values() for device in left}
        return tuple(sorted(words)), tuple(sorted(devices))

    def find_left(self, tasks: Iterable[AgentTask]) -> list[TaskKey]:
        """Find tasks of an earlier incarnation whose containers may still run, and remember them
        until a sweep has succeeded."""
        found = {task.key: task.gpus for task in tasks if may_still_run(task)}
        self._left = read_left(self.folder) | found
        if self._left:
            write_left(self.folder, self._left)
        return list(self._left)

    def say_unanswered(self) -> str:
        """Note every used runtime as away; return the sentence on that."""
        used = [kind for kind in _KINDS if mark_path(str(self.folder), kind).exists()]
        self._away.update(used)
        return f"{' and '.join(used) or 'the container engine'} has not answered yet"

    async def sweep(self, living: Iterable[TaskKey]) -> str | None:
        """Remove every container that none of these tasks owns. Return why an engine cannot be
        used yet; None if all can."""
        kept = [name_container(self.mark, key) for key in living]
        used = [kind for kind in _KINDS if mark_path(str(self.folder), kind).exists()]
        troubles: dict[Kind, str] = {}
        for kind in dict.fromkeys([*used, *sorted(self._away)]):
            trouble = await self._remove_of(kind, HOST_LABEL, self.mark, kept)
            if trouble is not None:
                troubles[kind] = trouble
        self._away = set(troubles)
        if not troubles.keys() & set(used):
            self._left = {}
            forget_left(self.folder)
        return "; ".join(troubles.values()) or None

    async def _remove(self, label: str, value: str, kept: Sequence[str]) -> bool:
        """Remove containers with this label from every used runtime. Return True if none is
        left."""
        used = [kind for kind in _KINDS if mark_path(str(self.folder), kind).exists()]
        found = [await self._remove_of(kind, label, value, kept) for kind in used]
        return not any(found)

    async def _remove_of(
        self, kind: Kind, label: str, value: str, kept: Sequence[str]
    ) -> str | None:
        """Remove containers with this label from one runtime. Return why that failed, or None."""
        try:
            runtime = find_runtime(kind, self.options.runtimes, os.environ)
        except ValidationError:
            log.warning(
                f"{kind} ran containers here and is not installed any more; its "
                "containers cannot be removed"
            )
            return None
        if await self._remove_from(runtime, label, value, kept):
            return None
        return f"{kind} does not answer, or cannot remove the containers of ended tasks"

    async def _remove_from(
        self, runtime: Runtime, label: str, value: str, kept: Sequence[str]
    ) -> bool:
        left = await self._list(runtime, label, value, kept)
        if not left:
            return left is not None
        log.info(
            f"removing {len(left)} container{'s' * (len(left) != 1)} that no task owns: "
            f"{', '.join(left[:5])}"
        )
        _, said = await run_bounded(runtime.remove(*left), _COMMAND_SECONDS)
        if await self._list(runtime, label, value, kept) == []:
            return True
        log.warning(f"{runtime.kind} could not remove them: {clean_words(said)[:500]}")
        return False

    async def _list(
        self, runtime: Runtime, label: str, value: str, kept: Sequence[str]
    ) -> list[str] | None:
        """Return the names of containers with this label, without those to keep; None if the
        runtime does not answer."""
        names = runtime.list_names(label, value)
        code, text = await run_bounded(names, _COMMAND_SECONDS, errors=False)
        return [name for name in text.split() if name not in kept] if code == 0 else None


def add_container_facts(
    facts: TaskFacts, ended: TaskEnded, status: RunnerStatus, task: AgentTask, *, unkillable: bool
) -> TaskFacts:
    """Return the facts of an end, with the facts that the runner wrote.

    The runner's own exit code, time and memory are not the task's. Of a container that was killed,
    the facts are known up to the runner's last look.
    """
    lived = max(0.0, read_boottime() - status.started_at) if status.started_at else 0.0
    facts = msgspec.structs.replace(
        facts,
        unkillable=facts.unkillable or unkillable,
        runtime_seconds=lived,
        max_memory_bytes=status.max_memory_bytes,
        memory_limit_bytes=task.order.memory_bytes if task.order else 0,
    )
    unclear = msgspec.structs.replace(facts, exit_code=None, signal=None)

    def clean(text: str | None) -> str | None:
        return None if text is None else task.redactor.mask_text(text)[:4096]

    if status.lost is not None and facts.trip is None:
        lost = clean(status.lost)
        start_error = None if status.started_at else lost
        return msgspec.structs.replace(unclear, lost=lost, start_error=start_error)
    if status.exit_code is not None:
        return msgspec.structs.replace(
            unclear,
            exit_code=status.exit_code,
            oom=facts.oom or status.oom,
            runtime_seconds=status.runtime_seconds,
        )
    if status.failed:
        return msgspec.structs.replace(
            unclear,
            exit_code=127 if status.start_error else None,  # its image lacks the program or folder
            pull_error=clean(status.pull_error),
            runtime_error=clean(status.runtime_error),
            start_error=clean(status.start_error),
        )
    explained = facts.trip is not None or facts.start_error is not None
    if explained or ended.stopped or ended.signal == 9:
        return facts
    code = ended.exit_code
    how = f"exit code {code}" if code is not None else f"signal {ended.signal}"
    error = f"the container's runner ended by itself with {how}"
    return msgspec.structs.replace(unclear, runtime_error=error)
