"""No process outlives its host manager when the manager or its warden is killed, frozen or out of
descriptors."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.process import table
from holdfast.supervisor import Context
from holdfast.supervisor.host.host_manager import EXIT_WARDEN_DIED
from holdfast.supervisor.host.leftovers import end_leftovers
from tests.system.supervisor.rig import (
    PATIENCE,
    Managers,
    attach,
    find_warden,
    local_context,
    python,
    start_family,
    wait_gone,
)
from tests.waits import is_alive, wait_exit, wait_until


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where managers keep their folders, so that no other manager's are looked at."""
    folder = tmp_path / "t"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def kill_both(manager: subprocess.Popen[bytes]) -> None:
    """In the same instant: neither can act on the other's death."""
    warden = find_warden(manager)
    os.kill(manager.pid, signal.SIGSTOP)
    os.kill(warden, signal.SIGSTOP)
    os.kill(warden, signal.SIGKILL)
    os.kill(manager.pid, signal.SIGKILL)
    wait_exit(manager, PATIENCE)


@pytest.mark.slow
def test_what_is_left_of_both_is_ended_by_the_next_manager(
    ctx: Context, managers: Managers, tmp_path: Path, own_folders: Path
) -> None:
    """LEFT-1: one in a session of its own, one that has cleared its environment and lost its
    parents as well."""
    (host,), (manager,) = attach(ctx, managers, 1)
    process, family = start_family(ctx, host, tmp_path)
    first = process.pid().result(0)
    assert not end_leftovers(1.0), "its manager lives"
    kill_both(manager)
    wait_gone([first], "the first process, by the parent-death signal")
    left = [pid for pid in family if is_alive(pid)]
    assert left, "nothing was left to be ended"
    try:
        managers.start(ctx, name="next")
        (fresh,) = ctx.request_hosts(1)
        assert fresh.hostname().result(PATIENCE) == "next"
        assert not [pid for pid in family if is_alive(pid)], (
            "a host was offered with another's processes on it"
        )
        wait_until(
            lambda: len(list(own_folders.glob("holdfast-sv-*"))) == 1,
            PATIENCE,
            what="the dead one's folder to go",
        )
    finally:
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@pytest.mark.slow
def test_a_living_manager_is_left_alone_by_the_next(
    ctx: Context, managers: Managers, tmp_path: Path
) -> None:
    hosts, started = attach(ctx, managers, 1)
    _, family = start_family(ctx, hosts[0], tmp_path)
    warden = find_warden(started[0])
    managers.start(ctx, name="beside")
    assert ctx.request_hosts(1)[0].hostname().result(PATIENCE) == "beside"
    assert sum(is_alive(pid) for pid in family) >= len(family) - 1, "one is a sleep of a moment"
    os.kill(warden, signal.SIGSTOP)
    started[0].kill()  # the warden alone holds the lock now
    try:
        assert not end_leftovers(1.0)
        assert any(is_alive(pid) for pid in family)
    finally:
        os.kill(warden, signal.SIGCONT)
    wait_gone(family, "the family, by its warden")


@pytest.mark.parametrize(
    "content", [b"", b"{}", b"not json", b'{"mark": "x", "namespace": "pid:[1] y"}']
)
def test_a_folder_that_says_nothing_of_use_is_left_alone(content: bytes, own_folders: Path) -> None:
    folder = own_folders / "holdfast-sv-strange"
    folder.mkdir()
    (folder / "owner").write_bytes(content)
    assert end_leftovers(1.0) == 0
    assert (folder / "owner").exists()


@pytest.mark.slow
def test_processes_carry_a_brand_that_a_cleared_environment_leaves(
    ctx: Context, managers: Managers
) -> None:
    hosts, _ = attach(ctx, managers, 1)
    code = "import os; os.setsid() if os.getpid() != os.getsid(0) else None; os.execve('/bin/sleep', ['sleep', '6000'], {})"
    group = ctx.create_process_group(hosts, python(code), processes_per_host=2)
    brands = [table.read_brand(process.pid().result(PATIENCE)) for process in group]
    assert all(brands)
    assert len(set(brands)) == 2


@pytest.mark.slow
def test_inside_a_job_the_agents_brand_stays(managers: Managers) -> None:
    """Its guardian goes by that, and ends what is left."""
    with local_context() as ctx:
        (host,) = ctx.request_hosts(1)
        env = {**os.environ, "HOLDFAST_TASK": "7", "HOLDFAST_HOST": "h1"}
        command = ctx.manager_command()
        code = "import os, resource, sys; resource.setrlimit(10, (1 << 41, (1 << 53) + 5)); os.execv(sys.argv[1], sys.argv[1:])"
        managers.start_command([sys.executable, "-c", code, *command], env)
        (process,) = ctx.create_process_group([host], ["sleep", "6000"])
        assert table.read_brand(process.pid().result(PATIENCE)) == (1 << 41, (1 << 53) + 5)


# A manager that takes its warden, and whose warden takes it, for frozen after 1.5 s.
IMPATIENT = """
import sys; import holdfast.supervisor.host.warden as w; w.FROZEN_SECONDS = 1.5
w.fork_warden.__defaults__ = (1.5,)
from holdfast.cli.main import main; sys.argv[0] = 'holdfast'; main()
"""


@pytest.mark.slow
def test_a_frozen_warden_is_killed_and_takes_everything_with_it(
    ctx: Context, managers: Managers, tmp_path: Path
) -> None:
    """WARDEN-4."""
    (host,) = ctx.request_hosts(1)
    manager = managers.start_command([sys.executable, "-c", IMPATIENT, *ctx.manager_command()[3:]])
    process, family = start_family(ctx, host, tmp_path)
    os.kill(find_warden(manager), signal.SIGSTOP)
    wait_gone(family, "the family of the frozen warden")
    assert wait_exit(manager, PATIENCE) == EXIT_WARDEN_DIED
    assert process.returncode().result(PATIENCE) == -signal.SIGKILL


@pytest.mark.slow
def test_a_manager_that_is_told_to_end_ends_though_its_warden_is_frozen(
    ctx: Context, managers: Managers, tmp_path: Path
) -> None:
    (host,), (manager,) = attach(ctx, managers, 1)
    _, family = start_family(ctx, host, tmp_path)
    os.kill(find_warden(manager), signal.SIGSTOP)
    ctx.replace_hosts([host])
    assert manager.wait(2 * PATIENCE) != 0
    wait_gone(family, "the family of the frozen warden")


@contextlib.contextmanager
def no_descriptor(pid: int) -> Iterator[None]:
    """The process may open nothing more."""
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    used = max(int(name) for name in os.listdir(f"/proc/{pid}/fd")) + 1
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (used, before[1]))
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            resource.prlimit(pid, resource.RLIMIT_NOFILE, before)


@pytest.mark.slow
def test_a_warden_out_of_descriptors_ends_nobody_and_goes_on(
    ctx: Context, managers: Managers
) -> None:
    """WARDEN-5, TABLE-1."""
    (host,), (manager,) = attach(ctx, managers, 1)
    (process,) = ctx.create_process_group([host], ["sleep", "6000"])
    pid = process.pid().result(PATIENCE)
    warden = find_warden(manager)
    with no_descriptor(warden):
        time.sleep(6)  # it looks at the table every two seconds
        assert is_alive(pid)
        assert is_alive(warden)
        assert process.signal(signal.SIGCONT).result(PATIENCE) == 1
    assert process.end(0).result(PATIENCE) in (-signal.SIGTERM, -signal.SIGKILL)


@pytest.mark.slow
def test_a_manager_out_of_descriptors_ends_nobody_and_goes_on(
    ctx: Context, managers: Managers, tmp_path: Path
) -> None:
    (host,) = ctx.request_hosts(1)
    manager = managers.start(ctx, "--usage-interval", "0.2", name="m0")
    (process,) = ctx.create_process_group([host], ["sleep", "6000"])
    pid = process.pid().result(PATIENCE)
    with no_descriptor(manager.pid):
        time.sleep(2)
        assert process.signal(signal.SIGCONT).result(PATIENCE) == 1
        assert is_alive(pid)
    assert not host.connection_lost()


@pytest.mark.slow
def test_a_warden_that_dies_out_of_descriptors_leaves_nothing(
    ctx: Context, managers: Managers, tmp_path: Path
) -> None:
    """WARDEN-5: a manager that can read nothing must not take its children for gone."""
    (host,), (manager,) = attach(ctx, managers, 1)
    _, family = start_family(ctx, host, tmp_path)
    warden = find_warden(manager)
    with no_descriptor(manager.pid):
        os.kill(warden, signal.SIGKILL)
        wait_until(lambda: not is_alive(warden), PATIENCE, what="the warden's end")
        time.sleep(1)
    wait_gone(family, "the family of the dead warden")
    assert wait_exit(manager, PATIENCE) == EXIT_WARDEN_DIED


@pytest.mark.slow
def test_a_log_that_nobody_reads_freezes_no_manager(ctx: Context, managers: Managers) -> None:
    read_fd, write_fd = os.pipe()
    try:
        (host,) = ctx.request_hosts(1)
        command = [*ctx.manager_command(), "--name", "m0", "--usage-interval", "0"]
        managers.running.append(subprocess.Popen(command, stderr=write_fd))
        host.hostname().result(PATIENCE)
        os.set_blocking(write_fd, False)
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(write_fd, b"x" * 4096)
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(write_fd, b"x")
        for _ in range(3):
            (process,) = ctx.create_process_group([host], ["true"])
            assert process.returncode().result(PATIENCE) == 0
        os.set_blocking(read_fd, False)
        with contextlib.suppress(BlockingIOError):
            while os.read(read_fd, 1 << 20):
                pass
        assert ctx.create_process_group([host], ["true"])[0].returncode().result(PATIENCE) == 0
        lines = wait_until(
            lambda: os.read(read_fd, 1 << 20), PATIENCE, what="the log to go on"
        ).splitlines()
        assert json.loads(lines[0])["lines_lost_before"] >= 6
    finally:
        os.close(read_fd)
        os.close(write_fd)


@pytest.mark.slow
def test_a_key_file_of_another_run_is_read_again(managers: Managers, tmp_path: Path) -> None:
    """A manager that was there first, and a file that the last run has left."""
    key = tmp_path / "key"
    with local_context(key_file=key) as last:
        port = last.port
        command = last.manager_command()
    with local_context(key_file=tmp_path / "other"):
        pass
    assert key.exists()
    manager = managers.start_command([*command, "--name", "early"])
    wait_until(lambda: find_warden_or_none(manager), PATIENCE, what="the manager to have begun")
    with local_context(key_file=key, port=port) as ctx:
        (host,) = ctx.request_hosts(1)
        assert host.hostname().result(PATIENCE) == "early"


def find_warden_or_none(manager: subprocess.Popen[bytes]) -> bool:
    return any(entry.ppid == manager.pid for entry in table.read_table().values())
