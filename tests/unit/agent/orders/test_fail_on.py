"""The pattern that a job fails on: which line of its output matches (FAIL-ON-1)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from holdfast.agent.orders.fail_on import find_failing_line
from holdfast.agent.redact import Redactor

NOBODY = Redactor(())


@pytest.mark.parametrize(
    ("out", "err", "line"),
    [
        (b"step 1 loss 2.0\nstep 2 loss nan\nstep 3 loss nan\n", b"", "step 2 loss nan"),
        (b"step 1 loss 2.0\n", b"loss nan", "loss nan"),
        (b"loss 2.0\rloss nan\rloss 1.0\n", b"", "loss nan"),
        (b"\xff\xfe loss nan\n", b"", "loss nan"),
        (b"banana loss\n", b"", None),
        (b"", b"", None),
    ],
)
def test_the_first_line_that_matches(
    tmp_path: Path, out: bytes, err: bytes, line: str | None
) -> None:
    """FAIL-ON-1."""
    paths = [tmp_path / "stdout", tmp_path / "stderr"]
    paths[0].write_bytes(out)
    paths[1].write_bytes(err)
    found = find_failing_line(r"loss nan\b", paths, NOBODY)
    assert found == line or (line is not None and found is not None and found.endswith(line))


def test_a_line_over_the_border_of_two_reads_is_found(tmp_path: Path) -> None:
    path = tmp_path / "stdout"
    path.write_bytes(b"x" * ((1 << 20) - 12) + b"\nloss is nan\n")
    assert find_failing_line("loss is nan", [path], NOBODY) == "loss is nan"


def test_output_that_is_gone_fails_nothing_and_secrets_stay_masked(tmp_path: Path) -> None:
    assert find_failing_line("nan", [tmp_path / "gone"], NOBODY) is None
    path = tmp_path / "stdout"
    path.write_bytes(b"nan with hunter2\n")
    assert find_failing_line("nan", [path], Redactor(["hunter2"])) == "nan with *******"


def test_a_line_on_which_a_pattern_takes_too_long_is_left_out(tmp_path: Path) -> None:
    """FAIL-ON-1: the search is a process of its own, so the agent goes on meanwhile."""
    path = tmp_path / "stdout"
    path.write_bytes(b"a" * 60 + b"\nnan aab\n")
    assert find_failing_line("(a+)+b", [path], NOBODY) == "nan aab"


def test_a_secret_that_is_no_text_is_masked_too(tmp_path: Path) -> None:
    path = tmp_path / "stdout"
    path.write_bytes(b"nan with \xff\xfesecret\n")
    found = find_failing_line("nan", [path], Redactor([os.fsdecode(b"\xff\xfesecret")]))
    assert found == "nan with ********"
