"""The caches of a host: one for each project and name, bounded (CACHE-1, CACHE-3)."""

from __future__ import annotations

import os
from pathlib import Path

from holdfast.agent.data.caches import HostCaches


def fill(caches: HostCaches, project: str, name: str, kilobytes: int, used_at: int) -> Path:
    path = Path(caches.open(project, name))
    (path / "data").write_bytes(os.urandom(kilobytes << 10))
    os.utime(path.parent, (used_at, used_at))
    return path


def test_projects_have_folders_of_their_own_that_others_cannot_read(tmp_path: Path) -> None:
    caches = HostCaches(tmp_path / "caches", 1 << 30)
    mine, others = Path(caches.open("a/b", "hf")), Path(caches.open("a", "hf"))
    assert mine != others
    assert not mine.is_relative_to(others)
    for folder in (mine, *mine.parents):
        if folder == tmp_path:
            break
        assert folder.stat().st_mode & 0o777 == 0o700
    assert sorted(caches.list_keys()) == ["a/b/hf", "a/hf"]


def test_the_longest_unused_goes_first_and_a_busy_one_never(tmp_path: Path) -> None:
    caches = HostCaches(tmp_path / "caches", 200 << 10)
    caches._is_disk_full = lambda: False  # type: ignore[method-assign]  # the bound alone
    old, busy, new = (
        fill(caches, "p", name, 150, at) for name, at in (("old", 2), ("busy", 1), ("new", 3))
    )
    assert caches.prune(lambda: {"p/busy"}) == ["p/old", "p/new"]
    assert (old.exists(), busy.exists(), new.exists()) == (False, True, False)
    fill(caches, "p", "new", 40, 4)
    assert caches.prune(lambda: ()) == []  # within the bound nothing goes


def test_a_full_disk_empties_caches_within_their_bound(tmp_path: Path) -> None:
    caches = HostCaches(tmp_path / "caches", 1 << 40)
    caches._is_disk_full = lambda: True  # type: ignore[method-assign]  # as on a full disk
    fill(caches, "p", "a", 1, 1)
    assert caches.prune(lambda: ()) == ["p/a"]


def test_what_a_killed_agent_left_half_removed_goes_with_the_next_look(tmp_path: Path) -> None:
    caches = HostCaches(tmp_path / "caches", 1 << 30)
    caches.open("p", "a")
    (tmp_path / "caches" / ".doomed-1" / "files").mkdir(parents=True)
    assert caches.list_keys() == ["p/a"]
    caches.prune(lambda: ())
    assert sorted(os.listdir(tmp_path / "caches")) == ["p"]
