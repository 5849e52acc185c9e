"""AMD devices through sysfs, or `amd-smi` where sysfs says nothing. Runs in the probe's worker
process only (PROBE-1).

Per process there are the kernel's own figures: memory in `/sys/class/kfd`, and what
`/proc/PID/fdinfo` says of a device's engines. Compute queues do not show in the latter, so a
process without engine time is *unknown*, not idle; the busy figure of the whole device is then what
is left, and it counts only for a task that owns the box.
"""

from __future__ import annotations

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
    """Reads all AMD devices. `root` is "/" but in tests."""

    def __init__(self, root: str = "/") -> None:
        """Raises FileNotFoundError where there is none."""
        self._root = Path(root)
        cards = {}
        for card in (self._root / "sys/class/drm").glob("card[0-9]*"):
            folder = card / "device"
            if "-" not in card.name and _read_text(folder / "vendor") == _AMD_VENDOR:
                cards[os.path.basename(os.path.realpath(folder))] = folder
        # Virtual display functions have no memory of their own to speak of.
        self._cards = [
            (address, folder)
            for address, folder in sorted(cards.items())
            if _read_int(folder / "mem_info_vram_total")
        ]
        if not self._cards:
            raise FileNotFoundError("no AMD device")
        self._kfd_ids = self._find_kfd_ids()
        self._engine_ns: dict[tuple[int, str], tuple[float, int]] = {}

    def read(self, deep: bool = False) -> list[Device]:
        """Read every device; what nobody says is None. deep: also what is only wanted now and
        then."""
        asked: dict[int, tuple[float | None, int | None]] | None = None
        devices = []
        for index, (address, folder) in enumerate(self._cards):
            percent = _read_int(folder / "gpu_busy_percent")
            used = _read_int(folder / "mem_info_vram_used")
            if percent is None or used is None:
                asked = asked if asked is not None else _ask_amd_smi()
                smi_percent, smi_used = asked.get(index, (None, None))
                percent = (
                    int(smi_percent) if percent is None and smi_percent is not None else percent
                )
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
                    processes=self._read_processes(address),
                    lost="" if folder.is_dir() else f"the kernel has no device {address} any more",
                    pci=address if deep else "",
                    ecc_errors=_read_ecc(folder / "ras") if deep else None,
                )
            )
        return devices

    def _find_kfd_ids(self) -> dict[str, str]:
        """PCI address → the id under which the compute driver knows the device."""
        ids = {}
        for node in (self._root / "sys/class/kfd/kfd/topology/nodes").glob("*"):
            gpu_id = _read_text(node / "gpu_id")
            words = dict(
                line.split(" ", 1)
                for line in _read_text(node / "properties").splitlines()
                if " " in line
            )
            if gpu_id not in ("", "0") and "location_id" in words:
                place, domain = int(words["location_id"]), int(words.get("domain", "0"))
                address = (
                    f"{domain:04x}:{place >> 8 & 0xFF:02x}:{place >> 3 & 0x1F:02x}.{place & 7}"
                )
                ids[address] = gpu_id
        return ids

    def _read_processes(self, address: str) -> list[DeviceProcess] | None:
        gpu_id = self._kfd_ids.get(address)
        folder = self._root / "sys/class/kfd/kfd/proc"
        if gpu_id is None or not folder.is_dir():
            return None
        processes = []
        for entry in folder.iterdir():
            used = _read_int(entry / f"vram_{gpu_id}")
            if entry.name.isdigit() and used:
                pid = int(entry.name)
                percent = self._read_engine_percent(pid, address)
                processes.append(
                    DeviceProcess(pid=pid, memory_bytes=used, utilisation_percent=percent)
                )
        return processes

    def _read_engine_percent(self, pid: int, address: str) -> float | None:
        """Busy share of the engines since the last call; None for zero, because compute queues are
        not counted."""
        total = 0
        clients = set()
        try:
            for entry in (self._root / f"proc/{pid}/fdinfo").iterdir():
                words = dict(
                    line.split(":", 1) for line in _read_text(entry).splitlines() if ":" in line
                )
                client = words.get("drm-client-id", "").strip()
                if words.get("drm-pdev", "").strip() != address or client in clients:
                    continue
                clients.add(client)
                total += sum(
                    int(v.split()[0])
                    for k, v in words.items()
                    if k.startswith("drm-engine-") and v.split()
                )
        except (OSError, ValueError):
            return None
        now = time.monotonic()
        before_at, before = self._engine_ns.get((pid, address), (now, total))
        self._engine_ns[(pid, address)] = (now, total)
        if now <= before_at or total <= before:
            return None
        return min(100.0, (total - before) / (now - before_at) / 1e7)


def _read_ecc(folder: Path) -> int | None:
    """Uncorrectable errors of all blocks: the kernel writes `ue: N` and `ce: N` into one file per
    block (amdgpu RAS)."""
    counts = [
        int(words[1])
        for file in folder.glob("*_err_count")
        for line in _read_text(file).splitlines()
        if len(words := line.split()) == 2 and words[0] == "ue:" and words[1].isdigit()
    ]
    return sum(counts) if counts else None


def _ask_amd_smi() -> dict[int, tuple[float | None, int | None]]:
    """Ask the vendor's tool: index → (busy percent, used bytes). Its JSON has changed its shape
    before; expect anything."""
    try:
        done = subprocess.run(
            ["amd-smi", "metric", "--usage", "--mem-usage", "--json"],
            capture_output=True,
            timeout=_SMI_SECONDS,
            check=True,
            stdin=subprocess.DEVNULL,
        )
        return parse_amd_smi(json.loads(done.stdout))
    except (OSError, subprocess.SubprocessError, ValueError):
        return {}


def parse_amd_smi(answer: Any) -> dict[int, tuple[float | None, int | None]]:
    """Read what `amd-smi metric --json` prints; parts that are not there or not numbers are
    None."""
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
