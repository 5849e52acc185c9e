"""Figures written for a person."""

from __future__ import annotations

import pytest

from holdfast.cli.output import table
from holdfast.core.words import split_span

ROWS = [("box-7", "quarantined", "3 jobs failed here and then succeeded elsewhere " * 3)]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0s"), (0.0421, "42ms"), (0.9996, "999ms"), (1, "1s"), (303, "5m03s"), (-12, "in 12s"),
     (7620, "2h07m"), (273_600, "3d04h")],
)  # fmt: skip
def test_a_length_of_time_has_two_units_at_most(seconds: float, text: str) -> None:
    assert split_span(seconds) == text


def test_a_pipe_gets_every_text_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is piped goes to grep or a file, which have no width."""
    monkeypatch.delenv("COLUMNS", raising=False)
    drawn = table(("NAME", "STATE", "REASON"), ROWS)
    assert ROWS[0][2].strip() in drawn
    assert "…" not in drawn


def test_a_width_that_is_said_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """`watch` pipes, and says how wide its screen is."""
    monkeypatch.setenv("COLUMNS", "60")
    assert {len(line) for line in table(("NAME", "STATE", "REASON"), ROWS).splitlines()[1:]} == {60}
