"""The brand with real processes: what it survives, and what it is not taken for."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.process import table
from holdfast.process.brand import find_brand, make_host_brand, make_task_brand
from holdfast.process.spawn import SpawnRequest, read_start, spawn
from holdfast.process.sweep import sweep
from holdfast.process.syscalls import RLIMIT_LOCKS
from tests.waits import is_alive, wait_until

# A child of a dead child, in a session of its own, with nothing in its environment.
AWAY = """
import os, sys
if os.fork(): os._exit(0)
os.setsid()
if os.fork(): os._exit(0)
os.execve('/bin/sh', ['sh', '-c', 'echo $$ > %s; exec sleep 600'], {})
"""


def run_away(folder: Path, brand: tuple[int, int]) -> int:
    request = SpawnRequest(
        argv=(sys.executable, "-c", AWAY % (folder / "pid")), env={}, brand=brand
    )
    child = spawn(request)
    os.waitpid(child.pid, 0)
    os.close(child.pidfd)
    assert read_start(child, request) == ""
    return int(
        wait_until(
            lambda: (folder / "pid").exists() and (folder / "pid").read_text().strip(),
            what="its pid",
        )
    )


def test_a_brand_survives_what_an_environment_does_not(tmp_path: Path) -> None:
    """BRAND-1: and by it the next guardian of the host finds what the last one left, and no other
    host's does."""
    host = f"test-{os.urandom(6).hex()}"
    brand = (make_task_brand(7), make_host_brand(host))
    pid = run_away(tmp_path, brand)
    assert (table.read_marks(pid), table.read_brand(pid)) == ((None, None), brand)
    assert sweep(f"{host}-other") == []
    assert is_alive(pid)
    assert sweep(host) == []
    assert not is_alive(pid)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"Max file locks",
        b"Max file locks            unlimited            unlimited            locks\n",
    ],
)
def test_what_is_no_brand(text: bytes) -> None:
    assert find_brand(text) is None


def test_numbers_are_limits_a_kernel_takes() -> None:
    """Never "unlimited", which is 2^63 to some and 2^64 - 1 to others, and the soft one never above
    the hard one."""
    for host in ("a", "b" * 1000):
        for serial in (1, 1 << 39, (1 << 60) + 5):
            assert 0 < make_task_brand(serial) <= make_host_brand(host) < 1 << 62
    assert make_host_brand("a") != make_host_brand("b")
    assert find_brand(Path("/proc/self/limits").read_bytes()) in (
        None,
        resource.getrlimit(RLIMIT_LOCKS),
    )


def test_who_may_not_be_branded_is_started_all_the_same(tmp_path: Path) -> None:
    """BRAND-2: a guardian inside another's task, with a lower number and no right to raise it."""
    code = (
        "import os, resource, sys\n"
        "from holdfast.process.spawn import SpawnRequest, read_start, spawn\n"
        "resource.setrlimit(10, (5, 5))\n"
        "if os.geteuid() == 0: os.setresuid(65534, 65534, 65534)\n"
        "request = SpawnRequest(argv=('true',), env={'PATH': os.environ['PATH']}, brand=(1 << 41, "
        "1 << 53))\n"
        "child = spawn(request)\n"
        "sys.exit(os.waitstatus_to_exitcode(os.waitpid(child.pid, 0)[1]) or len(read_start(child, "
        "request) or ''))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
