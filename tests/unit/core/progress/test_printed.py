"""Counters in the output of programs as people have them."""

from __future__ import annotations

import pytest

from holdfast.core.progress.printed import find_counter

TQDM = "\r 12%|█▏        | {n}/1000 [00:{s:02}<10:00,  1.46it/s, loss=0.{s}]"


@pytest.mark.parametrize(
    "line",
    [
        TQDM.replace("{s:02}", "12").replace("{s}", "3"),
        "epoch 2 step {n} loss 0.31",
        "Step: {n}, lr=1e-4",
        "{n}% done",
        "[Epoch 3] batch {n} / 7812, loss 2.1",
        "INFO 2026-11-28 10:11:12 iter={n} time 0.21s",
        "trainer.py:120] global_step={n}",
    ],
)
def test_a_counter_that_moves_is_seen_to(line: str) -> None:
    """Only the counter counts: neither the time nor the loss beside it."""
    found = [find_counter(line.replace("{n}", str(n)).encode()) for n in (17, 18, 17)]
    assert None not in found
    first, moved, again = found
    assert first is not None
    assert moved is not None
    assert first.mark != moved.mark
    assert first == again
    assert not first.ended


def test_what_moves_beside_a_counter_is_none() -> None:
    at = [find_counter(TQDM.format(n=17, s=s).encode()) for s in (12, 40)]
    assert at[0] == at[1] != find_counter(TQDM.format(n=18, s=12).encode())


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"waiting for the queue",
        b"2026/11/28 10:11:12 alive",
        b"loss 0.312 after 2.5 s",
        b"GET /items HTTP/1.1 200",
        b"listening on 10.0.0.1:8000",
    ],
)
def test_lines_without_a_counter_say_nothing(text: bytes) -> None:
    assert find_counter(text) is None


def test_the_last_line_with_a_counter_counts() -> None:
    before = find_counter(b"step 5\nsaved to /tmp/x\nstill here\n")
    assert before == find_counter(b"step 5")
    assert before != find_counter(b"step 5\nstep 6\n")


@pytest.mark.parametrize(
    ("text", "ended"),
    [
        (b"Loading checkpoint shards: 100%|####| 4/4 [00:03<00:00]", True),
        (b"1000/1000", True),
        (b"epoch 3: 100%|####| 938/938", False),  # the epoch goes on
        (b" 99%|### | 990/1000", False),
    ],
)
def test_a_counter_at_its_end_says_nothing_of_what_follows(text: bytes, ended: bool) -> None:
    """COUNTER-1."""
    found = find_counter(text)
    assert found is not None
    assert found.ended is ended
