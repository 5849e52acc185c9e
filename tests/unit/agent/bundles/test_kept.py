"""PACKS-1…2: the packs that a host keeps."""

from __future__ import annotations

import os
from pathlib import Path

from holdfast.agent.bundles.kept import KeptPacks


def test_a_pack_is_kept_and_found(tmp_path: Path) -> None:
    kept = KeptPacks(tmp_path / "packs")
    assert kept.open_pack("p1") is None
    kept.add("p1", b"bytes")
    fd = kept.open_pack("p1")
    assert fd is not None
    assert os.read(fd, 100) == b"bytes"
    os.close(fd)
    kept.remove("p1")
    assert kept.open_pack("p1") is None


def test_what_was_used_longest_ago_goes_first(tmp_path: Path) -> None:
    kept = KeptPacks(tmp_path, limit_bytes=25)
    for number, name in enumerate(("a", "b")):
        kept.add(name, bytes(10))
        os.utime(tmp_path / name, (number, number))
    fd = kept.open_pack("a")  # a use
    assert fd is not None
    kept.add("c", bytes(10))
    assert sorted(os.listdir(tmp_path)) == ["a", "c"]
    os.close(fd)
