"""Read the signs of a strain that may slow down all processes of this host: a hot or throttled
processor, too many processes, memory that is short, a network that loses packets."""

from collections.abc import Mapping
from glob import glob

PRESSURE_PERCENT = 25.0
LOST_SHARE = 0.01
_LEAST_SEGMENTS = 1000
_THROTTLES = "/sys/devices/system/cpu/cpu[0-9]*/thermal_throttle/core_throttle_count"


class HostStrain:
    """Keeps the sentence of the last look; "" while nothing strains the host."""

    def __init__(self, read: "Reader | None" = None) -> None:
        self._reader = read or Reader()
        self._before: Mapping[str, float] = {}
        self.sentence = ""

    def look(self) -> None:
        """Read the counters, and compare them with those of the last look."""
        now = self._reader.read()
        self.sentence, self._before = describe_strain(self._before, now), now


def describe_strain(before: Mapping[str, float], now: Mapping[str, float]) -> str:
    """Return in words what strains the host, from its counters of two looks."""
    words = []

    def grew(name: str) -> float:
        return max(0.0, now.get(name, 0.0) - before.get(name, now.get(name, 0.0)))

    if hot := grew("throttles"):
        words.append(f"its processor was throttled by heat {hot:.0f} times")
    for name, what in (("cpu", "a processor"), ("memory", "memory"), ("io", "its disk")):
        if (percent := now.get(name, 0.0)) >= PRESSURE_PERCENT:
            words.append(f"processes wait for {what} {percent:.0f} % of the time")
    sent, again = grew("segments"), grew("resent")
    if sent >= _LEAST_SEGMENTS and again / sent >= LOST_SHARE:
        words.append(f"{100 * again / sent:.0f} % of its TCP segments are sent again")
    if errors := grew("net_errors"):
        words.append(f"its network interfaces counted {errors:.0f} errors")
    return ", ".join(words)


class Reader:
    """Reads the counters of the kernel; what cannot be read is missing."""

    def read(self) -> dict[str, float]:
        """Return the counters by name: percentages of the last ten seconds, and counts since
        the boot."""
        found: dict[str, float] = {}
        for name in ("cpu", "memory", "io"):
            for line in _lines(f"/proc/pressure/{name}"):
                if line.startswith("some"):
                    found[name] = float(line.split("avg10=")[1].split()[0])
        names, values = list[str](), list[str]()
        for line in _lines("/proc/net/snmp"):
            if line.startswith("Tcp:"):
                names, values = values, line.split()[1:]
        tcp = dict(zip(names, values, strict=False))
        if "OutSegs" in tcp:
            found["segments"] = float(tcp["OutSegs"])
            found["resent"] = float(tcp["RetransSegs"])
        errors = [line.split(":")[1].split() for line in _lines("/proc/net/dev") if ":" in line]
        found["net_errors"] = sum(float(row[2]) + float(row[10]) for row in errors)
        counts = [_lines(path) for path in glob(_THROTTLES)]
        found["throttles"] = sum(float(lines[0]) for lines in counts if lines)
        return found


def _lines(path: str) -> list[str]:
    try:
        with open(path) as file:
            return file.read().splitlines()
    except OSError:
        return []
