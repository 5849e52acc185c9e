"""Read from an executor's place file which call runs, and choose how that call is watched.

PLACE-1  Each call is watched anew: its time, its silence and its evidence begin when it begins, and
         beats before that do not count. The call is watched for stalls from its own first beat,
         because a call that only waits sends none; or from its beginning, if its function or its
         model names how long a call may be silent.
PLACE-2  While a model is loaded only the time of the loading counts, by the model's own limit, and
         while one is unloaded only that time, by the limit of every unloader, because an unloader
         that hangs would else hold its GPU as long as a loading may take; an executor that waits for calls
         is not watched.
PLACE-3  An agent that takes over goes on with the watch of a call that still runs.
"""

import os
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from holdfast.agent.calls.executor_paths import PLACE_FILE
from holdfast.agent.tasks.task import AgentTask
from holdfast.core.ids import TaskKey
from holdfast.core.settings.watch import WatchSettings
from holdfast.wire.calls import (
    PHASE_CALLING,
    PHASE_IDLE,
    PHASE_LOADING,
    PHASE_UNLOADING,
    PLACE_BYTES,
    PLACE_FORMAT,
    Batch,
    ModelLimits,
    SetInfo,
)

LOAD_SECONDS, UNLOAD_SECONDS = 1800.0, 300.0
_TRIES = 8


class Place(msgspec.Struct, frozen=True):
    """The place of an executor, read from its place file.

    batch, position: the call. phase: idle, loading a model, calling. calls: the number of calls
    that began so far. seconds: the time since this phase began.
    """

    batch: int = 0
    position: int = 0
    phase: int = PHASE_IDLE
    calls: int = 0
    seconds: float = 0.0

    @property
    def mark(self) -> tuple[int, int, int, int]:
        """Return a value that stays the same while the same phase of the same call lasts."""
        return self.batch, self.position, self.phase, self.calls


def read_place(task_folder: Path) -> Place | None:
    """Read from an executor's place file which call it runs. Return None if there is no such file,
    or if the executor was killed while it wrote."""
    try:
        fd = os.open(task_folder / PLACE_FILE, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        for _ in range(_TRIES):
            data, again = os.pread(fd, PLACE_BYTES, 0), os.pread(fd, 8, 0)
            if len(data) < PLACE_BYTES:
                return None
            number, batch, position, phase, calls, began_at, _ = struct.unpack(PLACE_FORMAT, data)
            if number % 2 == 0 and data[:8] == again:
                seconds = max(0.0, time.monotonic() - began_at) if began_at else 0.0
                return Place(batch, position, phase, calls, seconds)
    finally:
        os.close(fd)
    return None


def choose_watch(
    phase: int, own: WatchSettings, info: SetInfo | None, limits: ModelLimits
) -> WatchSettings:
    """Return the settings by which an executor is watched in a phase. own: the settings of its
    job. info: the set of the running call."""
    if phase == PHASE_LOADING:
        seconds = limits.load_seconds or LOAD_SECONDS
        return msgspec.structs.replace(own, time_limit_seconds=seconds)
    if phase == PHASE_UNLOADING:
        return msgspec.structs.replace(own, time_limit_seconds=UNLOAD_SECONDS)
    if phase != PHASE_CALLING or info is None:
        return own
    watch, stall = info.watch, limits.stall_seconds
    if stall is None:
        return watch
    if stall == 0:
        return msgspec.structs.replace(watch, stall_watch=False)
    return msgspec.structs.replace(
        watch,
        stall_timeout_seconds=_lengthen(watch.stall_timeout_seconds, stall),
        silence_limit_seconds=_lengthen(watch.silence_limit_seconds, stall),
    )


def names_stall(info: SetInfo, limits: ModelLimits) -> bool:
    """Return True if a function, or its model, names how long a call may be silent."""
    return isinstance(info.spec.stall_timeout_seconds, (int, float)) or bool(limits.stall_seconds)


def _lengthen(seconds: float | None, least: float) -> float | None:
    return None if seconds is None else max(seconds, least)


@dataclass(eq=False)
class CallWatches:
    """Keeps the watch of each executor at its running call. batch: finds a batch that was sent
    to an executor. limits: finds the limits of a model of an executor."""

    batch: Callable[[TaskKey, int], Batch | None]
    limits: Callable[[TaskKey, str], ModelLimits]
    _seen: dict[TaskKey, tuple[int, int, int, int]] = field(default_factory=dict)

    def look(self, task: AgentTask, now: float) -> bool:
        """Read which call a task runs, before the task is judged. Return False if it is no
        executor."""
        order = task.order
        if order is None or not order.executor:
            return False
        place = read_place(task.folder)
        if place is None or task.watch.trip is not None:
            return True
        settings, named = self._find_settings(task, place, order.watch)
        first = task.key not in self._seen
        same = self._seen.get(task.key, tuple(task.saved.place)) == place.mark
        self._seen[task.key] = place.mark
        if same:
            if task.watch.settings != settings:
                task.watch.change_settings(now, settings)  # PLACE-3, or a late set
                if named:
                    task.watch.beat(now)
            return True
        task.saved.place, task.dirty = list(place.mark), True
        began_at = now - place.seconds
        task.watch.renew(now if first else began_at, began_at, settings)
        if named:
            task.watch.beat(began_at if not first else now)
        return True

    def _find_settings(
        self, task: AgentTask, place: Place, own: WatchSettings
    ) -> tuple[WatchSettings, bool]:
        """Return the settings by which an executor is watched now, and True if it is watched for
        stalls before its first beat (PLACE-1)."""
        info, limits = None, ModelLimits()
        batch = self.batch(task.key, place.batch) if place.batch else None
        if batch is not None and place.position < len(batch.calls):
            info = batch.sets[batch.calls[place.position].set]
            if batch.model is not None:
                limits = self.limits(task.key, batch.model)
        named = place.phase == PHASE_CALLING and info is not None and names_stall(info, limits)
        return choose_watch(place.phase, own, info, limits), named

    def forget(self, key: TaskKey) -> None:
        """Forget a task that ended."""
        self._seen.pop(key, None)
