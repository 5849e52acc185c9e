"""Log files kept under their limit by holes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from holdfast.agent.guardian.log_size_limit import (
    HEAD_BYTES,
    LogSizeOutcome,
    limit_log_size,
    plan_hole,
)

MIB = 1 << 20


def test_the_head_and_half_the_limit_stay() -> None:
    offset, length = plan_hole(100 * MIB, 16 * MIB)
    assert offset == HEAD_BYTES
    assert offset + length == 92 * MIB


@pytest.mark.parametrize("limit", [0, 1, 4096, MIB, 3 * MIB, 256 * MIB])
@pytest.mark.parametrize("size", [0, 1, 4097, MIB, 5 * MIB + 1, 1 << 40])
def test_a_hole_is_whole_blocks_inside_the_file(limit: int, size: int) -> None:
    offset, length = plan_hole(size, limit)
    assert offset % 4096 == 0
    assert length % 4096 == 0
    assert length >= 0
    if length:
        assert min(HEAD_BYTES, limit // 4) <= offset
        assert offset + length <= size - limit // 2


def test_an_appended_file_stays_under_its_limit_and_keeps_its_offsets(tmp_path: Path) -> None:
    path = tmp_path / "log"
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for number in range(40):
        os.write(fd, bytes([65 + number % 26]) * MIB)
        outcome = limit_log_size(str(path), 8 * MIB)
        if outcome is LogSizeOutcome.UNSUPPORTED:
            pytest.skip("this filesystem has no holes")
        assert path.stat().st_blocks * 512 <= 8 * MIB + 4096
    os.write(fd, b"the end")
    os.close(fd)
    data = path.read_bytes()
    assert len(data) == 40 * MIB + 7
    assert data[:MIB] == b"A" * MIB
    assert data[-MIB - 7 :] == bytes([65 + 39 % 26]) * MIB + b"the end"
    assert data[10 * MIB] == 0


def test_what_is_no_plain_file_is_left_alone(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_bytes(b"x" * MIB)
    os.symlink(target, tmp_path / "link")
    os.mkfifo(tmp_path / "fifo")
    for name in ("link", "fifo", "gone", "."):
        assert limit_log_size(str(tmp_path / name), -1) is LogSizeOutcome.MISSING
    assert target.read_bytes() == b"x" * MIB
