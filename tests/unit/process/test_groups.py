"""Control groups: reading both layouts from plain folders, and one real group where this system
allows it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.process.groups import (
    TaskGroup,
    find_own_groups,
    list_groups,
    name_group_folder,
    open_group_home,
)
from tests.waits import run_patiently


def test_a_v2_group_is_read(tmp_path: Path) -> None:
    (tmp_path / "cgroup.procs").write_text("12\n13\n")
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "cgroup.procs").write_text("14\n")
    (tmp_path / "memory.events").write_text(
        "low 0\nhigh 0\nmax 4\noom 1\noom_kill 3\noom_group_kill 0\n"
    )
    (tmp_path / "memory.peak").write_text("4096\n")
    (tmp_path / "cgroup.kill").write_text("")
    for name in ("memory.max", "memory.swap.max"):
        (tmp_path / name).write_text("max\n")
    group = TaskGroup(str(tmp_path), unified=True)
    assert sorted(group.read_pids()) == [12, 13, 14]
    assert group.count_oom_kills() == 3
    assert group.read_peak_bytes() == 4096
    assert group.kill()
    assert (tmp_path / "cgroup.kill").read_text() == "1"
    group.set_limit(1 << 20)
    assert (tmp_path / "memory.max").read_text().startswith("1048576")
    assert (tmp_path / "memory.swap.max").read_text().startswith("0")


def test_a_v1_group_is_read(tmp_path: Path) -> None:
    (tmp_path / "cgroup.procs").write_text("7\n")
    (tmp_path / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 2\n")
    (tmp_path / "memory.max_usage_in_bytes").write_text("8192\n")
    (tmp_path / "memory.limit_in_bytes").write_text("")
    group = TaskGroup(str(tmp_path), unified=False)
    assert group.read_pids() == [7]
    assert group.count_oom_kills() == 2
    assert group.read_peak_bytes() == 8192
    assert not group.kill()
    group.set_limit(1 << 20)
    assert (tmp_path / "memory.limit_in_bytes").read_text() == "1048576"


def test_a_group_that_is_gone_is_empty_and_counts_nothing(tmp_path: Path) -> None:
    for unified in (True, False):
        group = TaskGroup(str(tmp_path / "gone"), unified=unified)
        assert (group.read_pids(), group.count_oom_kills(), group.read_peak_bytes()) == ([], 0, 0)
        assert group.remove()


def test_our_own_group_is_found_in_every_layout() -> None:
    v2 = "30 25 0:26 / /sys/fs/cgroup rw shared:4 - cgroup2 cgroup2 rw,nsdelegate"
    v1 = "31 25 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory"
    cpu = "32 25 0:28 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu"
    part = "33 25 0:29 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory"
    assert find_own_groups(["0::/system.slice/holdfast.service"], [v2]) == {
        "": "/sys/fs/cgroup/system.slice/holdfast.service"
    }
    aside = "0::/system.slice/holdfast.service/holdfast-guardian"
    assert find_own_groups([aside], [v2]) == {"": "/sys/fs/cgroup/system.slice/holdfast.service"}
    assert find_own_groups(["0::/holdfast-guardian"], [v2]) == {"": "/sys/fs/cgroup"}
    assert find_own_groups(["4:memory:/user", "1:cpu:/", "0::/"], [cpu, v1]) == {
        "memory": "/sys/fs/cgroup/memory/user"
    }
    assert find_own_groups(["4:memory:/docker/abc/x"], [part]) == {
        "memory": "/sys/fs/cgroup/memory/x"
    }
    assert find_own_groups(["4:memory:/docker/abc"], [part]) == {"memory": "/sys/fs/cgroup/memory"}
    assert find_own_groups(["0::/../other"], [v2]) == {}
    assert find_own_groups([], []) == {}


def test_two_hosts_that_read_alike_have_different_folders() -> None:
    assert name_group_folder("a/b") != name_group_folder("a.b")
    assert "/" not in name_group_folder("a/../b")


def test_a_real_group_holds_counts_and_goes(tmp_path: Path) -> None:
    host = f"test-{os.urandom(6).hex()}"
    home = open_group_home(host)
    if home is None:
        pytest.skip("no control group can be made here")
    group = home.make_group()
    other = home.make_group()
    assert {g.path for g in list_groups(home.path)} == {group.path, other.path}
    code = f"open({group.procs_path!r}, 'w').write('0'); print(flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as inside:
        assert inside.stdin is not None
        assert inside.stdout is not None
        inside.stdout.readline()
        assert group.read_pids() == [inside.pid]
        assert other.read_pids() == []
        assert not group.remove()
        inside.stdin.write(b"\n")
    assert group.remove()
    assert other.remove()
    home.close()
    assert not os.path.exists(home.path)


STARTER = """
import os, sys
from holdfast.process.groups import open_group_home, step_aside
top = sys.argv[1]
open(f"{top}/cgroup.procs", "w").write("0")
step_aside()
beside = os.fork()
if beside == 0:
    os.execlp("sleep", "sleep", "600")
try:
    for host in ("a", "b"):
        guardian = os.fork()
        if guardian == 0:
            home = open_group_home(host)
            os._exit(0 if home is not None and home.memory and home.path.startswith(f"{top}/holdfast-{host}-") else 1)
        assert os.waitpid(guardian, 0)[1] == 0, host
finally:
    os.kill(beside, 9)
    os.wait()
"""


def test_guardians_of_a_starter_that_stepped_aside_have_limits() -> None:
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    mount = next((line.split()[4] for line in mounts if " - cgroup2 " in line), "/none")
    top = Path(mount) / f"holdfast-test-{os.urandom(6).hex()}"
    try:
        top.mkdir()
    except OSError:
        pytest.skip("no version 2 group can be made here")
    try:
        if "memory" not in (top / "cgroup.controllers").read_text().split():
            pytest.skip("no memory controller in version 2 here")
        run_patiently([sys.executable, "-c", STARTER, str(top)], check=True, seconds=60)
    finally:
        for folder in sorted(top.rglob("*/"), reverse=True):
            if folder.is_dir():
                folder.rmdir()
        top.rmdir()


def test_a_group_s_processors_and_memory_are_without_the_file_cache(tmp_path: Path) -> None:
    (tmp_path / "cpu.stat").write_text("usage_usec 2500000\nuser_usec 2000000\n")
    (tmp_path / "memory.stat").write_text(
        "anon 10\nfile 5000\nshmem 3\ntotal_rss 70\ntotal_cache 9000\ntotal_shmem 8\ntotal_swap 1\n"
    )
    v2, v1 = (TaskGroup(str(tmp_path), unified=unified) for unified in (True, False))
    assert (v2.read_cpu_seconds(), v2.read_own_bytes()) == (2.5, 13)
    assert (v1.read_cpu_seconds(), v1.read_own_bytes()) == (None, 79)
    gone = TaskGroup(str(tmp_path / "gone"), unified=True)
    assert (gone.read_cpu_seconds(), gone.read_own_bytes()) == (None, None)
