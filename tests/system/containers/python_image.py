"""An image with Python and the job library in it, as `pip install holdfast` leaves it, made from
this machine's files without a network."""

from __future__ import annotations

import io
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
from pathlib import Path

import holdfast

IMAGE = "localhost/python:latest"
_LEFT_OUT = {
    "test",
    "tests",
    "idlelib",
    "lib2to3",
    "tkinter",
    "turtledemo",
    "ensurepip",
    "pydoc_data",
    "site-packages",
    "dist-packages",
}
_LEFT_OUT_ENDINGS = (".a", ".opt-1.pyc", ".opt-2.pyc")
SITE = sysconfig.get_path("purelib", vars={"base": sys.base_prefix, "platbase": sys.base_prefix})


def find_python() -> str:
    """The interpreter below this one's virtual environment, at the path it has inside as well."""
    base: str = sys._base_executable  # type: ignore[attr-defined]  # CPython has it
    return os.path.realpath(base)


def make_layer() -> bytes:
    """The interpreter, its standard library, the C library, a shell, and Holdfast. Everything has
    the path it has here. With the byte code of the library, because a container is new at each
    start and would compile what it imports; without what debuggers read, because an engine here
    copies the whole for each container."""
    out = io.BytesIO()
    shell = os.path.realpath(shutil.which("sh") or "/bin/sh")
    stdlib = Path(sysconfig.get_path("stdlib"))
    with tarfile.open(fileobj=out, mode="w", dereference=True) as tar:
        for program in (find_python(), shell):
            tar.add(program)
        tar.add(shell, "/bin/sh")
        modules = [
            str(path)
            for path in (stdlib / "lib-dynload").glob("*.so")
            if "tkinter" not in path.name and "_test" not in path.name
        ]
        for library in find_libraries(find_python(), shell, *modules):
            _add_stripped(tar, library)
        tar.add(stdlib, filter=_leave_out)
        for module in modules:
            _add_stripped(tar, module)
        package = Path(holdfast.__file__).parent
        tar.add(package, f"{SITE}/holdfast", filter=_leave_out)
    return out.getvalue()


def find_libraries(*programs: str) -> list[str]:
    """Paths of the shared libraries that these programs are linked with, the loader's included."""
    said = subprocess.run(["ldd", *programs], capture_output=True, text=True, check=False).stdout
    return sorted(set(re.findall(r"(?:=> |^\s+)(/\S+) \(0x", said, re.MULTILINE)))


def _add_stripped(tar: tarfile.TarFile, library: str) -> None:
    with tempfile.NamedTemporaryFile() as copy:
        done = subprocess.run(
            ["strip", "--strip-debug", "-o", copy.name, library], capture_output=True, check=False
        )
        tar.add(library if done.returncode else copy.name, library)


def _leave_out(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    name = entry.name.rsplit("/", 1)[-1]
    left_out = (
        name in _LEFT_OUT
        or "/lib-dynload/" in entry.name
        or name.startswith("config-")
        or name.endswith(_LEFT_OUT_ENDINGS)
    )
    return None if left_out else entry
