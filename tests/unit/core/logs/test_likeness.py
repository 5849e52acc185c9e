"""Error lines of many ranks become few groups."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from holdfast.core.logs.likeness import (
    ErrorLine,
    find_error_lines,
    find_likeness,
    group_errors,
    say_group,
)

AT = datetime(2026, 3, 4, 3, 12, 7, 221_000, UTC)


def test_one_failure_of_two_thousand_ranks_is_one_group() -> None:
    lines = [
        ErrorLine(
            rank,
            f"[rank{rank}]: NCCL timeout: WorkNCCL(SeqNum={rank + 7}, OpType=ALLREDUCE) ran for "
            f"{600_000 + rank} milliseconds on 10.0.{rank % 200}.7:40{rank % 90:02d}",
            AT + timedelta(milliseconds=abs(rank - 17)),
        )
        for rank in range(2043)
    ]
    lines.append(ErrorLine(5, "ValueError: the loss is not a number", AT - timedelta(seconds=9)))
    most, other = group_errors(lines)
    assert say_group(most) == (
        "2,043 ranks: NCCL timeout: WorkNCCL(SeqNum=24, OpType=ALLREDUCE) ran for 600017 "
        "milliseconds on 10.0.17.7:4017; first: rank 17 at 03:12:07.221"
    )
    assert say_group(other) == (
        "1 rank: ValueError: the loss is not a number; first: rank 5 at 03:11:58.221"
    )


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("2026-03-04 03:12:07,221 ERROR lost host-017", "2026-03-04 03:12:09,001 ERROR lost host-3"),
        ("[rank3]: OSError: /data/shard-00017.tar", "[rank12]: OSError: /data/shard-00200.tar"),
        ("CUDA error at 0x7fe3a0", "CUDA error at 0x11"),
        ("job 06ch2v8wq1m4 failed: 3f2504e0-4f89-11d3-9a0c-0305e82c3301",
         "job 06ch2v8wq1m4 failed: 7c9e6679-7425-40de-944b-e07fc1f90ae7"),
        ("Xid  79 on GPU 0000:3b:00", "Xid 79  on GPU 0000:af:00"),
    ],
)  # fmt: skip
def test_lines_that_differ_in_numbers_are_alike(one: str, other: str) -> None:
    assert find_likeness(one) == find_likeness(other)


def test_lines_that_say_different_things_are_not_alike() -> None:
    assert find_likeness("KeyError: 'a'") != find_likeness("KeyError: 'b'")
    assert find_likeness("CUDA error: out of memory") != find_likeness("CUDA error: bad state")


def test_which_lines_tell_of_an_error() -> None:
    text = """step 3 loss 0.1
Traceback (most recent call last):
  File "train.py", line 3, in <module>
    raise TimeoutError
RuntimeError: CUDA error: out of memory
  RuntimeError: within a frame
FutureWarning: an error is coming
finished with 0 errors
WARNING: the socket timed out, once more
[E ProcessGroupNCCL.cpp:828] [Rank 3] Watchdog caught collective operation timeout
\x1b[31mfatal\x1b[0m: not a repository
Killed
terror and failover are words"""
    found = list(find_error_lines(text))
    assert [line for _, line in found] == [
        "RuntimeError: CUDA error: out of memory",
        "[E ProcessGroupNCCL.cpp:828] [Rank 3] Watchdog caught collective operation timeout",
        "fatal: not a repository",
        "Killed",
    ]
    assert all(text[at:].split("\n")[0].endswith(line[-6:]) for at, line in found)


def test_lines_without_a_time_stand_behind_those_with_one() -> None:
    lines = [ErrorLine(0, "error a", None), ErrorLine(1, "error b", AT)]
    assert [g.first_rank for g in group_errors(lines)] == [1, 0]
    assert say_group(group_errors(lines)[1]) == "1 rank: error a; first: rank 0"
    assert group_errors([]) == []
