"""A host whose disk is full, and files that broke off: ends arrive, starts are the host's failure,
nothing half-written is believed."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from holdfast.agent.config import MARK_FILE, read_mark
from holdfast.agent.folders import WorkFolders
from holdfast.agent.guardian.guardian_folder import (
    GROUP_RECORD,
    SOCKET_RECORD,
    GuardianFolder,
    read_group_homes,
)
from holdfast.agent.housekeeping import LOGS_KEEP_SECONDS, Housekeeper
from holdfast.agent.tasks.table import TaskTable
from holdfast.agent.tasks.task import TaskFile
from holdfast.agent.uplink.identity import HostIdentity, read_identity
from holdfast.core.endings.classify import classify
from holdfast.core.ids import TaskKey
from holdfast.errors import Conflict
from holdfast.process.groups import list_groups, name_group_folder
from holdfast.process.sweep import sweep
from holdfast.process.table import HOST_VARIABLE
from holdfast.wire.agent import LaunchOrder
from tests.system.agent.conftest import Host
from tests.system.agent.fake_controller import FakeController
from tests.system.small_disk import SmallDisk, disk
from tests.waits import is_alive, wait_exit, wait_until

__all__ = ["disk"]
MakeHost = Callable[..., Host]
WAIT_FOR = "while ! [ -e {go} ]; do sleep 0.02; done; exit {code}"


@pytest.fixture
def full_host(tmp_path: Path, disk: SmallDisk, url: str) -> Iterator[Host]:
    """A host whose state folder lies on the small disk; its journal does not."""
    host = Host(disk.path, url)
    host.journal = tmp_path / "journal.txt"
    yield host
    host.end()


@pytest.mark.slow
def test_a_full_disk_costs_no_end_and_no_agent(
    controller: FakeController, full_host: Host, disk: SmallDisk, tmp_path: Path
) -> None:
    host = full_host.start()
    keys = {}
    for code in (7, 8, 0):
        go = tmp_path / f"go{code}"
        keys[code] = controller.launch(
            "sh", "-c", WAIT_FOR.format(go=go, code=code), job=f"job{code}"
        )
    for key in keys.values():
        controller.wait_running(key)
    disk.fill()
    (tmp_path / "go7").touch()
    assert controller.wait_end(keys[7]).exit_code == 7
    # What cannot be prepared is the host's failure, never the job's.
    wait_until(lambda: not (disk.path / "state" / "tasks" / "job7.0.1" / "stdout").exists())
    disk.fill()  # what the first task gave back
    facts = controller.wait_end(controller.launch("true", job="unlucky"))
    assert (classify(facts).rule, facts.exit_code) == ("host-start", None)
    assert "No space left" in (facts.lost or "")
    # An agent that dies now finds its tasks again.
    first = host.agent_pid()
    os.kill(first, signal.SIGKILL)
    host.agent_pid(but=first)
    assert all(is_alive(controller.pids[keys[code]]) for code in (8, 0))
    (tmp_path / "go8").touch()
    assert controller.wait_end(keys[8]).exit_code == 8
    os.kill(host.agent_pid(), signal.SIGSTOP)  # one that ends while its agent is stopped
    (tmp_path / "go0").touch()
    wait_until(lambda: not is_alive(controller.pids[keys[0]]))
    os.kill(host.agent_pid(), signal.SIGKILL)
    facts = controller.wait_end(keys[0])
    assert (facts.exit_code, facts.lost) == (0, None)
    disk.free()
    key = controller.launch("sh", "-c", "echo again", job="lucky")
    assert controller.wait_end(key).succeeded
    assert host.stop() == 0


@pytest.mark.slow
def test_output_that_a_full_disk_does_not_take_is_counted(
    controller: FakeController, full_host: Host, disk: SmallDisk, tmp_path: Path
) -> None:
    """The job goes on, and neither its end nor its log is silent about what is missing."""
    full_host.start()
    go = tmp_path / "go"
    line = f"echo first; {WAIT_FOR.format(go=go, code=0)}".replace(
        "exit 0", "head -c 300000 /dev/zero; exit 0"
    )
    key = controller.launch("sh", "-c", line)
    controller.wait_running(key)
    controller.wait(lambda: controller.log_of(key) == b"first\n")
    disk.fill()
    go.touch()
    facts = controller.wait_end(key)
    assert facts.succeeded
    (notice,) = facts.notices
    assert "bytes of its stdout are lost: No space left on device" in notice
    controller.wait_logs(key)
    assert controller.logs_ended[key, "stdout"] == 300_006


@pytest.mark.slow
def test_a_guardian_starts_on_a_full_disk(
    controller: FakeController, full_host: Host, disk: SmallDisk
) -> None:
    """It must: somebody has to end what the last one left and say so (GUARD-5)."""
    host = full_host.start()
    key = controller.launch("sh", "-c", "setsid sleep 600 & sleep 600")
    pid = controller.wait_running(key)
    assert host.process is not None
    agent = host.agent_pid()
    disk.fill()
    os.kill(agent, signal.SIGSTOP)
    os.kill(agent, signal.SIGKILL)
    host.process.kill()
    wait_exit(host.process, 10)
    controller.lose(key)
    host.start()
    controller.wait(lambda: len({request.incarnation for request in controller.registrations}) == 2)
    assert not is_alive(pid)
    disk.free()
    assert controller.wait_end(controller.launch("true", job="next")).succeeded


def test_a_task_whose_output_cannot_be_opened_is_the_hosts_failure(
    controller: FakeController, full_host: Host, disk: SmallDisk
) -> None:
    """The folder is there, the file is not, and no inode is left for it: found between fork and
    exec, by the child."""
    full_host.start()
    controller.wait(lambda: controller.registrations)
    facts = controller.wait_end(controller.launch("true", job="first"))
    assert facts.succeeded
    table = wait_until(lambda: full_host.folder / "state" / "tasks")
    blocker = table / "job.0.1"
    blocker.mkdir(mode=0o700)
    (blocker / "stdout").mkdir()
    facts = controller.wait_end(controller.launch("true", job="job"))
    assert (classify(facts).rule, "stdout file" in (facts.lost or "")) == ("host-start", True)


# ---- files that broke off


ORDER = LaunchOrder(
    key=TaskKey("job", 0, 1),
    attempt=1,
    name="n",
    queue="q",
    project="p",
    argv=["x"],
    env={"A": "b"},
)


def cut(data: bytes) -> Iterator[bytes]:
    """Every way in which a file can have broken off, or been filled with zeros by a disk that lost
    power."""
    for length in range(len(data)):
        yield data[:length]
        yield data[:length] + b"\0" * (len(data) - length)


def test_no_part_of_a_tasks_files_is_believed(tmp_path: Path) -> None:
    table = TaskTable(tmp_path)
    table.open()
    task = table.add(ORDER, 0.0)
    task.saved.stop_asked, task.saved.shipped = True, {"stdout": 123}
    task.save(1.0)
    for name in ("order.json", "state.json"):
        whole = (task.folder / name).read_bytes()
        for part in cut(whole):
            (task.folder / name).write_bytes(part)
            found = TaskTable(tmp_path).restore(ORDER.key, 2.0)
            if name == "order.json":
                assert found.order is None
            else:
                assert (found.order, found.saved) == (ORDER, TaskFile())
        (task.folder / name).write_bytes(whole)
    found = TaskTable(tmp_path).restore(ORDER.key, 2.0)
    assert (found.order, found.saved.shipped, found.saved.stop_asked) == (
        ORDER,
        {"stdout": 123},
        True,
    )


def test_no_part_of_a_hosts_files_is_believed(tmp_path: Path) -> None:
    path = tmp_path / "host.json"
    whole = msgspec.json.encode(
        HostIdentity(url="http://c", host_id="h", host_key="k", incarnation="i")
    )
    for part in cut(whole):
        path.write_bytes(part)
        assert read_identity(path) == HostIdentity()


def test_no_part_of_a_mark_is_a_mark(tmp_path: Path) -> None:
    """Two hosts on one machine whose marks broke off to the same few letters would sweep each
    other's tasks."""
    mark = read_mark(tmp_path)
    assert read_mark(tmp_path) == mark
    for part in [*cut(mark.encode()), b"\xff" * 16, b"../../../../../.."]:
        (tmp_path / MARK_FILE).write_bytes(part)
        made = read_mark(tmp_path)
        assert (len(made), made != mark) == (len(mark), True)
        assert read_mark(tmp_path) == made


def test_no_part_of_a_record_of_groups_is_swept(tmp_path: Path) -> None:
    """SWEEP-2: a path that broke off names a folder above, and what lies in that is everybody
    else's."""
    mark = "0123456789abcdef"
    home = tmp_path / "cgroup" / "memory" / name_group_folder(mark)
    for group in (home / "t1", home.parent / "system.slice", home.parent.parent / "memory2"):
        group.mkdir(parents=True)
        (group / "cgroup.procs").write_text("")
        (group / "cgroup.kill").write_text("")
    whole = str(home).encode()
    killed = lambda: [path for path in tmp_path.rglob("cgroup.kill") if path.read_text()]  # noqa: E731  shorter
    for part in [*cut(whole), b"\xff\xfe"]:
        (tmp_path / GROUP_RECORD).write_bytes(part)
        homes = read_group_homes(tmp_path)
        assert sweep(mark, group_homes=homes) == []
        assert killed() == []
    (tmp_path / GROUP_RECORD).write_bytes(whole)
    assert list_groups(str(home))
    sweep(mark, group_homes=read_group_homes(tmp_path), kill_limit_seconds=0.1)
    assert [path.parent.name for path in killed()] == ["t1"]


def test_a_guardian_opens_its_folder_whatever_broke_off_in_it(tmp_path: Path) -> None:
    for part in (b"", b"\0" * 40, b"\xff\xfe\xfd", b"/", b"/tmp", str(tmp_path).encode()):
        for name in (SOCKET_RECORD, GROUP_RECORD, "guardian.lock"):
            (tmp_path / name).write_bytes(part)
        home = GuardianFolder(tmp_path)
        with pytest.raises(Conflict, match=f"pid {os.getpid()}"):
            GuardianFolder(tmp_path)
        home.close()
    assert tmp_path.is_dir()


def test_a_swept_host_is_found_by_its_mark_where_the_record_of_its_groups_is_lost(
    tmp_path: Path,
) -> None:
    mark = os.urandom(8).hex()
    with subprocess.Popen(
        ["sleep", "600"], env={HOST_VARIABLE: mark, "PATH": os.environ["PATH"]}
    ) as left:
        (tmp_path / GROUP_RECORD).write_bytes(b"/sys")
        environ = Path(f"/proc/{left.pid}/environ")
        wait_until(lambda: mark.encode() in environ.read_bytes(), what="what it was started with")
        assert sweep(mark, group_homes=read_group_homes(tmp_path)) == []
        assert wait_exit(left, 10) == -signal.SIGKILL


def test_an_order_that_cannot_be_deleted_is_said_and_costs_no_agent(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A disk that has become read-only: the log shipper, which puts tasks away too, must live
    through it."""
    table = TaskTable(tmp_path)
    table.open()
    task = table.add(
        LaunchOrder(
            key=TaskKey("job", 0, 1), attempt=1, name="n", queue="q", project="p", argv=["x"]
        ),
        0.0,
    )
    task.saved.shipped = {
        "stdout": task.keep_bytes + 1
    }  # kept only in part: its files stay here for a while
    (task.folder / "order.json").unlink()
    (task.folder / "order.json").mkdir()  # not to be unlinked
    keeper = Housekeeper(table, WorkFolders(tmp_path / "work"))
    keeper.put_away(task)
    assert "with its secrets, stays on disk" in caplog.text
    keeper.clean(time.time() + LOGS_KEEP_SECONDS + 60)
    assert not task.folder.exists()
