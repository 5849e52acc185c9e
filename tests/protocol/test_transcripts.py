"""The page of transcripts is what the code does, and a run that fails tells its story."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.protocol.machine import Protocol
from tests.protocol.transcript import NOTE
from tests.protocol.transcripts import render_page
from tests.protocol.truth import Truth

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "transcripts.md"


def test_the_page_is_generated() -> None:
    assert PAGE.read_text() == render_page(), (
        "run `python -m tests.protocol.transcripts > docs/reference/transcripts.md`"
    )


def test_a_failed_run_tells_its_story(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Truth, *args: object) -> None:
        raise AssertionError("a promise is broken")

    monkeypatch.setattr(Truth, "note_launch", refuse)
    profile = settings(
        max_examples=5,
        deadline=None,
        database=None,
        report_multiple_bugs=False,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    with pytest.raises(AssertionError) as failed:
        run_state_machine_as_test(Protocol, settings=profile)
    (story,) = [note for note in failed.value.__notes__ if note.startswith(NOTE)]
    assert "loop: admit" in story
    assert " starts" in story.splitlines()[-1]
