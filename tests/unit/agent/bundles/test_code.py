"""LAID-3: code that lies in the folders of jobs that are gone takes bounded room."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from holdfast.agent.bundles.code import KEPT_FOLDERS, KEPT_SECONDS, CodeUnpacking
from holdfast.agent.folders import WorkFolders
from holdfast.agent.uplink.transfers import Transfers
from holdfast.http.addresses import read_addresses
from holdfast.http.blocking import BlockingHttp
from holdfast.unpack.unpack import Unpacked

NOW = 1_800_000_000.0


def make(tmp_path: Path, job: str, age_seconds: float) -> Path:
    """The work folder of a job with one file of code and one of its own."""
    work = tmp_path / "work" / job
    work.mkdir(parents=True)
    (work / "train.py").write_text("code")
    (work / "out").write_text("its own")
    found = (work / "train.py").stat()
    mark = (found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
    record = tmp_path / "code/laid" / job
    record.parent.mkdir(parents=True, exist_ok=True)
    record.write_bytes(msgspec.msgpack.encode(Unpacked("d", "boot", 1, {b"train.py": mark})))
    os.utime(record, (NOW - age_seconds,) * 2)
    return work


def test_code_of_jobs_that_are_gone_goes_after_a_while_and_beyond_the_newest(
    tmp_path: Path,
) -> None:
    transfers = Transfers(
        BlockingHttp(read_addresses("http://127.0.0.1:9")), incarnation="i" * 8, token=str
    )
    laying = CodeUnpacking(tmp_path / "code", WorkFolders(tmp_path / "work"), transfers)
    here = make(tmp_path, "here", 10 * KEPT_SECONDS)
    old = make(tmp_path, "old", KEPT_SECONDS + 1)
    many = [make(tmp_path, f"job{n}", float(n)) for n in range(KEPT_FOLDERS + 2)]
    laying.sweep({"here"}, NOW)
    has = [(folder / "train.py").exists() for folder in (here, old, *many)]
    assert has == [True, False, *[True] * KEPT_FOLDERS, False, False]
    assert all((folder / "out").exists() for folder in (here, old, *many))
    assert len(os.listdir(tmp_path / "code/laid")) == KEPT_FOLDERS + 1
