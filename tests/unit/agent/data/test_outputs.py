"""Outputs that a host sends of a task, and those that it leaves out (OUT-4, OUT-6, OUT-7)."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from holdfast.agent.data import reader as outputs_reader
from holdfast.agent.data.outputs import Collector, OutputsKeeper, OwedOutputs
from holdfast.agent.data.reader import FolderReader, ReaderGroups
from holdfast.agent.folders import WorkFolders
from holdfast.agent.orders.launches import find_outputs_root
from holdfast.agent.tasks.table import TaskTable
from holdfast.agent.uplink.transfers import Transfers
from holdfast.core.bundles.manifest import Entry, decode_manifest
from holdfast.core.bundles.packs import read_pack
from holdfast.core.ids import TaskKey
from holdfast.errors import NotFound, TooLarge, Unavailable
from holdfast.process.groups import GroupHome, list_groups, open_group_home, read_memory_limit
from holdfast.wire.agent import LaunchOrder
from holdfast.wire.data.outputs import OutputsOrder, OutputsReport

KEY = TaskKey("job", 0, 1)


class Controller:
    """Takes what a host sends, in place of `Transfers`."""

    def __init__(self) -> None:
        self.held: set[str] = set()
        self.packs: list[int] = []
        self.reports: list[OutputsReport] = []
        self.error: Exception | None = None
        self.full = False

    def send_bytes(self, method: str, where: str, *given: Any, attempt: int) -> bytes:
        if self.error is not None:
            raise self.error
        body: bytes = given[2]
        if where == "outputs/missing":
            asked = msgspec.json.decode(body)["digests"]
            return msgspec.json.encode({"missing": [d for d in asked if d not in self.held]})
        if where == "outputs/packs":
            if self.full:
                raise TooLarge("the store of code and outputs is full", code="bundles_full")
            parts = read_pack(body)
            self.held |= {part.sha256.hex() for part in parts}
            self.packs.append(sum(part.size for part in parts))
            return b""
        self.reports.append(msgspec.msgpack.decode(body, type=OutputsReport))
        return b"{}"

    def entries(self) -> dict[bytes, Entry]:
        manifest = self.reports[-1].manifest
        return {} if manifest is None else {e.path: e for e in decode_manifest(manifest)[1]}

    def left(self) -> dict[str, str]:
        return {one.path: one.why for one in self.reports[-1].left}


def collector(root: Path, controller: Controller, max_bytes: int = 1 << 30) -> Collector:
    order = OutputsOrder(paths=["out/"], max_bytes=max_bytes)
    task = OwedOutputs(key=KEY, attempt=1, root=str(root), order=order)
    return Collector(task, cast(Transfers, controller))


def test_a_round_sends_only_what_changed_and_nothing_where_nothing_did(tmp_path: Path) -> None:
    """OUT-5."""
    (tmp_path / "out").mkdir()
    (tmp_path / "out/a").write_bytes(b"a" * 1000)
    (tmp_path / "out/b").write_bytes(os.urandom(20 << 20))
    controller = Controller()
    mine = collector(tmp_path, controller)
    mine.send(ended=False)
    assert sum(controller.packs) == 1000 + (20 << 20)
    mine.send(ended=False)
    assert (len(controller.reports), len(controller.packs)) == (1, 4)
    (tmp_path / "out/a").write_bytes(b"b" * 10)
    mine.send(ended=False)
    assert controller.packs[4:] == [10]
    mine.send(ended=True)
    assert [report.ended for report in controller.reports] == [False, False, True]
    assert set(controller.entries()) == {b"out", b"out/a", b"out/b"}
    collector(tmp_path, controller).send(ended=True)  # an agent that knows nothing of it
    assert controller.packs[5:] == [], "bytes were sent twice"


def test_what_is_beyond_the_bounds_is_left_out_and_the_rest_is_kept(tmp_path: Path) -> None:
    """OUT-6."""
    (tmp_path / "out").mkdir()
    for name, size in (("a", 600), ("b", 600), ("c", 300)):
        (tmp_path / "out" / name).write_bytes(b"x" * size)
    controller = Controller()
    collector(tmp_path, controller, max_bytes=1000).send(ended=True)
    assert set(controller.entries()) == {b"out", b"out/a", b"out/c"}
    assert "outputs_max_mb" in controller.left()["out/b"]


def test_a_file_that_changes_all_the_time_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OUT-6."""
    (tmp_path / "out").mkdir()
    (tmp_path / "out/a").write_bytes(b"a")
    (tmp_path / "out/log").write_bytes(b"a" * (9 << 20))
    controller = Controller()
    mine = collector(tmp_path, controller)
    read_file = mine._read_file

    def write_meanwhile(reader: Any, path: str, batch: Any) -> Any:
        read = reader.read

        def grow(*given: Any) -> Any:
            found = read(*given)
            if path == "out/log":
                with open(tmp_path / "out/log", "ab") as file:
                    file.write(b"b")
            return found

        monkeypatch.setattr(reader, "read", grow)
        try:
            return read_file(reader, path, batch)
        finally:
            monkeypatch.setattr(reader, "read", read)

    monkeypatch.setattr(mine, "_read_file", write_meanwhile)
    mine.send(ended=True)
    assert set(controller.entries()) == {b"out", b"out/a"}
    assert "changed" in controller.left()["out/log"]


def test_a_full_store_leaves_the_rest_out_with_its_own_words(tmp_path: Path) -> None:
    """OUT-6."""
    (tmp_path / "out").mkdir()
    (tmp_path / "out/a").write_bytes(b"x")
    controller = Controller()
    controller.full = True
    collector(tmp_path, controller).send(ended=True)
    assert controller.reports[-1].reason == "the store of code and outputs is full"
    assert set(controller.left()) == {"out/a"}


def test_a_folder_that_is_gone_is_said(tmp_path: Path) -> None:
    controller = Controller()
    collector(tmp_path / "gone", controller).send(ended=True)
    assert controller.reports[-1].reason == "the task's folder is gone"
    collector(tmp_path, controller).send(ended=True)
    assert controller.left() == {"out": "No such file or directory"}


async def test_the_next_agent_sends_what_a_killed_one_owed(tmp_path: Path) -> None:
    """OUT-4."""
    (tmp_path / "out").mkdir()
    (tmp_path / "out/a").write_bytes(b"x")
    records, table = tmp_path / "records", TaskTable(tmp_path / "state", lambda key: "")
    order = OutputsOrder(paths=["out"], max_bytes=1 << 20)
    task = OwedOutputs(key=KEY, attempt=1, root=str(tmp_path), order=order)
    records.mkdir()
    (records / "job.0.1.json").write_bytes(msgspec.json.encode(task))
    controller = Controller()
    controller.error = Unavailable("it is away")
    keeper = OutputsKeeper(records, table, cast(Transfers, controller))
    running = asyncio.create_task(keeper.run())
    while not keeper._again:
        await asyncio.sleep(0.01)
    assert (keeper.busy, keeper.pending, len(list(records.iterdir()))) == (True, 1, 1)
    controller.error = None
    await keeper.wait_until_sent(60)
    assert (keeper.busy, list(records.iterdir())) == (False, [])
    assert set(controller.entries()) == {b"out", b"out/a"}
    running.cancel()


async def test_outputs_that_the_controller_refuses_are_not_sent_for_ever(tmp_path: Path) -> None:
    """OUT-4: a replaced rank's are another's."""
    records, table = tmp_path / "records", TaskTable(tmp_path / "state", lambda key: "")
    order = OutputsOrder(paths=["out"], max_bytes=1)
    task = OwedOutputs(key=KEY, attempt=1, root=str(tmp_path), order=order)
    records.mkdir()
    (records / "job.0.1.json").write_bytes(msgspec.json.encode(task))
    controller = Controller()
    controller.error = NotFound("job job is not known")
    keeper = OutputsKeeper(records, table, cast(Transfers, controller))
    running = asyncio.create_task(keeper.run())
    while list(records.iterdir()):
        await asyncio.sleep(0.01)
    assert not keeper.busy
    running.cancel()


@pytest.mark.parametrize(
    ("image", "cwd", "root"),
    [
        (None, None, "work"),
        (None, "/etc", "/etc"),
        ("python", None, "work"),
        ("python", "/etc", "work"),
        ("python", "/nowhere/at/all", "work"),
        ("python", "/proc/self", "work"),
    ],
)
def test_a_container_leaves_nothing_of_its_hosts_own_folders(
    tmp_path: Path, image: str | None, cwd: str | None, root: str
) -> None:
    """OUT-6: `cwd` is a path of the image, where no folder of the host is mounted."""
    order = LaunchOrder(
        key=KEY, attempt=1, name="n", queue="q", project="p", argv=[], image=image, cwd=cwd
    )
    found = find_outputs_root(order, WorkFolders(tmp_path))
    assert found == (f"{tmp_path}/job" if root == "work" else root)


@pytest.fixture
def group_home() -> Iterator[GroupHome]:
    home = open_group_home(f"test-{os.urandom(6).hex()}")
    if home is None or not home.memory:
        pytest.skip("no memory control group can be made here")
    yield home
    home.close()


def _find_group(pid: int) -> str:
    lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
    return next(line for line in lines if "/holdfast-test-" in line).rsplit("/", 1)[1]


def test_outputs_are_read_in_a_group_with_the_limit_of_the_job(
    tmp_path: Path, group_home: GroupHome
) -> None:
    """OUT-7."""
    (tmp_path / "a").write_bytes(b"a" * (20 << 20))
    left = f"{group_home.path}/outputs1"
    os.mkdir(left)  # by an agent that was killed
    groups = ReaderGroups(group_home.path, limits=True)
    assert not os.path.exists(left)
    reader = FolderReader(str(tmp_path), groups, memory_bytes=80 << 20)
    try:
        assert [e["path"] for found in reader.walk(["a"], 9) for e in found["entries"]] == ["a"]
        assert len(reader.read("a", 0, 8 << 20)[1]) == 8 << 20
        pid = reader._process.pid
        assert _find_group(pid).startswith("outputs")
        assert read_memory_limit(pid) == 80 << 20
        score = int(Path("/proc/self/oom_score_adj").read_text())
        assert int(Path(f"/proc/{pid}/oom_score_adj").read_text()) == min(1000, max(0, score) + 500)
    finally:
        reader.close()
    groups.make(0)
    assert [group.name for group in list_groups(group_home.path)] == ["outputs2"]


def test_outputs_that_take_more_memory_than_the_job_may_use_are_left_out_with_the_reason(
    tmp_path: Path, group_home: GroupHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OUT-6, OUT-7."""
    monkeypatch.setattr(outputs_reader, "LEAST_BYTES", 1 << 20)
    (tmp_path / "out").mkdir()
    (tmp_path / "out/a").write_bytes(b"a")
    (tmp_path / "out/b").write_bytes(b"b" * (20 << 20))
    order = OutputsOrder(paths=["out/"], max_bytes=1 << 30)
    task = OwedOutputs(key=KEY, attempt=1, root=str(tmp_path), order=order, memory_bytes=1)
    controller = Controller()
    groups = ReaderGroups(group_home.path, limits=True)
    Collector(task, cast(Transfers, controller), groups).send(ended=True)
    assert "--memory" in controller.reports[-1].reason
    assert controller.reports[-1].ended
