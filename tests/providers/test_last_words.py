"""How the end of an agent is told by the last line of its log."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.providers.last_words import tell_end


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ('{"at":1.5,"level":"error","message":"no room\\n on the disk"}', "no room on the disk"),
        ("Killed", "Killed"),
        ('"message":"the beginning is cut"}', '"message":"the beginning is cut"}'),
        ('{"message": 7}', '{"message": 7}'),
    ],
)
def test_the_last_message_is_told(line: str, told: str) -> None:
    assert tell_end(line) == f"its process ended; its log ends with: {told}"


@pytest.mark.parametrize("line", ["", "  \n", '{"message": ""}'])
def test_a_log_that_says_nothing_is_said_to_be_empty(line: str) -> None:
    assert tell_end(line) == "its process ended; its log is empty"


@given(st.text())
def test_any_line_gives_one_line_with_the_end_of_its_message(message: str) -> None:
    for line in (message, json.dumps({"message": message})):
        told = tell_end(line)
        assert "\n" not in told
        assert len(told) < 400
