"""What arrives from a job is written below its folder, each file under a name of its own."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from holdfast.client.data.arrive import Arrival
from holdfast.errors import ValidationError


def write(arrival: Arrival, path: bytes, data: bytes) -> None:
    file = arrival.begin(path, "mark")
    file.write(0, data)
    file.finish(0o644)


def test_of_two_names_that_are_one_on_the_disk_the_second_is_refused(tmp_path: Path) -> None:
    """ARRIVE-4: as on a Mac, whose disk ignores case; a second link to a file shows that here."""
    with Arrival(tmp_path) as arrival:
        write(arrival, b"READ", b"one")
        os.link(tmp_path / "READ", tmp_path / "Read")
        with pytest.raises(ValidationError, match="because it and READ are one name on this disk"):
            write(arrival, b"Read", b"two")
    assert (tmp_path / "READ").read_bytes() == b"one"
    assert sorted(os.listdir(tmp_path)) == ["READ", "Read"]


def test_a_file_that_was_here_before_is_written_again(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"old")
    os.link(tmp_path / "a", tmp_path / "b")
    with Arrival(tmp_path) as arrival:
        for name in (b"a", b"b", b"a"):
            write(arrival, name, b"new " + name)
    assert (tmp_path / "a").read_bytes() == b"new a"
    assert (tmp_path / "b").read_bytes() == b"new b"
