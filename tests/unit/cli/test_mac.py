"""The client on a Mac: it imports, and a command that needs Linux says so. On a real Mac the tests run
as they are; elsewhere `tests/mac.py` takes away what only Linux has. They need nothing but the slim
set and pytest (`make client`)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.cli.commands import COMMANDS

MAC = Path(__file__).parents[2] / "mac.py"
LINUX_ALONE = {
    "up": (),
    "server": (),
    "agent": ("--join", "http://127.0.0.1:1"),
    "host-manager": ("tcp://a:1",),
}
MODULES = """
import importlib, pkgutil, holdfast
parts = ("cli", "client", "core", "functions", "http", "unpack", "wire", "work")
skipped = ("holdfast.functions.executor", "holdfast.work.making", "holdfast.work.inside", "holdfast.cli.up",
           "holdfast.cli.__main__", "holdfast.cli.doctor.probe")
for part in parts:
    package = importlib.import_module(f"holdfast.{part}")
    for found in pkgutil.walk_packages(package.__path__, f"holdfast.{part}."):
        if not found.name.startswith(skipped) and not found.name.endswith("__main__"):
            importlib.import_module(found.name)
for name in holdfast.__all__:
    getattr(holdfast, name)
print("all")
"""


def run(*words: str) -> subprocess.CompletedProcess[str]:
    """Run a command of `holdfast` as on a Mac."""
    start = ["-m", "holdfast"] if sys.platform == "darwin" else [str(MAC)]
    return subprocess.run([sys.executable, "-P", *start, *words], capture_output=True, text=True)


def test_every_module_of_the_client_imports() -> None:
    become = "" if sys.platform == "darwin" else "from mac import become_mac; become_mac()\n"
    done = subprocess.run(
        [sys.executable, "-c", become + MODULES], cwd=MAC.parent, capture_output=True, text=True
    )
    assert done.stdout == "all\n", done.stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(command: str) -> None:
    done = run(command, "--help")
    assert done.returncode == 0, done.stderr
    assert f"holdfast {command}" in done.stdout


@pytest.mark.parametrize("command", LINUX_ALONE)
def test_a_command_that_needs_linux_says_so(command: str) -> None:
    done = run(command, *LINUX_ALONE[command])
    assert done.returncode == 1
    assert "needs Linux" in done.stderr
    assert "holdfast login" in done.stderr


def test_a_server_that_is_away_is_told_as_on_linux() -> None:
    done = run("jobs")
    assert done.returncode != 0
    assert "Traceback" not in done.stderr
