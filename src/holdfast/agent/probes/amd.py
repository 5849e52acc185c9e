"""Read AMD devices through sysfs, or `amd-smi` if sysfs lacks a figure. In the worker only
(PROBE-1).

The kernel has figures for each process: memory in `/sys/class/kfd`, engine time in
`/proc/PID/fdinfo`. Engine time leaves compute queues out, so that a process without engine time is
*unknown*, not idle; then only the busy figure of the whole device is left, which counts only for a
task that owns the whole host.
"""

import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any

from holdfast.agent.probes.devices import Device, DeviceProcess

_AMD_VENDOR = "0x1002"
_SMI_SECONDS = 4.0


class AmdReader:
    """Reads all AMD devices. root: the folder of /sys and /proc, "/" except in tests."""

    def __init__(self, root: str = "/") -> None:
        """Find the devices. Raises FileNotFoundError if there are none."""
        self._root = Path(root)
        cards = {}
        for card in (self._root / "sys/class/drm").glob("card[0-9]*"):
            folder = card / "device"
            if "-" not in card.name and _read_text(folder / "vendor") == _AMD_VENDOR:
                cards[os.path.basename(os.path.realpath(folder))] = folder
        # Virtual display functions have next to no memory of their own.
        total = "mem_info_vram_total"
        self._cards = [card for card in sorted(cards.items()) if _read_int(card[1] / total)]
        if not self._cards:
            raise FileNotFoundError("no AMD device")
        self._kfd_ids = self._find_kfd_ids()
        self._engine_ns: dict[tuple[int, str], tuple[float, int]] = {}

    def read_version(self) -> str:
        """Return the driver's version; "" for the driver that is part of the kernel."""
        return _read_text(self._root / "sys/module/amdgpu/version")

    def read(self, deep: bool = False) -> list[Device]:
        """Read every device; unknown values are None. deep: True to read PCI addresses and
        memory errors, too."""
        asked: dict[int, tuple[float | None, int | None]] | None = None
        devices = []
        for index, (address, folder) in enumerate(self._cards):
            percent = _read_int(folder / "gpu_busy_percent")
            used = _read_int(folder / "mem_info_vram_used")
            if percent is None or used is None:
                asked = asked if asked is not None else _ask_amd_smi()
                smi_percent, smi_used = asked.get(index, (None, None))
                if percent is None and smi_percent is not None:
                    percent = int(smi_percent)
                used = smi_used if used is None else used
            devices.append(
                Device(
                    index=index,
                    vendor="amd",
                    uuid=_read_text(folder / "unique_id") or address,
                    model=_read_text(folder / "product_name") or "AMD GPU",
                    memory_total_bytes=_read_int(folder / "mem_info_vram_total") or 0,
                    memory_used_bytes=used,
                    utilisation_percent=None if percent is None else float(percent),
                    temperature_celsius=_read_temperature(folder),
                    processes=self._read_processes(address),
                    lost="" if folder.is_dir() else f"the kernel has no device {address} any more",
                    pci=address if deep else "",
                    ecc_errors=_read_ecc(folder / "ras") if deep else None,
                )
            )
        return devices

    def _find_kfd_ids(self) -> dict[str, str]:
        """Return PCI address → the id under which the compute driver knows the device."""
        ids = {}
        for node in (self._root / "sys/class/kfd/kfd/topology/nodes").glob("*"):
            gpu_id = _read_text(node / "gpu_id")
            words = _read_words(node / "properties", " ")
            if gpu_id not in ("", "0") and "location_id" in words:
                place, domain = int(words["location_id"]), int(words.get("domain", "0"))
                bus, device = place >> 8 & 0xFF, place >> 3 & 0x1F
                ids[f"{domain:04x}:{bus:02x}:{device:02x}.{place & 7}"] = gpu_id
        return ids

    def _read_processes(self, address: str) -> list[DeviceProcess] | None:
        gpu_id = self._kfd_ids.get(address)
        folder = self._root / "sys/class/kfd/kfd/proc"
        if gpu_id is None or not folder.is_dir():
            return None
        processes = []
        for entry in folder.iterdir():
            used = _read_int(entry / f"vram_{gpu_id}")
            # A process with 0 bytes counts, because with memory shared with the CPU all have 0.
            if entry.name.isdigit() and used is not None:
                pid = int(entry.name)
                percent = self._read_engine_percent(pid, address)
                found = DeviceProcess(pid=pid, memory_bytes=used, utilisation_percent=percent)
                processes.append(found)
        return processes

    def _read_engine_percent(self, pid: int, address: str) -> float | None:
        """Return the busy share of the engines since the last call; None for zero, because
        compute queues are not counted."""
        total = 0
        clients = set()
        try:
            for entry in (self._root / f"proc/{pid}/fdinfo").iterdir():
                words = _read_words(entry, ":")
                client = words.get("drm-client-id", "").strip()
                if words.get("drm-pdev", "").strip() != address or client in clients:
                    continue
                clients.add(client)
                engines = [v.split() for k, v in words.items() if k.startswith("drm-engine-")]
                total += sum(int(time_ns[0]) for time_ns in engines if time_ns)
        except (OSError, ValueError):
            return None
        now = time.monotonic()
        before_at, before = self._engine_ns.get((pid, address), (now, total))
        self._engine_ns[(pid, address)] = (now, total)
        if now <= before_at or total <= before:
            return None
        return min(100.0, (total - before) / (now - before_at) / 1e7)


def _read_temperature(folder: Path) -> float | None:
    for path in sorted(folder.glob("hwmon/hwmon*/temp1_input")):
        millidegrees = _read_int(path)
        if millidegrees is not None:
            return millidegrees / 1000.0
    return None


def _read_ecc(folder: Path) -> int | None:
    """Return the uncorrectable errors (`ue: N`), summed over amdgpu's RAS files, one file for
    each block."""
    found = [_read_words(file, ":").get("ue", "").strip() for file in folder.glob("*_err_count")]
    counts = [int(text) for text in found if text.isdigit()]
    return sum(counts) if counts else None


def _ask_amd_smi() -> dict[int, tuple[float | None, int | None]]:
    """Ask the vendor's tool; return index → (busy percent, used bytes), nothing if it fails."""
    argv = ["amd-smi", "metric", "--usage", "--mem-usage", "--json"]
    nothing = subprocess.DEVNULL
    try:
        done = subprocess.run(
            argv, capture_output=True, timeout=_SMI_SECONDS, check=True, stdin=nothing
        )
        return parse_amd_smi(json.loads(done.stdout))
    except (OSError, subprocess.SubprocessError, ValueError):
        return {}


def parse_amd_smi(answer: Any) -> dict[int, tuple[float | None, int | None]]:
    """Read the output of `amd-smi metric --json`; missing parts are None."""
    if isinstance(answer, dict):
        answer = answer.get("gpu_data", [])
    found: dict[int, tuple[float | None, int | None]] = {}
    for item in answer if isinstance(answer, list) else []:
        if not isinstance(item, dict) or not isinstance(item.get("gpu"), int):
            continue
        percent = _find_number(item.get("usage"), "gfx_activity")
        megabytes = _find_number(item.get("mem_usage"), "used_vram")
        found[item["gpu"]] = (percent, None if megabytes is None else int(megabytes) << 20)
    return found


def _find_number(group: Any, name: str) -> float | None:
    value = group.get(name) if isinstance(group, dict) else None
    if isinstance(value, dict):
        value = value.get("value")
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _read_words(path: Path, separator: str) -> dict[str, str]:
    lines = (line.partition(separator) for line in _read_text(path).splitlines())
    return {name: value for name, found, value in lines if found}


def _read_text(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def _read_int(path: Path) -> int | None:
    try:
        return int(_read_text(path))
    except ValueError:
        return None
