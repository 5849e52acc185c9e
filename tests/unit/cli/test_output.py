"""Figures written for a person."""

from __future__ import annotations

import pytest

from holdfast.cli.output import span


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0s"), (0.0421, "42ms"), (0.9996, "999ms"), (1, "1s"), (303, "5m03s"), (-12, "in 12s"),
     (7620, "2h07m"), (273_600, "3d04h")],
)  # fmt: skip
def test_a_length_of_time_has_two_units_at_most(seconds: float, text: str) -> None:
    assert span(seconds) == text
