"""Gather evidence before a kill: stacks, states, devices, beats, the end of the log; bounded, and
with secrets masked.

- Every step runs beside the others; a step that is late is left out, and the report says so. No
  step stops or harms the task: stacks are read without pausing it.
- Secrets are masked in everything that leaves the host, in command lines, too.
"""

import asyncio
import importlib.util
import logging
import os
import shutil
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

from holdfast.agent.offload import Asides, run_aside, run_bounded
from holdfast.agent.probes import Probe
from holdfast.agent.probes.tree import find_trees
from holdfast.agent.tasks.task import AgentTask
from holdfast.agent.uplink.calls import ControllerCalls
from holdfast.agent.uplink.logs import read_log_tail
from holdfast.core.facts import Trip
from holdfast.errors import HoldfastError, Unavailable
from holdfast.process.syscalls import read_boottime
from holdfast.version import name_install
from holdfast.wire.agent import Forensics
from holdfast.wire.beat import encode_beat

log = logging.getLogger("holdfast.agent.watch.forensics")

MAX_PROCESSES = 32
_MAX_SECTION_CHARS = 120_000
_MAX_THREADS = 64
_SEND_TRIES_SECONDS = 600.0
_STATUS_NAMES = "Name State PPid Threads VmRSS VmSwap SigBlk SigIgn SigCgt voluntary nonvol"
_STATUS_WORDS = tuple(_STATUS_NAMES.split())


def find_py_spy() -> list[str] | None:
    """Return the command that calls py-spy; None if it is not installed."""
    beside = Path(sys.executable).parent / "py-spy"
    if os.access(beside, os.X_OK):
        return [str(beside)]
    found = shutil.which("py-spy")
    if found:
        return [found]
    return [sys.executable, "-P", "-m", "py_spy"] if importlib.util.find_spec("py_spy") else None


def read_process_page(pid: int) -> str:
    """Return the facts of one process and its threads that /proc shows. Blocks, and may hang."""
    lines = [f"== pid {pid}: {_read(f'/proc/{pid}/cmdline').replace(chr(0), ' ').strip()[:500]}"]
    status = _read(f"/proc/{pid}/status").splitlines()
    lines += [line for line in status if line.startswith(_STATUS_WORDS)]
    threads = sorted(_list(f"/proc/{pid}/task"), key=int)
    for thread in threads[:_MAX_THREADS]:
        where = f"/proc/{pid}/task/{thread}"
        stat = _read(f"{where}/stat")
        state = stat[stat.rfind(")") + 2 : stat.rfind(")") + 3]
        call = _read(f"{where}/syscall").split(" ")[0].strip()
        lines.append(
            f"-- thread {thread} {_read(f'{where}/comm').strip()} state {state} in "
            f"{_read(f'{where}/wchan') or '?'} syscall {call or '?'}"
        )
        stack = _read(f"{where}/stack").strip()
        if stack:
            lines.append(stack)
    if len(threads) > _MAX_THREADS:
        lines.append(f"… and {len(threads) - _MAX_THREADS} more threads")
    return "\n".join(lines)


def _read(path: str) -> str:
    try:
        with open(path, "rb") as file:
            return file.read(65_536).decode(errors="replace")
    except OSError:
        return ""


def _list(path: str) -> list[str]:
    try:
        return os.listdir(path)
    except OSError:
        return []


def is_python(pid: int) -> bool:
    """Return True if py-spy can read the process."""
    try:
        name = os.path.basename(os.readlink(f"/proc/{pid}/exe"))
    except OSError:
        return False
    return name.startswith(("python", "pypy")) or "libpython" in _read(f"/proc/{pid}/maps")


class ForensicsSender:
    """Gathers evidence, and sends it in the background until the controller has it."""

    def __init__(self, calls: ControllerCalls, probe: Probe) -> None:
        self._calls = calls
        self._probe = probe
        self._sending = Asides()

    async def gather(self, task: AgentTask, trip: Trip, seconds: float) -> Forensics:
        """Gather evidence within `seconds`, send it in the background, and return it."""
        began_at = read_boottime()
        give_up_at = began_at + seconds
        sections = {
            "verdict": _describe_trip(trip),
            "beats": _describe_beats(task, began_at),
            "log tail": read_log_tail(task),
        }
        steps: dict[str, Callable[[], Awaitable[str]]] = {
            "processes": lambda: self._read_pages(task),
            "python stacks": lambda: self._dump_stacks(task, give_up_at - read_boottime()),
            "gpus": self._probe.describe_gpus,
            "memory": lambda: run_aside(_read_memory),
        }
        works = {title: asyncio.ensure_future(step()) for title, step in steps.items()}
        _, late = await asyncio.wait(works.values(), timeout=max(0.0, give_up_at - read_boottime()))
        for title, work in works.items():
            if work in late:
                work.cancel()
                sections[title] = f"(not there after {seconds:g} s)"
            elif work.exception() is not None:
                sections[title] = f"(failed: {work.exception()!r})"
            else:
                sections[title] = work.result()
        mask = task.redactor.mask_text
        masked = {title: _clip(mask(text)) for title, text in sections.items() if text}
        found = Forensics(
            key=task.key,
            reason=mask(trip.reason)[:4096],
            seconds=read_boottime() - began_at,
            sections=masked,
        )
        self._sending.start(self._send(found))
        return found

    async def _find_pids(self, task: AgentTask) -> list[int]:
        trees = await run_aside(lambda: find_trees({task.key: task.pid}, os.getppid()))
        return [entry.pid for entry in trees[task.key]][:MAX_PROCESSES]

    async def _read_pages(self, task: AgentTask) -> str:
        pids = await self._find_pids(task)
        # Each has its own thread, because a process whose /proc hangs must not hide the others.
        pages = [run_aside(partial(read_process_page, pid)) for pid in pids]
        if not pages:
            return "no process is left"
        await asyncio.wait(pages, timeout=2.0)
        return "\n\n".join(
            page.result() if page.done() else f"== pid {pid}: /proc does not answer"
            for pid, page in zip(pids, pages, strict=True)
        )

    async def _dump_stacks(self, task: AgentTask, seconds: float) -> str:
        py_spy = find_py_spy()
        if py_spy is None:
            return f"py-spy is not installed ({name_install('forensics')})"
        pids = [pid for pid in await self._find_pids(task) if is_python(pid)]
        if not pids:
            return "no Python process"
        each = max(0.5, seconds - 1.0)
        gate = asyncio.Semaphore(4)

        async def dump(pid: int) -> str:
            async with gate:
                argv = [*py_spy, "dump", "--nonblocking", "--pid", str(pid)]
                return (await run_bounded(argv, each))[1]

        return "\n\n".join(await asyncio.gather(*(dump(pid) for pid in pids)))

    async def _send(self, found: Forensics) -> None:
        pause = 0.5
        give_up_at = read_boottime() + _SEND_TRIES_SECONDS
        while True:
            try:
                await self._calls.send_forensics(found)
                return
            except Unavailable as error:
                if read_boottime() > give_up_at:
                    log.error(f"forensics of {found.key} are given up: {error}")
                    return
            except HoldfastError as error:
                log.error(f"the controller does not take the forensics of {found.key}: {error}")
                return
            await asyncio.sleep(pause)
            pause = min(2 * pause, 15.0)

    async def wait_until_sent(self, seconds: float) -> None:
        """Wait until all that is being sent has arrived, for `seconds` at most."""
        await self._sending.wait(seconds)


def _describe_trip(trip: Trip) -> str:
    lines = [f"{trip.watchdog} watchdog, exit code {trip.exit_code}", trip.reason]
    return "\n".join(lines + [f"{name}: {value}" for name, value in trip.evidence.items()])


def _describe_beats(task: AgentTask, now: float) -> str:
    lines = [f"{now - at:8.1f} s ago  {encode_beat(beat).decode()}" for at, beat in task.beats]
    beat = task.watch.last_beat
    if beat is not None:
        steps = f"last step {beat.step} of {beat.total}, {now - beat.at:.1f} s ago"
        lines.append(f"{steps}; section {task.watch.section}")
    return "\n".join(lines) or "it never beat"


def _read_memory() -> str:
    wanted = ("MemTotal", "MemFree", "MemAvailable", "Dirty", "Writeback:", "SwapTotal", "SwapFree")
    lines = [line for line in _read("/proc/meminfo").splitlines() if line.startswith(wanted)]
    for name in ("cpu", "io", "memory"):
        pressure = _read(f"/proc/pressure/{name}").strip()
        if pressure:
            lines.append(f"pressure on {name}: {pressure.splitlines()[0]}")
    return "\n".join([*lines, f"load: {_read('/proc/loadavg').strip()}"])


def _clip(text: str) -> str:
    if len(text) <= _MAX_SECTION_CHARS:
        return text
    half = _MAX_SECTION_CHARS // 2
    return f"{text[:half]}\n… {len(text) - 2 * half} characters left out …\n{text[-half:]}"
