"""The mounts that a host's configuration lists (MOUNT-1)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from holdfast.agent.config import HostMount
from holdfast.agent.data.mounts import HostMounts, list_labels, write_command
from holdfast.cli.up.up import read_mounts
from holdfast.errors import ValidationError

FAKE = """#!/bin/sh
echo "$0 $*" >> {log}
touch {log}.mounted
"""


def test_a_host_offers_what_is_there(tmp_path: Path) -> None:
    mounts = {
        "data": HostMount(path=str(tmp_path)),
        "gone": HostMount(path=str(tmp_path / "gone")),
        "bucket": HostMount(bucket="b", tool="mount-s3"),
    }
    assert list_labels(mounts) == {"mount/data": "yes"}
    host = HostMounts(mounts, tmp_path / "mounts")
    assert host.open("data") == (str(tmp_path), "ro")
    for name, why in (
        ("gone", "is no folder"),
        ("bucket", "mount-s3"),
        ("other", "lists no mount"),
    ):
        with pytest.raises(ValidationError, match=why):
            host.open(name)


def test_a_bucket_is_mounted_once_by_a_program_of_the_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, tool = tmp_path / "log", tmp_path / "bin" / "s3fs"
    tool.parent.mkdir()
    tool.write_text(FAKE.format(log=log))
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tool.parent}:{os.environ['PATH']}")
    mounts = {"ds": HostMount(bucket="bucket/a/b", tool="s3fs")}
    shown = tmp_path / "log.mounted"
    host = HostMounts(mounts, tmp_path / "mounts", is_mounted=lambda path: shown.exists())
    path, mode = host.open("ds")
    assert (path, mode) == host.open("ds")
    assert log.read_text() == f"{tool} bucket:/a/b {path} -o ro\n"


def test_a_program_that_shows_nothing_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = tmp_path / "rclone"
    tool.write_text("#!/bin/sh\necho no such remote >&2\nexit 1\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    host = HostMounts({"ds": HostMount(bucket="r:b", tool="rclone")}, tmp_path / "mounts")
    with pytest.raises(ValidationError, match="no such remote"):
        host.open("ds")


def test_words_of_the_command_line_become_a_configuration() -> None:
    found = read_mounts(["a=/data", "b=/out:rw", "c=s3://b/p:rw", "d=rclone:r:b/p", "e=s3fs:b"])
    assert found == {
        "a": {"path": "/data"},
        "b": {"write": True, "path": "/out"},
        "c": {"write": True, "tool": "mount-s3", "bucket": "b/p"},
        "d": {"tool": "rclone", "bucket": "r:b/p"},
        "e": {"tool": "s3fs", "bucket": "b"},
    }
    writes = HostMount(**found["c"])
    assert write_command(writes, "/m")[:5] == ["mount-s3", "b", "/m", "--prefix", "p/"]
    assert write_command(HostMount(**found["d"]), "/m")[-1] == "--read-only"
    with pytest.raises(ValidationError, match="is not NAME=DIR"):
        read_mounts(["data"])
