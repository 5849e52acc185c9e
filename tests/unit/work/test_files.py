"""The program that serves a task's files: nothing leads out, and only files are opened."""

from __future__ import annotations

import io
import os
import socket
from pathlib import Path

import pytest

from holdfast.work.files import FileTree, NotServed, keeps_inside, make_frame, read_frame, serve


@pytest.fixture
def tree(tmp_path: Path) -> FileTree:
    (tmp_path / "secret").write_text("secret")
    root = tmp_path / "root"
    (root / "out").mkdir(parents=True)
    (root / "out/a").write_text("a")
    (root / "out/up").symlink_to("../../secret")
    (root / "out/absolute").symlink_to(tmp_path / "secret")
    (root / "out/folder").symlink_to(tmp_path)
    (root / "out/in").symlink_to("a")
    (root / "out/none").symlink_to("nothing")
    (root / "out/proc").symlink_to("/proc/self/root")
    os.mkfifo(root / "out/fifo")
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(root / "out/socket"))
    return FileTree(str(root))


def test_links_that_lead_out_are_listed_as_left_out_and_nothing_else_is_opened(
    tree: FileTree,
) -> None:
    """BELOW-1, BELOW-2."""
    found = {entry["path"]: entry for entry in tree.walk(["out/"], 100)}
    assert {path for path, entry in found.items() if "left" not in entry} == {
        "out", "out/a", "out/in", "out/none",
    }  # fmt: skip
    assert {path: str(e["left"]).split(",")[0] for path, e in found.items() if "left" in e} == {
        "out/up": "a link that leads out",
        "out/absolute": "a link that leads out",
        "out/folder": "a link that leads out",
        "out/proc": "a link that leads out",
        "out/fifo": "a device",
        "out/socket": "a device",
    }


@pytest.mark.parametrize(
    "path",
    ["../secret", "out/../../secret", "out/up", "out/absolute", "out/folder/secret", "/etc/passwd"],
)
def test_no_name_that_leads_out_is_opened(tree: FileTree, path: str) -> None:
    """BELOW-1. A listing may be old when its files are read."""
    with pytest.raises((OSError, NotServed)):
        tree.read(path, 0, 10)
    with pytest.raises(OSError, match=r"cross-device|Too many levels|leads"):
        tree.write(path, 0, b"x")


@pytest.mark.parametrize("path", ["out/fifo", "out/socket", "out"])
def test_only_files_are_read(tree: FileTree, path: str) -> None:
    """BELOW-2. A fifo that is opened would wait for ever."""
    with pytest.raises((OSError, NotServed)):
        tree.read(path, 0, 10)


def test_without_openat2_no_link_is_followed_at_all(
    tree: FileTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    """BELOW-1, on a kernel before 5.6."""
    open_by_steps = tree._open_by_steps
    monkeypatch.setattr(
        tree, "open", lambda path, flags, mode=0: open_by_steps(os.fsencode(path), flags, mode)
    )
    assert tree.read("out/a", 0, 10)[1] == b"a"
    for path in ("../secret", "out/folder/secret", "out/up", "out/in", "/etc/passwd"):
        with pytest.raises((OSError, NotServed)):
            tree.read(path, 0, 10)


def test_a_task_has_the_names_of_its_own_root(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/name").write_text("inside")
    (tmp_path / "work").mkdir()
    (tmp_path / "work/link").symlink_to("/etc/name")
    tree = FileTree(str(tmp_path), beneath=False, cwd="/work")
    for path in ("/etc/name", "link", "../etc/name", "../../../../etc/name"):
        assert tree.read(path, 0, 10)[1] == b"inside"


@pytest.mark.parametrize(
    ("path", "target", "inside"),
    [
        ("l", "a", True),
        ("d/l", "../a", True),
        ("d/l", "../../a", False),
        ("l", "/a", False),
        ("l", "d/../../a", False),
        ("l", "d/../a", False),
        ("./l", "..", False),
    ],
)
def test_a_link_stays_inside_whatever_stands_beside_it(
    path: str, target: str, inside: bool
) -> None:
    """ARRIVE-2: `d` may be a link itself, so what follows a name never climbs."""
    assert keeps_inside(path, target) is inside


def test_a_walk_is_bounded_and_says_so(tmp_path: Path) -> None:
    for number in range(5):
        (tmp_path / str(number)).write_text("")
    entries = list(FileTree(str(tmp_path)).walk(["."], 4))
    assert len(entries) == 5
    assert "more than 4" in entries[-1]["left"]


def test_requests_are_answered_in_order_and_an_error_ends_nothing(tree: FileTree) -> None:
    asked = io.BytesIO(
        make_frame({"do": "read", "path": "out/gone", "at": 0, "size": 1})
        + make_frame({"do": "read", "path": "out/a", "at": 0, "size": 9})
    )
    said = io.BytesIO()
    serve(tree, asked, said)
    said.seek(0)
    first, second = read_frame(said), read_frame(said)
    assert first is not None
    assert first[0] == {"error": "No such file or directory", "errno": 2}
    assert second is not None
    assert second[1] == b"a"
    assert read_frame(said) is None
