"""Physical signals, and their verdict on a task: busy, idle, or unknown.

SIGNAL-1  Unreadable is not idle. A value that could not be read is None, and a window that holds
          one never says idle.
SIGNAL-2  A box-wide reading counts only where the task owns the whole box; elsewhere it is
          unreadable, both ways.
SIGNAL-3  CPU time is no proof of work for a task with GPUs: a collective that waits for a dead peer
          spins a core at 100 %. Bytes read and written, and host memory that moves, are proof at
          the rates of SIGNAL-4. Nor does an idle CPU side make up for a GPU that cannot be read.
SIGNAL-4  I/O and host memory prove work by their rate between two neighbouring readings, never by
          their sum over a window: a log line now and then adds up to any sum.
SIGNAL-5  Where a device's memory cannot be read but its utilisation can (memory shared with the
          CPU), the resident memory of the task's tree is the memory that must be still.
"""

from __future__ import annotations

import math
from enum import StrEnum

import msgspec

from holdfast.core.settings.watch import WatchSettings
from holdfast.core.watchdogs.verdicts import Evidence

MB = 1024 * 1024
_LEAST_RATE_SECONDS = 1.0  # two readings closer than this would make a line of text a high rate


class Signal(StrEnum):
    """The verdict of a window of readings."""

    BUSY = "busy"
    IDLE = "idle"
    UNKNOWN = "unknown"


class GpuReading(msgspec.Struct, frozen=True, kw_only=True):
    """One device at one instant. None is "could not be read".

    utilisation_percent, memory_bytes: use by the task's own processes; with `box_wide`, by all.
    """

    index: int
    utilisation_percent: float | None = None
    memory_bytes: int | None = None
    box_wide: bool = False


class TreeReading(msgspec.Struct, frozen=True, kw_only=True):
    """The task's process tree at one instant. None is "could not be read".

    cpu_seconds, io_bytes: counters since the start, over the tree; io_bytes has what was read,
    written, sent and received. rss_bytes: resident memory now.
    stopped: how many of its processes a signal or a debugger has stopped.
    """

    cpu_seconds: float | None = None
    io_bytes: int | None = None
    rss_bytes: int | None = None
    stopped: int = 0


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """Everything read about a task at `at`. Empty `gpus` of a GPU task: nothing could be read."""

    at: float
    gpus: tuple[GpuReading, ...] = ()
    tree: TreeReading = TreeReading()


class Span(msgspec.Struct, frozen=True):
    """The lowest and the highest of some values."""

    low: float
    high: float

    def widen(self, value: float) -> Span:
        """Return the span that also holds `value`."""
        return Span(min(self.low, value), max(self.high, value))


class SignalWindow(msgspec.Struct, frozen=True, kw_only=True):
    """A run of readings, in constant space however long the window is.

    since: when the window began, at or before its first reading. at: its last reading.
    gpu_known, tree_known: every reading so far was whole.
    gpu_percent: highest utilisation of any device. gpu_memory: a span per device, and of their sum.
    cpu_percent, io_mb_s, memory_mb_s: highest CPU use (of one core), I/O and movement of resident
    memory between two neighbours; None until there were two.
    excused_seconds: how long the tree worked beside idle GPUs (`excuse`).
    """

    since: float
    at: float
    samples: int = 1
    gpu_known: bool = True
    tree_known: bool = True
    gpu_percent: float | None = None
    gpu_memory: dict[str, Span] = {}
    cpu_percent: float | None = None
    io_mb_s: float | None = None
    memory_mb_s: float | None = None
    excused_seconds: float = 0.0
    last: TreeReading = TreeReading()

    @property
    def gpu_moved_mb(self) -> float:
        """Return how far device memory moved, in MB: the most of any device, or of their sum."""
        return max((s.high - s.low for s in self.gpu_memory.values()), default=0.0) / MB


class Judgement(msgspec.Struct, frozen=True):
    """The verdict on a window: a signal, a phrase for it, and the figures behind it. by_tree: a
    task with GPUs counts as busy only because of its processes' I/O or memory."""

    signal: Signal
    words: str
    evidence: Evidence
    by_tree: bool = False


def _known(value: float | None) -> float | None:
    """Return the value, or None for an impossible one (negative, NaN, infinite), which counts as
    unreadable."""
    return value if value is not None and math.isfinite(value) and value >= 0 else None


def open_window(
    reading: Reading, gpus: int, owns_whole_box: bool, since: float | None = None
) -> SignalWindow:
    """Return the window that begins with `reading`; `gpus` is how many devices the task has."""
    begun = reading.at if since is None else since
    empty = SignalWindow(since=begun, at=reading.at, samples=0)
    return _take(empty, reading, gpus, owns_whole_box)


def extend_window(
    window: SignalWindow, reading: Reading, gpus: int, owns_whole_box: bool
) -> SignalWindow:
    """Return the window with one more reading, which is later than its last."""
    return _take(_take_differences(window, reading), reading, gpus, owns_whole_box)


def excuse(window: SignalWindow, seconds: float, worth: float) -> SignalWindow:
    """Move the window's begin by `worth` times the `seconds` in which the process tree just worked,
    and drop the rates that showed this work (HEALTH-3)."""
    since = min(window.at, window.since + worth * seconds)
    spent = window.excused_seconds + seconds if since < window.at else 0.0
    return msgspec.structs.replace(
        window, since=since, io_mb_s=None, memory_mb_s=None, excused_seconds=spent
    )


def _take_differences(window: SignalWindow, reading: Reading) -> SignalWindow:
    """Add the rates between two neighbouring readings: CPU time, I/O and memory (SIGNAL-4)."""
    seconds = reading.at - window.at
    before, now = window.last, reading.tree
    cpu = _grow(before.cpu_seconds, now.cpu_seconds)
    moved = _grow(before.io_bytes, now.io_bytes)
    rss_before, rss_now = _known(before.rss_bytes), _known(now.rss_bytes)
    known = window.tree_known and cpu is not None and moved is not None and seconds > 0
    percent, io_rate, memory_rate = window.cpu_percent, window.io_mb_s, window.memory_mb_s
    if seconds > 0:
        mb_seconds = MB * max(seconds, _LEAST_RATE_SECONDS)
        if cpu is not None:
            percent = max(percent or 0.0, 100.0 * cpu / seconds)
        if moved is not None:
            io_rate = max(io_rate or 0.0, moved / mb_seconds)
        if rss_before is not None and rss_now is not None:
            memory_rate = max(memory_rate or 0.0, abs(rss_now - rss_before) / mb_seconds)
    return msgspec.structs.replace(
        window, cpu_percent=percent, io_mb_s=io_rate, memory_mb_s=memory_rate, tree_known=known
    )


def _grow(before: float | None, now: float | None) -> float | None:
    """Return by how much a counter grew. None: the counter was unreadable, or it fell because a
    process ended and its share is missing."""
    before, now = _known(before), _known(now)
    return None if before is None or now is None or now < before else now - before


def _take(window: SignalWindow, reading: Reading, gpus: int, owns_whole_box: bool) -> SignalWindow:
    """Add the values of one reading, without the rates between this reading and the reading
    before."""
    seen = [g for g in reading.gpus if owns_whole_box or not g.box_wide]  # SIGNAL-2
    gpu_known = window.gpu_known and len({g.index for g in seen}) >= gpus
    peak, memory, total = window.gpu_percent, dict(window.gpu_memory), 0.0
    for gpu in seen:
        percent, used = _known(gpu.utilisation_percent), _known(gpu.memory_bytes)
        if percent is not None:
            peak = max(peak or 0.0, percent)
        if used is not None:
            name, total = str(gpu.index), total + used
            memory[name] = memory[name].widen(used) if name in memory else Span(used, used)
        # SIGNAL-5: where the memory of a device cannot be read, that of the tree stands for it.
        readable = used is not None or _known(reading.tree.rss_bytes) is not None
        gpu_known = gpu_known and percent is not None and readable
    if gpu_known and seen:
        memory["sum"] = memory["sum"].widen(total) if "sum" in memory else Span(total, total)
    tree = reading.tree
    resident = _known(tree.rss_bytes)
    counters = (_known(tree.cpu_seconds), _known(tree.io_bytes))
    whole = resident is not None and None not in counters
    return msgspec.structs.replace(
        window,
        at=reading.at,
        samples=window.samples + 1,
        gpu_known=gpu_known,
        tree_known=window.tree_known and whole,
        gpu_percent=peak,
        gpu_memory=memory,
        last=tree,
    )


def judge(window: SignalWindow, settings: WatchSettings, gpus: int) -> Judgement:
    """Return the window's verdict on a task with `gpus` devices (0: by its process tree alone).

    Busy if any proof of work is there; idle only if everything needed is known and still. For a GPU
    task the needed readings are its GPUs' utilisation and memory, and the process tree can only
    prove work (SIGNAL-3); for another they are CPU time, I/O and memory of the tree.
    """
    evidence: Evidence = {
        "window_seconds": round(window.at - window.since, 3),
        "samples": window.samples,
        "cpu_percent": _round(window.cpu_percent),
        "io_mb_s": _round(window.io_mb_s),
        "memory_mb_s": _round(window.memory_mb_s),
    }
    if gpus:
        evidence["gpu_percent"] = window.gpu_percent
        evidence["gpu_memory_moved_mb"] = round(window.gpu_moved_mb, 3)
    if window.excused_seconds:
        evidence["excused_seconds"] = round(window.excused_seconds, 3)
    signal, words, by_tree = _weigh(window, settings, gpus)
    if window.last.stopped and signal is not Signal.BUSY:
        evidence["stopped_processes"] = window.last.stopped
        are = "is" if window.last.stopped == 1 else "are"
        words = f"{words}; {window.last.stopped} of its processes {are} stopped (state T)"
    evidence["signal"] = str(signal)
    return Judgement(signal, words, evidence, by_tree and gpus > 0)


def _round(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


def _weigh(window: SignalWindow, settings: WatchSettings, gpus: int) -> tuple[Signal, str, bool]:
    if gpus:
        if window.gpu_percent is not None and window.gpu_percent > settings.gpu_idle_percent:
            return Signal.BUSY, f"its GPU is at {window.gpu_percent:.0f} %", False
        if window.gpu_moved_mb > settings.gpu_memory_moving_mb:
            return Signal.BUSY, f"its GPU memory moved by {window.gpu_moved_mb:.0f} MB", False
    elif window.cpu_percent is not None and window.cpu_percent > settings.cpu_idle_percent:
        return Signal.BUSY, f"its processes use {window.cpu_percent:.0f} % of a core", False
    io_rate, memory_rate = window.io_mb_s or 0.0, window.memory_mb_s or 0.0
    if io_rate > settings.io_moving_mb_per_second:
        return (
            Signal.BUSY,
            f"its processes moved {io_rate:.1f} MB/s through files and sockets",
            True,
        )
    if memory_rate > settings.memory_moving_mb_per_second:
        return Signal.BUSY, f"its processes' memory moved by {memory_rate:.1f} MB/s", True
    if gpus:
        if window.gpu_known:
            still = f"its GPU is at {window.gpu_percent or 0:.0f} % and its memory is still"
            return Signal.IDLE, still, False
        return Signal.UNKNOWN, "its GPU cannot be read", False
    if window.tree_known and window.cpu_percent is not None:
        still = f"its processes use {window.cpu_percent:.1f} % of a core and move no data"
        return Signal.IDLE, still, False
    return Signal.UNKNOWN, "its processes cannot be measured", False
