"""Spans, amounts and counts in words."""

from __future__ import annotations

import pytest

from holdfast.core.words import count_of, say_bytes, say_span, short_bytes, split_span


@pytest.mark.parametrize(
    ("count", "said", "short"),
    [
        (0, "0 bytes", "0B"),
        (1023, "1023 bytes", "1023B"),
        (1024, "1 KiB", "1K"),
        (1536, "1.5 KiB", "1.5K"),
        (262_144, "256 KiB", "256K"),
        (200 << 20, "200 MiB", "200M"),
        (3 << 30, "3 GiB", "3G"),
        (5 << 50, "5120 TiB", "5120T"),
    ],
)
def test_an_amount_of_memory_is_said_in_its_unit(count: int, said: str, short: str) -> None:
    assert (say_bytes(count), short_bytes(count)) == (said, short)


@pytest.mark.parametrize(
    ("seconds", "said", "split"),
    [
        (0.85, "1 s", "850ms"),
        (90, "90 s", "1m30s"),
        (303, "5 min", "5m03s"),
        (5400, "90 min", "1h30m"),
        (100_800, "28.0 h", "1d04h"),
        (-303, "0 s", "in 5m03s"),
    ],
)
def test_a_span_is_said_in_a_sentence_and_split_in_a_column(
    seconds: float, said: str, split: str
) -> None:
    assert (say_span(seconds), split_span(seconds)) == (said, split)


def test_a_count_has_its_plural() -> None:
    assert (count_of(1, "job"), count_of(2, "job")) == ("1 job", "2 jobs")
    assert count_of(2, "job waits", "jobs wait") == "2 jobs wait"
