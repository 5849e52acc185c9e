"""ENTER-1: what enters a container has the rights of the process there, and no more."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.waits import run_patiently, wait_until

_SHOW = "grep -E 'Cap(Eff|Bnd|Prm|Inh)' /proc/self/status; echo $$ $COLOUR $KEPT $GONE; exit 7"
BOX = ("unshare", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child")
FEW = ("setpriv", "--bounding-set=-all,+chown,+mknod", "--inh-caps=-all")


@pytest.fixture
def boxed(tmp_path: Path) -> Iterator[int]:
    """A process of root in namespaces of its own, with few capabilities and a hostile variable."""
    ran = f"echo $0 $$; exec {' '.join(FEW)} env LD_PRELOAD={tmp_path}/evil.so COLOUR=blue GONE=1 sleep 60"
    argv = (*BOX, "sh", "-c", ran)
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        if not process.stdout or not process.stdout.readline():
            pytest.skip("no namespaces can be made here")
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        (pid,) = map(int, children.read_text().split())
        wait_until(lambda: Path(f"/proc/{pid}/comm").read_text() == "sleep\n", 10)
        yield pid
    finally:
        process.kill()
        process.communicate()


def run(pid: int, *words: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-I", "-m", "holdfast.work.inside", str(pid), "GONE,X", "--", *words]
    env = {"KEPT": "given"}
    return run_patiently(argv, env=env, capture_output=True, text=True, seconds=30)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root enters the namespaces of root")
def test_a_session_has_the_capabilities_and_variables_of_its_container(boxed: int) -> None:
    done = run(boxed, "sh", "-c", _SHOW)
    assert done.returncode == 7
    *capabilities, words = done.stdout.splitlines()
    assert {line.split()[1].lstrip("0") for line in capabilities} == {"", "1"}, capabilities
    number, *variables = words.split()
    assert int(number) < 100, "it is in the numbers of the container"
    assert variables == ["blue", "given"]
    assert run(boxed, "sh", "-c", "kill -9 $$").returncode == -9
    assert run(boxed, "no-such-program").returncode == 127
