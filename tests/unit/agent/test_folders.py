"""The folders of tasks and jobs: whose they are, and when they go (FOLDER-1)."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from holdfast.agent.folders import (
    ORDER_FILE,
    OUT_FOLDER,
    SPARE_FOLDER,
    TRIAL_FOLDER,
    WorkFolders,
    make_trial,
)
from holdfast.agent.housekeeping import Housekeeper
from holdfast.agent.tasks.table import TaskTable
from holdfast.agent.tasks.task import AgentTask
from holdfast.core.ids import TaskKey
from holdfast.core.states import AgentTaskEvent
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


def make_table(folder: Path) -> TaskTable:
    table = TaskTable(folder)
    table.open()
    return table


def test_a_tasks_folder_is_its_own_and_private(tmp_path: Path) -> None:
    table = make_table(tmp_path)
    folders = [table.add(order(job), 0.0).folder for job in ("a", "b")]
    for folder in folders:
        assert {path.name for path in folder.iterdir()} == {ORDER_FILE, OUT_FOLDER}
        assert (
            folder.stat().st_mode & 0o777 == (folder / OUT_FOLDER).stat().st_mode & 0o777 == 0o700
        )
        assert (folder / ORDER_FILE).stat().st_mode & 0o777 == 0o600


def test_the_folder_of_a_task_that_is_over_is_deleted_beside_the_loop(tmp_path: Path) -> None:
    """A deletion waits for the disk, and no slot waits for a deletion."""
    table = make_table(tmp_path)
    keeper = Housekeeper(table, WorkFolders(tmp_path / "work"))
    task = table.add(order("a"), 0.0)
    (task.folder / OUT_FOLDER / "checkpoint.5").write_bytes(b"saved")
    keep = table.add(order("b"), 0.0)
    table.drop(task)
    keeper.put_away(task)
    assert task.folder.is_dir()
    task.dirty = True
    table.save_changed(task, 1.0)
    assert not (task.folder / "state.json").exists(), "what is over writes no state"
    keeper.sweep()
    assert not task.folder.exists()
    assert keep.folder.is_dir()


def test_a_killed_agents_successor_deletes_what_never_ran(tmp_path: Path) -> None:
    table = make_table(tmp_path)
    begun, never = (table.add(order(job), 0.0) for job in ("a", "b"))
    (begun.folder / "stdout").write_text("of a")
    make_trial(tmp_path / "tasks")
    followed: list[AgentTask] = []
    later = TaskTable(tmp_path)
    Housekeeper(later, WorkFolders(tmp_path / "work")).take_leftovers(1.0, followed.append)
    assert [task.key for task in followed] == [begun.key]
    assert not never.folder.exists()
    assert (tmp_path / "tasks" / TRIAL_FOLDER).is_dir(), "it is no task's"
    followed[0].move(AgentTaskEvent.FORGET)
    assert later.get(never.key) is None


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
    assert {path.name for path in works.root.iterdir()} == {"b", SPARE_FOLDER}
    assert folders[1].stat().st_mtime > time.time() - 60


def test_a_deletion_is_called_off_by_the_next_attempt(tmp_path: Path) -> None:
    """FOLDER-1."""
    works = WorkFolders(tmp_path)
    works.make(order("a"))
    works.leave("a", order("a"))
    folder = Path(works.make(order("a", attempt=2)))
    works.sweep()
    assert folder.is_dir()


def test_the_next_attempt_waits_for_a_deletion_that_has_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FOLDER-1."""
    works = WorkFolders(tmp_path)
    works.make(order("a"))
    works.leave("a", order("a"))
    begun, go_on, delete = threading.Event(), threading.Event(), os.rename

    def delete_slowly(path: str, spare: str) -> None:
        begun.set()
        assert go_on.wait(20)
        delete(path, spare)

    monkeypatch.setattr(os, "rename", delete_slowly)
    sweeper = threading.Thread(target=works.sweep)
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


def run_task(table: TaskTable, works: WorkFolders, job: str) -> tuple[AgentTask, Path]:
    task = table.add(order(job), 0.0)
    return task, Path(works.make(order(job)))


def end_task(table: TaskTable, works: WorkFolders, task: AgentTask) -> None:
    table.drop(task)
    works.leave(task.key.job_id, task.order)
    table.remove_folder(task.key)
    works.sweep()


def test_the_empty_folders_of_a_task_become_the_next_tasks(tmp_path: Path) -> None:
    """FOLDER-2: neither is made or deleted, and each is as if it were new."""
    table, works = make_table(tmp_path), WorkFolders(tmp_path / "work")
    first, work = run_task(table, works, "a")
    (first.folder / "stdout").write_text("of a")
    os.utime(work, (1.0, 1.0))
    places = [first.folder.stat().st_ino, work.stat().st_ino]
    end_task(table, works, first)
    assert not first.folder.exists()
    assert not work.exists()
    assert table.find_kept() == []
    second, work = run_task(table, works, "b")
    assert [second.folder.stat().st_ino, work.stat().st_ino] == places
    assert {path.name for path in second.folder.iterdir()} == {ORDER_FILE, OUT_FOLDER}
    assert not list((second.folder / OUT_FOLDER).iterdir())
    assert work.stat().st_mtime > time.time() - 60


def test_a_folder_that_a_job_changed_is_no_other_jobs(tmp_path: Path) -> None:
    """FOLDER-2."""
    table, works = make_table(tmp_path), WorkFolders(tmp_path / "work")
    open_to_all, saved, crowded, full = (
        run_task(table, works, job) for job in ("a", "b", "c", "d")
    )
    for folder in (open_to_all[0].folder, open_to_all[1]):
        folder.chmod(0o755)
    (saved[0].folder / OUT_FOLDER / "checkpoint").write_bytes(b"saved")
    (saved[1] / "result").write_text("kept")
    (crowded[0].folder / "place").mkdir()
    crowded[1].rmdir()
    crowded[1].symlink_to(tmp_path)
    (full[0].folder / OUT_FOLDER).chmod(0o750)
    full[1].chmod(0o1700)
    for task, _ in (open_to_all, saved, crowded, full):
        end_task(table, works, task)
        assert not task.folder.exists()
    for root in (tmp_path / "tasks", tmp_path / "work"):
        assert not list((root / SPARE_FOLDER).iterdir())
    assert (saved[1] / "result").read_text() == "kept"


def test_a_rank_beside_which_another_works_keeps_its_folder(tmp_path: Path) -> None:
    """FOLDER-2: what is there is never replaced by a spare folder."""
    table, works = make_table(tmp_path), WorkFolders(tmp_path / "work")
    first, work = run_task(table, works, "a")
    second, spare = run_task(table, works, "b")
    end_task(table, works, second)
    place = work.stat().st_ino
    assert Path(works.make(order("a"))) == work
    assert work.stat().st_ino == place
    assert not spare.exists()
    assert first.folder.is_dir()


def test_a_killed_agents_successor_goes_on_with_its_spare_folders(tmp_path: Path) -> None:
    """FOLDER-2."""
    table, works = make_table(tmp_path), WorkFolders(tmp_path / "work")
    first, work = run_task(table, works, "a")
    places = [first.folder.stat().st_ino, work.stat().st_ino]
    end_task(table, works, first)
    later, later_works = make_table(tmp_path), WorkFolders(tmp_path / "work")
    keeper = Housekeeper(later, later_works)
    keeper.take_leftovers(1.0, lambda task: None)
    keeper.clean(time.time() + 8 * 86_400)
    second, work = run_task(later, later_works, "b")
    assert [second.folder.stat().st_ino, work.stat().st_ino] == places
