"""The process in which drivers are called: `python -m holdfast.agent.probes.worker`.

A line in asks, a line out answers (`Answer`). It ends when its input ends. Whatever a driver does to it, hang, crash or leak, is done to
nobody else.

    --nvml MODULE   the module to use for NVML, `pynvml` unless said otherwise; `none` for none
    --amd-root DIR  where /sys and /proc of AMD devices are, `/` unless said otherwise
"""

from __future__ import annotations

import argparse
import importlib
import sys
from typing import Any, Protocol

import msgspec

from holdfast.agent.probes.devices import Device


class Answer(msgspec.Struct, frozen=True, omit_defaults=True):
    """The devices, and why there are fewer than expected."""

    number: int
    devices: list[Device]
    errors: list[str] = []


class _Reader(Protocol):
    def read(self) -> list[Device]: ...


def open_readers(nvml: str, amd_root: str) -> list[_Reader]:
    """Return readers for the drivers that are here."""
    readers: list[_Reader] = []
    if nvml != "none":
        try:
            from holdfast.agent.probes.nvidia import NvidiaReader

            library: Any = importlib.import_module(nvml)
            readers.append(NvidiaReader(library))
        except Exception:
            pass  # no library, no driver, no device: all the same here
    try:
        from holdfast.agent.probes.amd import AmdReader

        readers.append(AmdReader(amd_root))
    except Exception:
        pass
    return readers


def read_devices(readers: list[_Reader], number: int) -> Answer:
    """Ask every reader. Devices of a second vendor are counted on from the first's."""
    devices: list[Device] = []
    errors = []
    for reader in readers:
        try:
            found = reader.read()
        except Exception as error:
            errors.append(f"{type(error).__name__}: {error}")
            continue
        devices += [msgspec.structs.replace(d, index=len(devices) + place) for place, d in enumerate(found)]
    return Answer(number, devices, errors)


def main(argv: list[str]) -> int:
    """Answer until the input ends."""
    parser = argparse.ArgumentParser(prog="holdfast.agent.probes.worker")
    parser.add_argument("--nvml", default="pynvml")
    parser.add_argument("--amd-root", default="/")
    options = parser.parse_args(argv)
    readers = open_readers(options.nvml, options.amd_root)
    for line in sys.stdin.buffer:
        answer = read_devices(readers, int(line))
        try:
            sys.stdout.buffer.write(msgspec.json.encode(answer) + b"\n")
            sys.stdout.buffer.flush()
        except OSError:
            return 0  # nobody listens any more
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
