"""The status of a run: as a value, as a line in the log, and as Prometheus metrics."""

import logging
import threading
import time

import msgspec

from holdfast.supervisor.line.bus import Bus
from holdfast.supervisor.rosters.host_roster import HostRoster
from holdfast.supervisor.rosters.process_table import ProcessTable

logger = logging.getLogger("holdfast.supervisor")


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """The present counts, and rates and times since the last status line (or the start).

    busy_fraction: the fraction of the time in which the bus's thread was busy. worst_loop_seconds:
    the longest turn of that thread, which is the longest wait of a heartbeat. lag_seconds: how far
    the reading was behind when it was measured last, once a second. messages_dropped: the number,
    since the start, of messages dropped in the script or in a process, because they were never
    read. disconnects: the number, since the start, of connections that ended: managers that left or
    went, peers that do not speak ZeroMQ, and peers cut off because their frame was too large.
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
            f"hosts {self.hosts_attached} attached, {self.hosts_lost} lost, "
            f"{self.hosts_waiting} waiting, {self.managers_idle} spare; "
            f"processes {self.processes_running}; in {self.messages_in_per_second:.0f} messages/s, "
            f"out {self.frames_out_per_second:.0f} frames/s; "
            f"busy {self.busy_fraction:.0%}, worst turn {self.worst_loop_seconds * 1000:.0f} ms, "
            f"reading {self.lag_seconds * 1000:.0f} ms behind"
        )
        if self.messages_dropped:
            text += f"; dropped {self.messages_dropped} messages that were never received"
        if self.disconnects:
            text += f"; {self.disconnects} disconnects"
        if self.refused:
            words = [f"{count} {word}" for word, count in sorted(self.refused.items())]
            text += "; refused " + ", ".join(words)
        return text


class StatusLine:
    """Reads the status, and logs it from a thread every `interval` seconds (None: never)."""

    def __init__(
        self, roster: HostRoster, crew: ProcessTable, bus: Bus, interval: float | None
    ) -> None:
        self._roster = roster
        self._crew = crew
        self._bus = bus
        self._interval = interval
        self._stop = threading.Event()
        # Where time and counters stood at the last line.
        self._at = time.monotonic()
        self._messages_in = 0
        self._frames_out = 0
        self._busy_seconds = 0.0

    def start(self) -> None:
        """Begin to log the status at each interval."""
        if self._interval is not None:
            threading.Thread(target=self._run, name="holdfast-status", daemon=True).start()

    def stop(self) -> None:
        """Stop logging the status."""
        self._stop.set()

    def _run(self) -> None:
        while not self._stop.wait(self._interval):
            logger.info("%s", self.read())
            load = self._bus.load
            self._at, self._messages_in = time.monotonic(), load.messages_in
            self._frames_out, self._busy_seconds = load.counted.frames_out, load.busy_seconds
            load.worst_seconds = 0.0

    def read(self) -> Status:
        """Read the counters while they change: each value is true, but the values are not of one
        instant."""
        hosts = list(self._roster.hosts.values())
        crew, load, counted = self._crew, self._bus.load, self._bus.load.counted
        seconds = max(1e-6, time.monotonic() - self._at)
        return Status(
            hosts_attached=sum(host.attached for host in hosts),
            hosts_lost=sum(host.connection_lost() for host in hosts),
            hosts_waiting=sum(not host.attached and not host.connection_lost() for host in hosts),
            managers_idle=len(self._roster.idle),
            processes_running=crew.running,
            messages_in_per_second=(load.messages_in - self._messages_in) / seconds,
            frames_out_per_second=(counted.frames_out - self._frames_out) / seconds,
            busy_fraction=min(1.0, (load.busy_seconds - self._busy_seconds) / seconds),
            worst_loop_seconds=load.worst_seconds,
            lag_seconds=counted.lag_seconds,
            refused=dict(load.refused + crew.refused),
            messages_dropped=crew.dropped,
            disconnects=counted.disconnects,
        )

    def read_counts(self) -> dict[str, float]:
        """Return the counters that only grow, counted since the start."""
        crew, load, counted = self._crew, self._bus.load, self._bus.load.counted
        hosts = list(self._roster.hosts.values())
        return {
            "hosts_lost": sum(host.connection_lost() for host in hosts),
            "messages_in": load.messages_in,
            "messages_dropped": crew.dropped,
            "frames_in": counted.frames_in,
            "frames_out": counted.frames_out,
            "frames_resent": counted.resent,
            "frames_unreachable": counted.unreachable,
            "disconnects": counted.disconnects,
            "busy_seconds": load.busy_seconds,
            "refused": (load.refused + crew.refused).total(),
        }

    def render_metrics(self) -> str:
        """Render the status in Prometheus' text format."""
        status = self.read()
        prefix = "holdfast_supervisor_"
        gauges = {
            ("hosts", 'state="attached"'): status.hosts_attached,
            ("hosts", 'state="lost"'): status.hosts_lost,
            ("hosts", 'state="waiting"'): status.hosts_waiting,
            ("hosts", 'state="spare"'): status.managers_idle,
            ("excluded_machines", ""): len(self._roster.excluded),
            ("processes_running", ""): status.processes_running,
            ("worst_loop_seconds", ""): status.worst_loop_seconds,
            ("lag_seconds", ""): status.lag_seconds,
        }
        counters = {
            (f"{name}_total", ""): value
            for name, value in self.read_counts().items()
            if name != "refused"
        }
        counters |= {
            ("refused_total", f'why="{why}"'): count
            for why, count in sorted(status.refused.items())
        }
        lines: list[str] = []
        for kind, found in (("gauge", gauges), ("counter", counters)):
            named = ""
            for (name, labels), value in found.items():
                if name != named:
                    lines.append(f"# TYPE {prefix}{name} {kind}")
                    named = name
                where = f"{{{labels}}}" if labels else ""
                lines.append(f"{prefix}{name}{where} {value:g}")
        return "\n".join(lines) + "\n"
