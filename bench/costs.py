"""What a round costs each part: CPU time, and instructions where the kernel counts them.

A processor's time for the same work varies with its clock and its neighbours by a third and more;
the instructions it retires for it vary by a few percent.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from bench.figures import Line, spread
from bench.processes import TICKS_PER_SECOND, read_own_and_reaped_ticks

# linux/perf_event.h, and each architecture's table of calls.
_PERF_EVENT_OPEN = {"x86_64": 298, "aarch64": 241}
_ATTRIBUTES_BYTES = 64  # PERF_ATTR_SIZE_VER0
_INHERIT = 1 << 1
HARDWARE, SOFTWARE = 0, 1
INSTRUCTIONS = (HARDWARE, 1)  # PERF_COUNT_HW_INSTRUCTIONS
TASK_CLOCK = (SOFTWARE, 1)  # PERF_COUNT_SW_TASK_CLOCK, in nanoseconds: every kernel counts it

_KINDS = (("cpu_us", "CPU", "us"), ("kilo_instructions", "instructions", "thousand"))


class Cost(msgspec.Struct, frozen=True):
    """What one part cost for one unit of work: microseconds of CPU, and thousands of instructions,
    None where they are not counted."""

    cpu_us: float
    kilo_instructions: float | None = None


def _open_counter(thread: int, event: tuple[int, int], *, inherit: bool) -> int:
    """A descriptor that counts `event` of a thread, and with `inherit` of all that it starts from
    now on. Raises OSError where the kernel does not count it, or does not tell."""
    kind, config = event
    words = struct.pack("=IIQQQQQ", kind, _ATTRIBUTES_BYTES, config, 0, 0, 0, _INHERIT * inherit)
    attributes = ctypes.create_string_buffer(words, _ATTRIBUTES_BYTES)
    call = _PERF_EVENT_OPEN.get(platform.machine())
    if call is None:
        raise OSError(f"the number of perf_event_open on {platform.machine()} is not known")
    libc = ctypes.CDLL(None, use_errno=True)
    close_on_exec = 8
    descriptor = libc.syscall(
        ctypes.c_long(call), attributes, thread, -1, -1, ctypes.c_ulong(close_on_exec)
    )
    if descriptor < 0:
        number = ctypes.get_errno()
        if number in (errno.ENOENT, errno.EOPNOTSUPP):
            raise OSError(number, "this machine shows its kernel no such counter")
        raise OSError(number, os.strerror(number))
    return int(descriptor)


def open_counters(
    pids: Sequence[int], event: tuple[int, int] = INSTRUCTIONS, *, inherit: bool
) -> list[int]:
    """A counter for each thread of these processes, as descriptors to read eight bytes from and to
    close. Raises OSError where the kernel does not count `event`; what ended meanwhile is left
    out."""
    opened: list[int] = []
    try:
        for pid in pids:
            for thread in _list_threads(pid):
                try:
                    opened.append(_open_counter(thread, event, inherit=inherit))
                except ProcessLookupError:
                    pass  # it ended meanwhile
    except OSError:
        close_counters(opened)
        raise
    return opened


def _list_threads(pid: int) -> list[int]:
    try:
        return [int(entry.name) for entry in Path(f"/proc/{pid}/task").iterdir()]
    except FileNotFoundError:
        return []


def sum_counters(descriptors: Sequence[int]) -> int:
    """What all of them have counted until now."""
    return sum(int.from_bytes(os.read(each, 8), "little") for each in descriptors)


def close_counters(descriptors: Sequence[int]) -> None:
    """Stop counting."""
    for each in descriptors:
        os.close(each)


class Meter:
    """Costs of named parts over spans of work.

    parts: what lists the processes of each, {name: function}. What a process starts and reaps
    within the span is in its cost; but what those of the part `alone` start is a part of its own,
    `started`.
    """

    def __init__(
        self,
        parts: Mapping[str, Callable[[], Sequence[int]]],
        *,
        alone: str = "",
        started: str = "",
        event: tuple[int, int] = INSTRUCTIONS,
    ) -> None:
        self._parts, self._alone, self._started, self._event = parts, alone, started, event
        self.costs: dict[str, list[Cost]] = {}
        self.refused = ""
        """Why instructions are not counted, "" where they are."""

    @contextmanager
    def count(self, units: int) -> Iterator[None]:
        """Measure what runs within as the cost of so many units of work."""
        counters = self._open()
        ticks = self._read_ticks()
        try:
            yield
            ended, counted = self._read_ticks(), {k: sum_counters(v) for k, v in counters.items()}
        finally:
            for opened in counters.values():
                close_counters(opened)
        if self._alone in counted:
            counted[self._started] -= counted[self._alone]
        for part, spent in ended.items():
            cpu_us = (spent - ticks[part]) / TICKS_PER_SECOND * 1e6 / units
            instructions = counted[part] / 1000 / units if counted else None
            self.costs.setdefault(part, []).append(Cost(cpu_us, instructions))

    def _read_ticks(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for part, list_pids in self._parts.items():
            pairs = [read_own_and_reaped_ticks(pid) for pid in list_pids()]
            own, reaped = (sum(pair[n] for pair in pairs) for n in (0, 1))
            if part == self._alone:
                found[part], found[self._started] = own, reaped
            else:
                found[part] = own + reaped
        return found

    def _open(self) -> dict[str, list[int]]:
        opened: dict[str, list[int]] = {}
        try:
            for part, list_pids in self._parts.items():
                pids = list_pids()
                if part == self._alone:
                    opened[part] = open_counters(pids, self._event, inherit=False)
                    opened[self._started] = open_counters(pids, self._event, inherit=True)
                else:
                    opened[part] = open_counters(pids, self._event, inherit=True)
        except OSError as error:
            self.refused = error.strerror or str(error)
            for each in opened.values():
                close_counters(each)
            return {}
        return opened


def list_cost_lines(
    what: str, meter: Meter, limit_name: str, limit: Meter, most: float | None = None
) -> Iterator[Line]:
    """A row for each part of `meter`, then one for all of it beside all of `limit`: of CPU time,
    whose budget is `most` times that of `limit`, and of instructions where both were counted."""
    counted = not (meter.refused or limit.refused)
    for field, kind, unit in _KINDS if counted else _KINDS[:1]:
        for part, costs in meter.costs.items():
            found = [getattr(each, field) for each in costs]
            yield Line(what=f"{what}: {kind}, {part}", unit=unit, value=spread(found))
        all_parts, bare = spread(_sum_parts(meter, field)), spread(_sum_parts(limit, field))
        times = most if field == "cpu_us" else None
        yield Line(
            what=f"{what}: {kind}, all",
            unit=unit,
            value=all_parts,
            limit_name=limit_name,
            limit=bare,
            budget="" if times is None else f"<= {times:g} x",
            met=None if times is None else all_parts.median <= times * bare.median,
        )


def describe_refusal(*meters: Meter) -> tuple[str, ...]:
    """A note where instructions were not counted."""
    refused = next((meter.refused for meter in meters if meter.refused), "")
    return (f"Instructions are not counted here: {refused}.",) if refused else ()


def _sum_parts(meter: Meter, field: str) -> list[float]:
    rounds = zip(*meter.costs.values(), strict=True)
    return [sum(getattr(each, field) for each in costs) for costs in rounds]
