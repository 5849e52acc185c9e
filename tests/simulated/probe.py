"""Read made-up samples from a file: for tests and demonstrations, never for real work.

The file holds JSON lines, each `{"job": "<id>" | null, "tree": {…}, "gpus": [{…}],
"owns_whole_box": false, "faults": {…}, "kernel": {…}}`. The fields of "tree" and "gpus" are those
of `core.watchdogs.signals`. "faults" (read at the task's end) and "kernel" (while it runs) are
`DeviceFaults`; the job's last line counts for both. Each sample of a task uses the next line for
its job (or for null), and after the last line that line again. The file is read anew at every
sample, so that a test can change the readings.
"""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from holdfast.agent.probes import Probed, Sampled
from holdfast.agent.probes.devices import Device
from holdfast.agent.probes.faults import DeviceFaults, DeviceMarks
from holdfast.core.gpus import Gpu
from holdfast.core.ids import TaskKey
from holdfast.core.watchdogs import GpuReading, Reading, TreeReading
from holdfast.process.syscalls import read_boottime

log = logging.getLogger("holdfast.agent.probes")


class _Line(msgspec.Struct, frozen=True):
    """One line of the script. job: the id of the job that the line is for; None for all jobs."""

    job: str | None = None
    tree: TreeReading = TreeReading()
    gpus: tuple[GpuReading, ...] = ()
    owns_whole_box: bool = False
    faults: DeviceFaults = DeviceFaults()
    kernel: DeviceFaults = DeviceFaults()


def _select(lines: list[_Line], task: Probed) -> list[_Line]:
    return [line for line in lines if line.job in (None, task.key.job_id)]


class ScriptedProbe:
    """Reads tasks from a script."""

    kind: Literal["real", "scripted"] = "scripted"

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self._taken: dict[TaskKey, int] = {}
        log.warning(
            f"SCRIPTED PROBE: watchdogs judge by {path}, not by what tasks really do. This is for "
            "tests only; no real work is safe on this host."
        )

    async def find_gpus(self) -> list[Gpu]:
        """Return no devices, because a script has none; the operator declares them."""
        return []

    async def read_devices(self) -> list[Device] | None:
        """Return no devices, because a script has none."""
        return []

    async def sample(self, tasks: Sequence[Probed]) -> Mapping[TaskKey, Sampled]:
        """Return the reading in the next line of each task."""
        lines = self._read_lines()
        found = {}
        for task in tasks:
            mine = _select(lines, task)
            if mine:
                number = self._taken.get(task.key, 0)
                self._taken[task.key] = number + 1
                line = mine[min(number, len(mine) - 1)]
                reading = Reading(at=read_boottime(), gpus=line.gpus, tree=line.tree)
                found[task.key] = Sampled(reading, line.owns_whole_box)
        return found

    def _read_lines(self) -> list[_Line]:
        try:
            lines = self._path.read_bytes().splitlines()
            return [msgspec.json.decode(line, type=_Line) for line in lines if line.strip()]
        except (OSError, msgspec.MsgspecError) as error:
            log.error(f"the probe's script cannot be read: {error}")
            return []

    async def mark_devices(self, gpus: Sequence[int]) -> DeviceMarks | None:
        """Return empty marks, because the script alone names the faults."""
        return DeviceMarks()

    async def find_faults(
        self, task: Probed, marks: DeviceMarks, started_at: float
    ) -> DeviceFaults:
        """Return the faults at the end, in the last line for the task's job."""
        mine = _select(self._read_lines(), task)
        return mine[-1].faults if mine else DeviceFaults()

    async def hear_kernel(
        self, task: Probed, marks: DeviceMarks, started_at: float
    ) -> DeviceFaults:
        """Return the faults while the task runs, in the last line for its job."""
        mine = _select(self._read_lines(), task)
        return mine[-1].kernel if mine else DeviceFaults()

    async def describe_gpus(self) -> str:
        """Return a sentence, because there are no devices to describe."""
        return "a scripted probe has no devices"

    def forget(self, key: TaskKey) -> None:
        """Forget how many lines of a task were used."""
        self._taken.pop(key, None)

    async def close(self) -> None:
        """Do nothing, because a script has no worker."""


def open_probe(path: str) -> ScriptedProbe:
    """Return the probe of a host whose config says `probe: scripted:tests.simulated.probe:PATH`."""
    return ScriptedProbe(path)
