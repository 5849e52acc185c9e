"""Builds the native parts into the package where a C compiler is there: the starter (STARTER-1), and
the marking of grams.

It never fails a build: without a compiler, or on another machine than the two the starter is written
for, the package is pure Python, starts tasks by fork and marks grams in Python.
"""

import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

STARTER = "src/holdfast/process/starter"
GRAMS = "src/holdfast/store/postgres/logs/grams"
# Libraries without a C library and without relocations; the starter can also be run.
FLAGS = (
    "-O2 -shared -fPIC -nostdlib -ffreestanding -fno-stack-protector "
    "-fno-asynchronous-unwind-tables -Wl,-z,noexecstack -Wl,--build-id=none -s"
)
PATIENCE_SECONDS = 60.0


class StarterHook(BuildHookInterface[Any]):
    """Compiles, and has the wheel carry what came of it and the machine it is for."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called before a wheel is built; version: `standard` or `editable`."""
        root = Path(self.root)
        for result in (STARTER, GRAMS):
            (root / result).unlink(missing_ok=True)
        if sys.platform != "linux" or not compile_starter(root):
            return
        build_data["artifacts"].append(STARTER)
        if compile_library(root, GRAMS):
            build_data["artifacts"].append(GRAMS)
        # They need no C library, so they run beside any.
        machine = platform.machine()
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-manylinux_2_17_{machine}.musllinux_1_1_{machine}"


def compile_starter(root: Path) -> bool:
    """Whether it could be compiled and can be run here."""
    if not compile_library(root, STARTER, "-Wl,-e,_start"):
        return False
    try:
        run_quietly([str(root / STARTER)])
    except (OSError, subprocess.SubprocessError):
        (root / STARTER).unlink(missing_ok=True)
        return False
    return True


def compile_library(root: Path, result: str, *flags: str) -> bool:
    """Whether it could be compiled."""
    source = str(root / f"{result}.c")
    try:
        run_quietly(["cc", *FLAGS.split(), *flags, "-o", str(root / result), source])
    except (OSError, subprocess.SubprocessError):
        (root / result).unlink(missing_ok=True)
        return False
    return True


def run_quietly(words: list[str]) -> None:
    """Run a command. Raises OSError, SubprocessError."""
    subprocess.run(words, check=True, capture_output=True, timeout=PATIENCE_SECONDS)
