"""Builds the native parts into the package: the starter (STARTER-1), and the marking of grams.

`HOLDFAST_BUILD_FOR` says for which machine:

- `here`, or nothing: the machine that builds, where a C compiler is there, else `pure`. So an
  installation from a clone never fails for want of a compiler.
- `pure`: no native parts; tasks are started by fork, and grams are marked in Python.
- `linux-x86_64`, `linux-aarch64`: that machine; a build that finds no compiler for it fails.

The wheel carries a list of what others made of it, as CycloneDX (`.dist-info/sboms`).
"""

import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

OPTION = "HOLDFAST_BUILD_FOR"
HERE, PURE = "here", "pure"
MACHINES = {"linux-x86_64": "x86_64", "linux-aarch64": "aarch64"}
STARTER = "holdfast/process/starter"
GRAMS = "holdfast/store/postgres/logs/grams"
KEPT = "src/holdfast/web/static/kept/kept.toml"
# Libraries without a C library and without relocations; the starter can also be run.
FLAGS = (
    "-O2 -shared -fPIC -nostdlib -ffreestanding -fno-stack-protector "
    "-fno-asynchronous-unwind-tables -Wl,-z,noexecstack -Wl,-z,defs -Wl,--build-id=none -s"
)
MORE = {STARTER: ("-Wl,-e,_start",), GRAMS: ()}
PATIENCE_SECONDS = 60.0


class NativeHook(BuildHookInterface[Any]):
    """Compiles, and has the wheel carry what came of it and the machine it is for."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called before a wheel is built; version: `standard` or `editable`."""
        self.folder = Path(tempfile.mkdtemp(prefix="holdfast-build-"))
        if version == "editable":
            for result in MORE:
                (Path(self.root) / "src" / result).unlink(missing_ok=True)
        else:
            build_data["sbom_files"].append(self.write_sbom())
        machine = self.compile(os.environ.get(OPTION) or HERE)
        if machine is None:
            return
        for result in MORE:
            built = self.folder / Path(result).name
            if version == "editable":
                shutil.copy(built, Path(self.root) / "src" / result)
            else:
                build_data["force_include"][str(built)] = result
        # They need no C library, so they run beside any.
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-manylinux_2_17_{machine}.musllinux_1_1_{machine}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Called once the wheel is written."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def compile(self, target: str) -> str | None:
        """Compile every native part. Return the machine that they are for; None for a pure wheel.
        Raises RuntimeError where a named machine has no compiler."""
        if target == PURE:
            return None
        if target != HERE and target not in MACHINES:
            raise RuntimeError(
                f"{OPTION} is {', '.join([HERE, PURE, *MACHINES])}, and not {target}"
            )
        here = platform.machine() if sys.platform == "linux" else ""
        machine = here if target == HERE else MACHINES[target]
        if machine not in MACHINES.values():
            return None
        for compiler in list_compilers(machine, here):
            compiled = all(self.compile_part(compiler, result) for result in MORE)
            if compiled and (target != HERE or self.starter_runs()):
                return machine
        if target == HERE:
            return None
        raise RuntimeError(
            f"no C compiler for {target} works here: install gcc-{machine.replace('_', '-')}-"
            "linux-gnu, or PyPI's ziglang"
        )

    def compile_part(self, compiler: list[str], result: str) -> bool:
        """Return whether it could be compiled."""
        to, source = self.folder / Path(result).name, f"{self.root}/src/{result}.c"
        return runs([*compiler, *FLAGS.split(), *MORE[result], "-o", str(to), source])

    def starter_runs(self) -> bool:
        """Return whether this machine runs the starter."""
        return runs([str(self.folder / Path(STARTER).name)])

    def write_sbom(self) -> str:
        """Write the list of the package's parts of others, and return its path. It has neither a
        time nor a number of its own, so that two builds of one commit are equal."""
        root, core = Path(self.root), self.metadata.core
        own = {
            "type": "library",
            "name": core.name,
            "version": self.metadata.version,
            "purl": f"pkg:pypi/{core.name}@{self.metadata.version}",
            "licenses": [{"license": {"id": "Apache-2.0"}}],
        }
        kept = [
            {
                "type": "library",
                "name": part["name"],
                "version": part["version"],
                "purl": f"pkg:npm/{part['name'].replace('@', '%40')}@{part['version']}",
                "licenses": [{"license": {"id": part["licence"]}}],
                "components": [
                    {
                        "type": "file",
                        "name": file["as"],
                        "hashes": [{"alg": "SHA-256", "content": file["sha256"]}],
                    }
                    for file in part["files"].values()
                ],
            }
            for part in tomllib.loads((root / KEPT).read_text())["part"]
        ]
        bill = {
            "bomFormat": "CycloneDX",
            "specVersion": "1.6",
            "version": 1,
            "metadata": {"component": own},
            "components": kept,
        }
        path = self.folder / "holdfast.cdx.json"
        path.write_text(json.dumps(bill, indent=2) + "\n")
        return str(path)


def list_compilers(machine: str, here: str) -> Iterator[list[str]]:
    """Yield the compilers for a machine, the one to take first at the beginning."""
    if machine == here:
        yield ["cc"]
    yield [f"{machine}-linux-gnu-gcc"]
    yield ["python-zig", "cc", "-target", f"{machine}-linux-musl"]


def runs(words: list[str]) -> bool:
    """Return whether a command ends well."""
    try:
        subprocess.run(words, check=True, capture_output=True, timeout=PATIENCE_SECONDS)
    except (OSError, subprocess.SubprocessError):
        return False
    return True
