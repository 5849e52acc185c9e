"""Finding and ending trees with real processes, without a guardian: this test process is the
sub-reaper's child."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from holdfast.process import table
from holdfast.process.endings.ending import Signaller
from holdfast.process.sweep import sweep
from holdfast.process.table import ProcessEntry
from tests.waits import Patience, wait_exit

PATH = os.environ["PATH"]


def wait_line(path: Path) -> str:
    patience = Patience(10)
    while not (path.exists() and path.read_text().endswith("\n")):
        assert not patience.over
        time.sleep(0.005)
    return path.read_text().strip()


def test_a_process_is_read_whatever_its_name_is(tmp_path: Path) -> None:
    script = tmp_path / "a) R 1 (b"
    script.write_text("#!/bin/sh\nread line\n")
    script.chmod(0o755)
    with subprocess.Popen([str(script)], stdin=subprocess.PIPE, start_new_session=True) as process:
        entry = table.read_entry(process.pid)
        assert entry is not None
        assert (entry.ppid, entry.session, entry.alive) == (os.getpid(), process.pid, True)
        assert process.pid in (table.read_children(os.getpid()) or [process.pid])
        assert process.pid in table.read_table()
        assert process.stdin is not None
        process.stdin.close()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        zombie = table.read_entry(process.pid)
        assert zombie is not None
        assert not zombie.alive
    assert table.read_entry(process.pid) is None


def test_a_pid_used_again_is_not_signalled() -> None:
    with subprocess.Popen(["sleep", "600"]) as process:
        entry = table.read_entry(process.pid)
        assert entry is not None
        entry.start_ticks -= 1  # an earlier process that had this number
        assert not table.send_signal(entry, signal.SIGKILL)
        assert process.poll() is None
        entry.start_ticks += 1
        assert table.send_signal(entry, signal.SIGKILL)
        assert wait_exit(process, 10) == -signal.SIGKILL


def start_runaway(tmp_path: Path, host: str, name: str, *, task: str = "job:0:1") -> int:
    """A marked process that left its parent, its session and its terminal behind. Returns its
    pid."""
    code = (
        "import os, sys, time\n"
        "if os.fork(): os._exit(0)\n"
        "os.setsid()\n"
        "if os.fork(): os._exit(0)\n"
        "open(sys.argv[1], 'w').write(f'{os.getpid()}\\n'); time.sleep(600)"
    )
    env = {"PATH": PATH, table.TASK_VARIABLE: task, table.HOST_VARIABLE: host}
    subprocess.run([sys.executable, "-c", code, str(tmp_path / name)], env=env, check=True)
    return int(wait_line(tmp_path / name))


def test_a_sweep_ends_the_marked_and_their_descendants_and_nobody_else(tmp_path: Path) -> None:
    host = f"test-{os.urandom(6).hex()}"
    mine = start_runaway(tmp_path, host, "mine")
    # TREE-1: the same task key on another cluster's host mark.
    other = start_runaway(tmp_path, host + "-other", "other")
    cleared = subprocess.Popen(
        ["sh", "-c", "env -i sleep 600 & echo $! > cleared; wait"],
        env={"PATH": PATH, table.HOST_VARIABLE: host},
        cwd=tmp_path,
    )
    child = int(wait_line(tmp_path / "cleared"))
    assert sweep(host) == []
    wait_exit(cleared, 10)  # killed, or ended by itself because its child was killed first
    for pid in (mine, child):
        entry = table.read_entry(pid)
        assert entry is None or not entry.alive
    entry = table.read_entry(other)
    assert entry is not None
    assert entry.alive
    assert sweep(host + "-other") == []


def test_a_sweep_spares_its_caller_and_those_above(tmp_path: Path) -> None:
    host = f"test-{os.urandom(6).hex()}"
    code = f"from holdfast.process.sweep import sweep; print(sweep({host!r}))"
    env = {**os.environ, table.HOST_VARIABLE: host}
    done = subprocess.run(
        ["sh", "-c", f'"{sys.executable}" -c "{code}"; echo spared'],
        env=env,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "[]\nspared\n"


def test_a_sweep_reports_what_it_cannot_kill(tmp_path: Path) -> None:
    class Deaf(Signaller):
        def send(self, entry: ProcessEntry, number: int) -> bool:
            return False

    host = f"test-{os.urandom(6).hex()}"
    pid = start_runaway(tmp_path, host, "pid")
    assert sweep(host, kill_limit_seconds=0.05, signaller=Deaf()) == [pid]
    assert sweep(host) == []


def test_what_cannot_be_read_for_want_of_descriptors_is_not_taken_for_empty(tmp_path: Path) -> None:
    """TABLE-1, SWEEP-1: with none left every look fails, and says so; with one again all is as
    before."""
    (tmp_path / "cgroup.procs").write_text("1\n")
    (tmp_path / "t1").mkdir()
    code = (
        "import errno, os, resource, sys\n"
        "from holdfast.process import groups, table\n"
        "from holdfast.process.sweep import sweep\n"
        "folder, pid = sys.argv[1], os.getpid()\n"
        "looks = {\n"
        "    'table': table.read_table, 'entry': lambda: table.read_entry(pid), 'environ': "
        "lambda: table.read_environ(pid),\n"
        "    'group': lambda: table.read_group(pid, 'x'), 'brand': lambda: table.read_brand(pid),\n"
        "    'pids': groups.TaskGroup(folder, True).read_pids, 'groups': lambda: "
        "groups.list_groups(folder),\n"
        "    'sweep': lambda: sweep('nobody-has-this-mark', kill_limit_seconds=0.05),\n"
        "}\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))\n"
        "held = []\n"
        "while len(held) < 40:\n"
        "    try: held.append(os.open('/dev/null', os.O_RDONLY))\n"
        "    except OSError: break\n"
        "for name, look in looks.items():\n"
        "    try: print(name, 'found', look())\n"
        "    except OSError as error: print(name, errno.errorcode[error.errno])\n"
        "os.close(held.pop()); os.close(held.pop()); os.close(held.pop())\n"
        "assert table.read_entry(pid).alive and pid in table.read_table() and "
        "sweep('nobody-has-this-mark') == []\n"
        "assert groups.TaskGroup(folder, True).read_pids() == [1]\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    names = ("table", "entry", "environ", "group", "brand", "pids", "groups", "sweep")
    assert done.stdout.splitlines() == [f"{name} EMFILE" for name in names]
