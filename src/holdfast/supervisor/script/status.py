"""What is going on: one status line at an interval, the same as a value, and as Prometheus
metrics."""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING

import msgspec

from holdfast.supervisor.line.bus import Bus
from holdfast.supervisor.script.roster import HostRoster
from holdfast.supervisor.script.roster_crew import CrewRoster

if TYPE_CHECKING:
    from holdfast.supervisor.script.context import Context

logger = logging.getLogger("holdfast.supervisor")


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """Counts now; rates and times since the last status line (or the start).

    busy_fraction: of the bus's thread. worst_loop_seconds: its longest turn; a heartbeat waits that
    long at worst.
    lag_seconds: how far the reading was behind what came when it was tried last, once a second.
    messages_dropped: since the start, because nobody received them, in the script or in a process.
    disconnects: since the start; of managers that left or went, and of whoever speaks no ZeroMQ or
    sends a frame so large that the connection is cut.
    """

    hosts_attached: int
    hosts_lost: int
    hosts_waiting: int
    managers_idle: int
    processes_running: int
    messages_in_per_second: float
    frames_out_per_second: float
    busy_fraction: float
    worst_loop_seconds: float
    lag_seconds: float
    refused: dict[str, int]
    messages_dropped: int = 0
    disconnects: int = 0

    def __str__(self) -> str:
        text = (
            f"hosts {self.hosts_attached} attached, {self.hosts_lost} lost, {self.hosts_waiting} "
            "waiting, "
            f"{self.managers_idle} spare; processes {self.processes_running}; "
            f"in {self.messages_in_per_second:.0f} messages/s, out "
            f"{self.frames_out_per_second:.0f} frames/s; "
            f"busy {self.busy_fraction:.0%}, worst turn {self.worst_loop_seconds * 1000:.0f} ms, "
            f"reading {self.lag_seconds * 1000:.0f} ms behind"
        )
        if self.messages_dropped:
            text += f"; dropped {self.messages_dropped} messages that nobody received"
        if self.disconnects:
            text += f"; {self.disconnects} disconnects"
        if self.refused:
            text += "; refused " + ", ".join(
                f"{count} {word}" for word, count in sorted(self.refused.items())
            )
        return text


class RateWindow:
    """Where the counters stood when the last line was written."""

    def __init__(self) -> None:
        self.at = time.monotonic()
        self.messages_in = 0
        self.frames_out = 0
        self.busy_seconds = 0.0

    def move(self, bus: Bus) -> None:
        """Begin the next one."""
        load = bus.load
        self.at = time.monotonic()
        self.messages_in, self.frames_out, self.busy_seconds = (
            load.messages_in,
            load.frames_out,
            load.busy_seconds,
        )
        load.worst_seconds = 0.0


def read_status(roster: HostRoster, crew: CrewRoster, bus: Bus, window: RateWindow) -> Status:
    """Put it together. Counters are read while they move: each is true, together they are a moment
    apart."""
    hosts = list(roster.hosts.values())
    load = bus.load
    seconds = max(1e-6, time.monotonic() - window.at)
    refused = bus.fleet.refused + bus.gate.refused + crew.refused
    return Status(
        hosts_attached=sum(host.attached for host in hosts),
        hosts_lost=sum(host.connection_lost() for host in hosts),
        hosts_waiting=sum(not host.attached and not host.connection_lost() for host in hosts),
        managers_idle=len(roster.idle),
        processes_running=crew.running,
        messages_in_per_second=(load.messages_in - window.messages_in) / seconds,
        frames_out_per_second=(load.frames_out - window.frames_out) / seconds,
        busy_fraction=min(1.0, (load.busy_seconds - window.busy_seconds) / seconds),
        worst_loop_seconds=load.worst_seconds,
        lag_seconds=bus.probe.seconds,
        refused=dict(refused),
        messages_dropped=crew.dropped,
        disconnects=bus.gate.disconnects,
    )


class StatusLine:
    """A thread that logs the status at an interval; `interval` None is never."""

    def __init__(self, context: Context, interval: float | None) -> None:
        self.window = RateWindow()
        self._context = context
        self._interval = interval
        self._stop = threading.Event()

    def start(self) -> None:
        """Begin."""
        if self._interval is not None:
            threading.Thread(target=self._run, name="holdfast-status", daemon=True).start()

    def stop(self) -> None:
        """Write no more lines."""
        self._stop.set()

    def _run(self) -> None:
        while not self._stop.wait(self._interval):
            logger.info("%s", self._context.status())
            self.window.move(self._context._bus)


def render_metrics(status: Status, roster: HostRoster, bus: Bus) -> str:
    """Prometheus' text format."""
    load = bus.load
    gauges = {
        ("holdfast_supervisor_hosts", 'state="attached"'): status.hosts_attached,
        ("holdfast_supervisor_hosts", 'state="lost"'): status.hosts_lost,
        ("holdfast_supervisor_hosts", 'state="waiting"'): status.hosts_waiting,
        ("holdfast_supervisor_hosts", 'state="spare"'): status.managers_idle,
        ("holdfast_supervisor_excluded_machines", ""): len(roster.excluded),
        ("holdfast_supervisor_processes_running", ""): status.processes_running,
        ("holdfast_supervisor_worst_loop_seconds", ""): status.worst_loop_seconds,
        ("holdfast_supervisor_lag_seconds", ""): status.lag_seconds,
    }
    counters = {
        ("holdfast_supervisor_messages_in_total", ""): load.messages_in,
        ("holdfast_supervisor_messages_dropped_total", ""): status.messages_dropped,
        ("holdfast_supervisor_frames_in_total", ""): load.frames_in,
        ("holdfast_supervisor_frames_out_total", ""): load.frames_out,
        ("holdfast_supervisor_frames_resent_total", ""): bus.fleet.resent,
        ("holdfast_supervisor_frames_unreachable_total", ""): load.unreachable,
        ("holdfast_supervisor_disconnects_total", ""): bus.gate.disconnects,
        ("holdfast_supervisor_busy_seconds_total", ""): load.busy_seconds,
    }
    counters |= {
        ("holdfast_supervisor_refused_total", f'why="{why}"'): count
        for why, count in sorted(status.refused.items())
    }
    lines: list[str] = []
    for kind, found in (("gauge", gauges), ("counter", counters)):
        named = ""
        for (name, labels), value in found.items():
            if name != named:
                lines.append(f"# TYPE {name} {kind}")
                named = name
            lines.append(f"{name}{{{labels}}} {value:g}" if labels else f"{name} {value:g}")
    return "\n".join(lines) + "\n"
