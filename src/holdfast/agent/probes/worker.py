"""Call drivers in a process of their own: `python -m holdfast.agent.probes.worker`.

Each line of its input is a request: `NUMBER` for the devices, `NUMBER deep` for rare readings, too,
or `NUMBER kernel` for the kernel log alone, without a call of a driver. Each line of its output is
an answer (`ProbeAnswer`). The process ends when its input ends. A driver that hangs, crashes or
leaks harms no other process.

    --nvml MODULE   the module to use for NVML, by default `pynvml`; `none` for none
    --kmsg FILE     the kernel log, by default `/dev/kmsg`
    --amd-root DIR  the folder of /sys and /proc of AMD devices, by default `/`
"""

import argparse
import importlib
import os
import sys
from typing import Any, Protocol

import msgspec

from holdfast.agent.probes.devices import Device
from holdfast.agent.probes.kernel_log import KernelLog, KernelXids


class ProbeAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """The answer to one request.

    number: the request's number. errors: why devices are missing. kernel: the Xids of the kernel
    log; None if the log cannot be read, or was not asked for. unopened: vendor → why its driver
    could not be opened at all, as on hosts without its devices.
    """

    number: int
    devices: list[Device]
    errors: list[str] = []
    kernel: KernelXids | None = None
    unopened: dict[str, str] = {}


class _Reader(Protocol):
    def read(self, deep: bool = False) -> list[Device]: ...
    def read_version(self) -> str: ...


def open_readers(nvml: str, amd_root: str) -> tuple[list[_Reader], dict[str, str]]:
    """Return readers for the drivers of this machine, and the errors of the drivers that cannot be
    opened."""
    readers: list[_Reader] = []
    unopened: dict[str, str] = {}
    if nvml != "none":
        try:
            from holdfast.agent.probes.nvidia import NvidiaReader

            library: Any = importlib.import_module(nvml)
            readers.append(NvidiaReader(library))
        except Exception as error:  # no library, no driver or no device
            unopened["nvidia"] = f"{type(error).__name__}: {error}"
    try:
        from holdfast.agent.probes.amd import AmdReader

        readers.append(AmdReader(amd_root))
    except Exception as error:
        unopened["amd"] = f"{type(error).__name__}: {error}"
    return readers, unopened


def open_kernel_log(path: str) -> KernelLog | None:
    """Open the kernel log; return None if it may not be read."""
    try:
        return KernelLog(path)
    except OSError:
        return None


def read_devices(
    readers: list[_Reader], number: int, *, deep: bool = False, kernel_log: KernelLog | None = None
) -> ProbeAnswer:
    """Read the devices of every driver. The devices of a second vendor get the numbers after the
    first vendor's."""
    devices: list[Device] = []
    errors = []
    for reader in readers:
        try:
            found = reader.read(deep)
        except Exception as error:
            errors.append(f"{type(error).__name__}: {error}")
            continue
        devices += [
            msgspec.structs.replace(d, index=len(devices) + place) for place, d in enumerate(found)
        ]
    kernel = None
    if deep and kernel_log is not None:
        try:
            kernel = kernel_log.read()
        except OSError as error:
            errors.append(f"the kernel log: {error}")
    return ProbeAnswer(number, devices, errors, kernel)


def main(argv: list[str]) -> int:
    """Answer requests until the input ends."""
    parser = argparse.ArgumentParser(prog="holdfast.agent.probes.worker")
    parser.add_argument("--nvml", default="pynvml")
    parser.add_argument("--amd-root", default="/")
    parser.add_argument("--kmsg", default="/dev/kmsg")
    options = parser.parse_args(argv)
    opened: tuple[list[_Reader], dict[str, str]] | None = None
    kernel_log = open_kernel_log(options.kmsg)
    for line in sys.stdin.buffer:
        number, *how = line.split()
        if opened is None and how != [b"kernel"]:  # opening a stuck driver may hang, too
            opened = open_readers(options.nvml, options.amd_root)
        readers, unopened = opened or ([], {})
        readers = [] if how == [b"kernel"] else readers
        answer = read_devices(readers, int(number), deep=bool(how), kernel_log=kernel_log)
        answer = msgspec.structs.replace(answer, unopened=unopened)
        try:
            sys.stdout.buffer.write(msgspec.json.encode(answer) + b"\n")
            sys.stdout.buffer.flush()
        except OSError:
            return 0  # the agent is gone
    return 0


if __name__ == "__main__":
    exit_status = main(sys.argv[1:])
    os._exit(exit_status)  # the answers are flushed; a full exit costs as much as a start
