"""Note what this host cannot do now, report it with every sync, and try it again (ASIDE-3).

A hindrance is noted when a start fails by the host's own fault. The trial of starts does what a
start does: it makes a folder beside the tasks' folders and one beside their work folders, a file of
1 MiB, a few descriptors and a process. The trial of containers asks the engine that was away, and
first removes containers that an earlier incarnation left there (DESK-1).
"""

import asyncio
import logging
import os
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from holdfast.agent.containers.tasks import ContainerTasks
from holdfast.agent.folders import TASKS_FOLDER, WORK_FOLDER, make_trial
from holdfast.agent.offload import run_aside
from holdfast.agent.tasks.table import TaskTable
from holdfast.agent.uplink.sync_wish import SyncWish
from holdfast.core.host_faults import Hindrance, Probation
from holdfast.process.syscalls import read_boottime

log = logging.getLogger("holdfast.agent.abilities")

_TRIAL_BYTES = 1 << 20
_TRIAL_DESCRIPTORS = 16
_TRIAL_SECONDS = 15.0
_FIRST_SWEEP_SECONDS = 3.0
_LONGEST_PAUSE_SECONDS = 60.0


@dataclass(eq=False)
class Hindrances:
    """Holds what this host does not try for a while, because it failed by the host's own fault.

    starts: the trials of starting tasks. engines: the trials of container engines. poke: set when
    a hindrance is new, so that its trial is planned.
    """

    news: SyncWish
    starts: Probation = field(default_factory=Probation)
    engines: Probation = field(default_factory=Probation)
    poke: asyncio.Event = field(default_factory=asyncio.Event)

    def note_start(self, reason: str) -> None:
        """Note that a task could not be started, because this host lacked something."""
        before = self.starts.reason
        self.starts = self.starts.fail(read_boottime(), reason)
        if before is None:
            log.error(f"this host is set aside: {reason}")
        self._tell()

    def note_engine(self, reason: str) -> None:
        """Note that a container could not be made, because its engine was away."""
        before = self.engines.reason
        self.engines = self.engines.fail(read_boottime(), reason)
        if before is None:
            log.error(f"no containers can be started here now: {reason}")
        self._tell()

    def _tell(self) -> None:
        self.poke.set()
        self.news.report()


@dataclass(eq=False)
class Abilities:
    """Judges what this host can do. freed: set once no container of an earlier incarnation runs
    any more, if that was not known when the host registered."""

    folder: Path
    table: TaskTable
    containers: ContainerTasks
    hindrances: Hindrances
    news: SyncWish
    freed: asyncio.Event = field(default_factory=asyncio.Event)
    _swept: bool = False

    def list_faults(self) -> list[Hindrance]:
        """Return the hindrances to report to the controller."""
        faults = []
        if self.hindrances.starts.reason is not None:
            faults.append(Hindrance(part="starts", reason=self.hindrances.starts.reason[:1024]))
        if self.hindrances.engines.reason is not None:
            words, devices = self.containers.list_lacking()
            reason = self.hindrances.engines.reason[:1024]
            faults.append(
                Hindrance(part="containers", reason=reason, runtimes=words, devices=devices)
            )
        return faults

    @property
    def is_unswept(self) -> bool:
        """Return True if containers of an earlier incarnation may still run."""
        return not self._swept

    async def look_first(self) -> None:
        """Try a start and the container engines once before the host registers, without waiting
        long for an engine."""
        trouble = await self._try_start()
        if trouble is not None:
            self.hindrances.note_start(trouble)
        sweeping = asyncio.create_task(self._sweep())
        await asyncio.wait([sweeping], timeout=_FIRST_SWEEP_SECONDS)
        if not sweeping.done():
            sweeping.cancel()
            await asyncio.gather(sweeping, return_exceptions=True)
            self.hindrances.note_engine(self.containers.say_unanswered())

    async def run(self) -> None:
        """Try for ever, at intervals, the abilities of this host that failed."""
        while True:
            self.hindrances.poke.clear()
            now = read_boottime()
            due = min(self.hindrances.starts.try_at, self.hindrances.engines.try_at)
            try:
                async with asyncio.timeout(min(max(0.05, due - now), _LONGEST_PAUSE_SECONDS)):
                    await self.hindrances.poke.wait()
            except TimeoutError:
                pass
            if self.hindrances.starts.try_at <= read_boottime():
                await self._end_trial_of_starts()
            if self.hindrances.engines.try_at <= read_boottime():
                await self._sweep()

    async def _end_trial_of_starts(self) -> None:
        trouble = await self._try_start()
        now = read_boottime()
        if trouble is not None:
            self.hindrances.starts = self.hindrances.starts.fail_trial(now, trouble)
        else:
            self.hindrances.starts = self.hindrances.starts.pass_trial(now)
            log.info("this host can start tasks again")
        self.news.report()

    async def _try_start(self) -> str | None:
        trial = run_aside(lambda: try_start(self.folder))
        done, _ = await asyncio.wait([trial], timeout=_TRIAL_SECONDS)
        if not done:
            return f"a start tried in {self.folder} did not end within {_TRIAL_SECONDS:.0f} s"
        return trial.result()

    async def _sweep(self) -> None:
        """Remove the containers that no living task owns, and note whether the engines answer
        (DESK-1)."""
        was_aside = self.hindrances.engines.reason is not None
        trouble = await self.containers.sweep([task.key for task in self.table if task.live])
        now = read_boottime()
        if trouble is not None:
            if not was_aside:
                log.error(f"no containers can be started here now: {trouble}")
            self.hindrances.engines = self.hindrances.engines.fail_trial(now, trouble)
            self.news.report()
            return
        self.hindrances.engines = self.hindrances.engines.pass_trial(now)
        first, self._swept = not self._swept, True
        if was_aside:
            log.info("containers can be started here again")
            if first:
                self.freed.set()
            self.news.report()


def try_start(folder: Path) -> str | None:
    """Do the steps of a task's start, and undo them. Return the reason if a step failed, else
    None."""
    made: list[Path] = []
    opened: list[int] = []
    try:
        made += [make_trial(folder / TASKS_FOLDER), make_trial(folder / WORK_FOLDER)]
        fd = os.open(made[0] / "stdout", os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        opened.append(fd)
        left = bytes(_TRIAL_BYTES)
        while left:
            left = left[os.write(fd, left) :]
        os.fsync(fd)
        opened += [os.dup(fd) for _ in range(_TRIAL_DESCRIPTORS)]
        words = ["/bin/sh", "-c", ":"]
        ended = subprocess.run(words, check=False, timeout=_TRIAL_SECONDS, cwd=made[1])
        return None if ended.returncode == 0 else f"a process tried here ended with {ended}"
    except (OSError, subprocess.SubprocessError) as error:
        return f"it cannot start tasks: {error}"
    finally:
        for fd in opened:
            os.close(fd)
        for trial in made:
            shutil.rmtree(trial, ignore_errors=True)
