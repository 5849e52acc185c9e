"""Builds the native starter into the package where a C compiler is there (STARTER-1).

It never fails a build: without a compiler, or on another machine than the two it is written for, the
package is pure Python and starts tasks by fork.
"""

import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCE = "src/holdfast/process/starter.c"
RESULT = "src/holdfast/process/starter"
# A library that can also be run, without a C library and without relocations.
FLAGS = (
    "-O2 -shared -fPIC -nostdlib -ffreestanding -fno-stack-protector "
    "-fno-asynchronous-unwind-tables -Wl,-e,_start -Wl,-z,noexecstack -Wl,--build-id=none -s"
)
PATIENCE_SECONDS = 60.0


class StarterHook(BuildHookInterface[Any]):
    """Compiles, and has the wheel carry what came of it and the machine it is for."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called before a wheel is built; version: `standard` or `editable`."""
        root = Path(self.root)
        (root / RESULT).unlink(missing_ok=True)
        if sys.platform != "linux" or not compile_starter(root):
            return
        build_data["artifacts"].append(RESULT)
        # It needs no C library, so it runs beside any.
        machine = platform.machine()
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-manylinux_2_17_{machine}.musllinux_1_1_{machine}"


def compile_starter(root: Path) -> bool:
    """Whether it could be compiled and can be run here."""
    command = ["cc", *FLAGS.split(), "-o", str(root / RESULT), str(root / SOURCE)]
    try:
        for words in (command, [str(root / RESULT)]):
            subprocess.run(words, check=True, capture_output=True, timeout=PATIENCE_SECONDS)
    except (OSError, subprocess.SubprocessError):
        (root / RESULT).unlink(missing_ok=True)
        return False
    return True
