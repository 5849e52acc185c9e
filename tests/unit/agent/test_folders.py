"""FOLDER-1…3: an emptied folder is handed on to the next task, and none is deleted that is in use."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from pathlib import Path

import pytest

from holdfast.agent import folders
from holdfast.agent.folders import (
    MAX_SPARES,
    ORDER_FILE,
    OUT_FOLDER,
    PEERS_FILE,
    READY_FOLDERS,
    READY_STATE,
    SOON_SECONDS,
    STATE_FILE,
    TOKEN_FILE,
    TaskFolders,
    WorkFolders,
)
from holdfast.agent.housekeeping import Housekeeper
from holdfast.agent.tasks import AgentTask, TaskTable
from holdfast.core.ids import TaskKey
from holdfast.process.spawn import READY
from holdfast.wire.agent import LaunchOrder
from tests.waits import wait_until


def order(job: str, *, attempt: int = 1, fresh: bool = False) -> LaunchOrder:
    return LaunchOrder(
        key=TaskKey(job, 0, attempt),
        attempt=attempt,
        name="n",
        queue="q",
        project="p",
        argv=["x"],
        fresh_workdir=fresh,
    )


MADE_AHEAD = {ORDER_FILE, PEERS_FILE, TOKEN_FILE, READY_STATE, f"stdout{READY}", "stderr"}


def use(folders: TaskFolders, path: Path) -> int:
    """Let a task have a folder and leave its files there; return which folder it is."""
    folders.make(path)
    found = {entry.name for entry in path.iterdir()}
    assert OUT_FOLDER in found <= {OUT_FOLDER, *MADE_AHEAD}
    assert not any((path / name).read_bytes() for name in found - {OUT_FOLDER})
    assert not list((path / OUT_FOLDER).iterdir())
    assert path.stat().st_mode & 0o777 == (path / OUT_FOLDER).stat().st_mode & 0o777 == 0o700
    (path / f"stdout{READY}").unlink(missing_ok=True)  # it becomes the log
    for name in ("order.json", "token", "stdout", "stderr"):
        (path / name).write_text("secret")
    return path.stat().st_ino


def test_the_next_task_gets_the_folder_of_one_that_is_over(tmp_path: Path) -> None:
    folders = TaskFolders()
    first = use(folders, tmp_path / "a.0.1")
    folders.put_back(tmp_path / "a.0.1")
    assert use(folders, tmp_path / "b.0.1") == first
    assert [entry.name for entry in tmp_path.iterdir()] == ["b.0.1"]


def test_a_folder_is_handed_on_with_empty_files(tmp_path: Path) -> None:
    """A task is waited for when its order is written and its logs are opened."""
    table = TaskTable(tmp_path)
    table.open()
    first = table.add(order("a"), 0.0)
    written = (first.folder / ORDER_FILE).read_bytes()
    table.drop(first)
    table.put_folder_back(first)
    table.prepare_folders()
    made = (first.folder / ORDER_FILE).stat()
    assert (made.st_size, made.st_mode & 0o777) == (0, 0o600)
    orders = {path.stat().st_ino for path in first.folder.parent.glob(f"*/{ORDER_FILE}")}
    assert len(orders) == len(READY_FOLDERS)
    second = table.add(order("b"), 1.0).folder / ORDER_FILE
    assert second.stat().st_ino in orders
    assert second.read_bytes() == written.replace(b'"a"', b'"b"')
    assert {path.name for path in second.parent.iterdir()} == {OUT_FOLDER, *MADE_AHEAD}


def leave_files(table: TaskTable, job_id: str) -> AgentTask:
    """A task that has written what a short task writes, and is over."""
    task = table.add(order(job_id), 0.0)
    for stream in ("stdout", "stderr"):
        with contextlib.suppress(FileNotFoundError):
            (task.folder / f"{stream}{READY}").rename(task.folder / stream)
        fd = os.open(task.folder / stream, os.O_WRONLY | os.O_CREAT, 0o600)
        os.write(fd, b"of " + job_id.encode())
        os.close(fd)
    task.saved.stop_asked = True
    table.save(task, 1.0)
    table.drop(task)
    return task


def list_files(folder: Path) -> dict[str, int]:
    """The inodes of what is in a folder, by the name that a task gives it."""
    return {path.name.removesuffix(READY): path.stat().st_ino for path in folder.iterdir()}


def test_a_file_is_emptied_and_not_made_again(tmp_path: Path) -> None:
    """On some file systems a new file looks at every one that was deleted in the last minutes."""
    table = TaskTable(tmp_path)
    table.open()
    first = leave_files(table, "a")
    before = list_files(first.folder)
    table.put_folder_back(first)
    second = table.add(order("b"), 2.0)
    assert {path.name for path in second.folder.iterdir()} == {OUT_FOLDER, *MADE_AHEAD}
    sizes = {path.name: path.stat().st_size for path in second.folder.iterdir() if path.is_file()}
    assert [name for name, size in sizes.items() if size] == [ORDER_FILE]
    assert {*before.items()} <= {*list_files(second.folder).items()}
    assert TaskTable(tmp_path).restore(second.key, 3.0).order == second.order


@pytest.mark.parametrize("how", ["open", "linked", "shown"])
def test_a_file_that_is_not_the_tasks_alone_is_deleted(tmp_path: Path, how: str) -> None:
    """FOLDER-1: a process that is left over writes into no other task's log."""
    table = TaskTable(tmp_path)
    table.open()
    first = leave_files(table, "a")
    log = first.folder / "stderr"
    with log.open("ab") as writer:
        if how != "open":
            writer.close()
        if how == "linked":
            os.link(log, tmp_path / "kept")
        elif how == "shown":
            log.chmod(0o644)
        table.put_folder_back(first)
        second = table.add(order("b"), 2.0)
        assert {path.name for path in second.folder.iterdir()} == {OUT_FOLDER, ORDER_FILE}


def test_the_first_tasks_get_folders_that_were_made_for_none(tmp_path: Path) -> None:
    """A gang that starts again has its folders still in use, and so had no task before the first."""
    table = TaskTable(tmp_path)
    table.open()
    tasks = tmp_path / "tasks"
    left = tasks / READY_FOLDERS[0] / "an earlier agent's"
    left.mkdir(parents=True)
    table.prepare_folders()
    assert {path.name for path in tasks.iterdir()} == {*READY_FOLDERS}
    assert not left.exists()
    made = {path.stat().st_ino for path in tasks.iterdir()}
    given = [table.add(order(f"j{number}"), 0.0).folder for number in range(len(READY_FOLDERS))]
    assert {path.stat().st_ino for path in given} == made
    assert {path.name for path in given[0].iterdir()} == {OUT_FOLDER, *MADE_AHEAD}
    table.prepare_folders()
    assert {*READY_FOLDERS} < {path.name for path in tasks.iterdir()}
    assert {key.job_id for key in TaskTable(tmp_path).find_kept()} == {
        path.name[:2] for path in given
    }


def test_a_state_is_written_into_the_file_that_lies_ready(tmp_path: Path) -> None:
    """On some file systems a new file looks at every one that was deleted in the last minutes."""
    table = TaskTable(tmp_path)
    table.open()
    table.prepare_folders()
    task = table.add(order("a"), 0.0)
    ready = (task.folder / READY_STATE).stat().st_ino
    for seconds in (1.0, 2.0):
        task.saved.shipped = {"stdout": int(seconds)}
        table.save(task, seconds)
        assert ((task.folder / STATE_FILE).stat().st_ino == ready) is (seconds == 1.0)
        assert TaskTable(tmp_path).restore(task.key, seconds).saved.shipped == {"stdout": seconds}
    assert {path.name for path in task.folder.iterdir()} == {
        STATE_FILE,
        OUT_FOLDER,
        *MADE_AHEAD - {READY_STATE},
    }


def test_nothing_is_made_while_a_task_ends(tmp_path: Path) -> None:
    table = TaskTable(tmp_path)
    table.open()
    task = table.add(order("a"), 0.0)
    task.saved.stop_asked = True
    table.prepare_folders()
    assert [path.name for path in task.folder.parent.iterdir()] == [task.folder.name]
    task.saved.stop_asked = False
    table.prepare_folders()
    assert len([*task.folder.parent.iterdir()]) == 1 + len(READY_FOLDERS)


def test_an_emptied_folder_is_no_task_to_the_next_agent(tmp_path: Path) -> None:
    """FOLDER-1."""
    table = TaskTable(tmp_path)
    table.open()
    first = table.add(order("a"), 0.0)
    table.drop(first)
    table.put_folder_back(first)
    table.prepare_folders()
    followed: list[AgentTask] = []
    later = TaskTable(tmp_path)
    Housekeeper(later, WorkFolders(tmp_path / "work")).take_leftovers(1.0, followed.append)
    assert not followed
    assert not len(later)
    assert not first.folder.exists()


@pytest.mark.parametrize("left", ["checkpoint", "other", "open", "open out", "link", "folder"])
def test_a_folder_that_is_not_as_it_was_made_is_deleted(tmp_path: Path, left: str) -> None:
    """FOLDER-1."""
    folders, path, others = TaskFolders(), tmp_path / "a.0.1", tmp_path / "others"
    others.mkdir()
    (others / "stdout").write_text("another's")
    use(folders, path)
    if left == "checkpoint":
        (path / OUT_FOLDER / "checkpoint.5").write_bytes(b"saved")
    elif left == "other":
        (path / "core").write_bytes(b"")
    elif left == "open":
        path.chmod(0o755)
    elif left == "open out":
        (path / OUT_FOLDER).chmod(0o500)
    elif left == "link":
        (path / OUT_FOLDER).rmdir()
        (path / OUT_FOLDER).symlink_to(others)
    else:
        (path / "stdout").unlink()
        (path / "stdout").mkdir()
    folders.put_back(path)
    assert not path.exists()
    use(folders, tmp_path / "b.0.1")
    assert (others / "stdout").read_text() == "another's"


@pytest.mark.parametrize("prepared", [False, True])
@pytest.mark.parametrize("name", ["state.json", "stderr", f"{OUT_FOLDER}/checkpoint"])
def test_a_folder_in_which_something_appeared_meanwhile_is_not_handed_on(
    tmp_path: Path, name: str, prepared: bool
) -> None:
    """FOLDER-1."""
    folders = TaskFolders()
    for job in ("a", "b"):
        use(folders, tmp_path / f"{job}.0.1")
    for job in ("a", "b"):
        folders.put_back(tmp_path / f"{job}.0.1")
    if prepared:
        folders.prepare()
    next_one = "a.0.1" if prepared else "b.0.1"
    (tmp_path / next_one / name).write_text("late")
    use(folders, tmp_path / "c.0.1")
    assert not (tmp_path / next_one).exists()


def test_the_state_of_a_task_that_is_over_is_not_written_into_anothers_folder(
    tmp_path: Path,
) -> None:
    """A part of the agent may still be at work for a task that was forgotten meanwhile."""
    table = TaskTable(tmp_path)
    table.open()
    first = table.add(order("a"), 0.0)
    table.drop(first)
    table.put_folder_back(first)
    first.dirty = True
    table.save(first, 1.0)
    table.save_changed(first, 1.0)
    assert not (first.folder / "state.json").exists()
    second = table.add(order("b"), 2.0)
    assert {path.name for path in second.folder.iterdir()} == {OUT_FOLDER, *MADE_AHEAD}


def test_a_key_that_comes_again_gets_its_own_folder(tmp_path: Path) -> None:
    folders, path = TaskFolders(), tmp_path / "a.0.1"
    use(folders, path)
    folders.put_back(path)
    use(folders, path)
    use(folders, tmp_path / "b.0.1")
    assert path.exists()


def test_a_start_waits_for_no_folder_that_is_prepared_but_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk may hold the making of files up for as long as it likes."""
    task_folders, path = TaskFolders(), tmp_path / "a.0.1"
    use(task_folders, path)
    task_folders.put_back(path)
    begun, go_on, look = threading.Event(), threading.Event(), folders.make_empty

    def make_slowly(name: str) -> None:
        begun.set()
        assert go_on.wait(20)
        look(name)

    monkeypatch.setattr(folders, "make_empty", make_slowly)
    preparer = threading.Thread(target=task_folders.prepare)
    preparer.start()
    assert begun.wait(20)
    use(task_folders, tmp_path / "b.0.1")
    again = threading.Thread(target=lambda: task_folders.make(path))
    again.start()
    again.join(0.05)
    assert again.is_alive(), "it was given the folder while files were made there"
    go_on.set()
    again.join(20)
    preparer.join(20)
    assert not again.is_alive()
    assert path.is_dir()
    assert use(task_folders, tmp_path / "c.0.1") != path.stat().st_ino


def test_a_folder_that_vanished_is_made_anew(tmp_path: Path) -> None:
    folders = TaskFolders()
    use(folders, tmp_path / "a.0.1")
    folders.put_back(tmp_path / "a.0.1")
    (tmp_path / "a.0.1").rename(tmp_path / "away")
    use(folders, tmp_path / "b.0.1")


def test_no_more_task_foldersare_kept_than_the_bound(tmp_path: Path) -> None:
    folders, paths = TaskFolders(), [tmp_path / f"a.{rank}.1" for rank in range(MAX_SPARES + 3)]
    for path in paths:
        use(folders, path)
    for path in paths:
        folders.put_back(path)
    assert len(list(tmp_path.iterdir())) == MAX_SPARES


def test_an_empty_work_folder_is_deleted_and_another_is_as_old_as_its_last_attempt(
    tmp_path: Path,
) -> None:
    works = WorkFolders(tmp_path / "work")
    folders = [Path(works.make(one)) for one in (order("a"), order("b"), order("c", fresh=True))]
    (folders[1] / "result").write_text("kept")
    os.utime(folders[1], (1.0, 1.0))
    assert folders[2] == tmp_path / "work" / "c" / "attempt-1"
    for one in (order("a"), order("b"), order("c", fresh=True)):
        works.leave(one.key.job_id, one)
    works.sweep()
    works.prepare()
    assert {path.name for path in works.root.iterdir()} == {"b", *READY_FOLDERS}
    assert folders[1].stat().st_mtime > time.time() - 60


def test_the_next_jobs_get_the_work_task_foldersthat_lie_ready(tmp_path: Path) -> None:
    works = WorkFolders(tmp_path)
    works.prepare()
    made = {(tmp_path / name).stat().st_ino for name in READY_FOLDERS}
    folders = [Path(works.make(order(f"j{number}"))) for number in range(len(READY_FOLDERS) + 1)]
    assert {folder.stat().st_ino for folder in folders[:-1]} == made
    assert all(folder.stat().st_mode & 0o777 == 0o700 for folder in folders)
    (folders[0] / "result").write_text("kept")
    works.prepare()
    assert works.make(order("j0", attempt=2)) == str(folders[0])
    assert (folders[0] / "result").read_text() == "kept"
    assert {path.name for path in tmp_path.iterdir()} == {
        *READY_FOLDERS,
        *(f.name for f in folders),
    }


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_the_next_job_gets_the_empty_folder_of_a_short_one(tmp_path: Path) -> None:
    """FOLDER-3."""
    works = WorkFolders(tmp_path, Clock())
    old = Path(works.make(order("a"))).stat().st_ino
    works.leave("a", order("a"))
    works.sweep()
    made = Path(works.make(order("b")))
    assert (made.name, made.stat().st_ino, made.stat().st_mode & 0o777) == ("b", old, 0o700)
    assert [path.name for path in tmp_path.iterdir()] == ["b"]
    works.leave("b", order("b"))
    works.prepare()
    assert {path.name for path in tmp_path.iterdir()} == set(READY_FOLDERS)  # nothing ends: it goes


@pytest.mark.parametrize(
    "what", ["file", "came and went", "rights", "later", "ended late", "fresh", "taken late"]
)
def test_a_folder_that_may_be_looked_into_goes_to_no_other_job(tmp_path: Path, what: str) -> None:
    """FOLDER-3."""
    clock = Clock()
    works = WorkFolders(tmp_path, clock)
    first = order("a", fresh=what == "fresh")
    folder = Path(works.make(first)) if what != "fresh" else Path(works.make(first)).parent
    old = folder.stat().st_ino
    if what in ("file", "came and went"):
        (folder / "result").touch()
    if what == "came and went":
        wait_until(lambda: touch_and_see(folder))
    if what == "rights":
        folder.chmod(0o755)
    clock.now += SOON_SECONDS + 0.1 if what == "ended late" else SOON_SECONDS
    works.leave("a", first)
    if what == "later":
        (folder / "result").touch()
    clock.now += 0.1 if what == "taken late" else 0.0
    made = Path(works.make(order("b")))
    assert made.stat().st_ino != old
    assert not list(made.iterdir())
    works.sweep()
    assert folder.exists() == (what in ("file", "later"))


def touch_and_see(folder: Path) -> bool:
    """Make and delete a file in it; return whether the clock of the file system has moved."""
    before = folder.stat().st_ctime_ns
    (folder / "result").touch()
    (folder / "result").unlink()
    return folder.stat().st_ctime_ns != before


def test_an_attempt_that_comes_again_keeps_its_folder(tmp_path: Path) -> None:
    """FOLDER-2."""
    works = WorkFolders(tmp_path, Clock())
    folder = Path(works.make(order("a")))
    old = folder.stat().st_ino
    works.leave("a", order("a"))
    assert works.make(order("a", attempt=2)) == str(folder)
    assert Path(works.make(order("b"))).stat().st_ino != old
    works.sweep()
    works.prepare()
    assert folder.stat().st_ino == old


def test_no_more_work_folders_are_kept_than_the_bound(tmp_path: Path) -> None:
    works = WorkFolders(tmp_path, Clock())
    jobs = [order(f"j{number}") for number in range(MAX_SPARES + 2)]
    for one in jobs:
        works.make(one)
    for one in jobs:
        works.leave(one.key.job_id, one)
    works.sweep()
    assert len(list(tmp_path.iterdir())) == MAX_SPARES


@pytest.mark.parametrize("left", ["empty", "full", "gone"])
def test_what_an_earlier_agent_left_ready_is_given_to_no_job(tmp_path: Path, left: str) -> None:
    WorkFolders(tmp_path).prepare()
    old = [tmp_path / name for name in READY_FOLDERS]
    if left == "full":
        for path in old:
            (path / "another's").touch()
    works = WorkFolders(tmp_path)
    before = {path.stat().st_ino for path in old}
    assert Path(works.make(order("a"))).stat().st_ino not in before
    works.prepare()
    if left == "gone":
        for path in old:
            path.rmdir()
    assert not list(Path(works.make(order("b"))).iterdir())


def test_a_deletion_is_called_off_by_the_next_attempt(tmp_path: Path) -> None:
    """FOLDER-2."""
    works = WorkFolders(tmp_path)
    works.make(order("a"))
    works.leave("a", order("a"))
    folder = Path(works.make(order("a", attempt=2)))
    works.sweep()
    assert folder.is_dir()


@pytest.mark.parametrize("long", [True, False])
def test_the_next_attempt_waits_for_a_deletion_that_has_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, long: bool
) -> None:
    """FOLDER-2."""
    clock = Clock()
    works = WorkFolders(tmp_path, clock)
    works.make(order("a"))
    clock.now += SOON_SECONDS + 0.1 if long else 0.0
    works.leave("a", order("a"))
    begun, go_on, delete = threading.Event(), threading.Event(), os.rmdir

    def delete_slowly(path: str) -> None:
        begun.set()
        assert go_on.wait(20)
        delete(path)

    monkeypatch.setattr(os, "rmdir", delete_slowly)
    sweeper = threading.Thread(target=works.sweep if long else works.prepare)
    sweeper.start()
    assert begun.wait(20)
    made: list[str] = []
    maker = threading.Thread(target=lambda: made.append(works.make(order("a", attempt=2))))
    maker.start()
    maker.join(0.05)
    go_on.set()
    sweeper.join()
    wait_until(lambda: made)
    assert Path(made[0]).is_dir()
