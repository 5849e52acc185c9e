"""What a job waits for, read and judged (AFTER-1)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.dependencies import Dependency, Wants, is_met, parse_after, parse_all, say_wait
from holdfast.core.states import JobState
from holdfast.errors import ValidationError

IDS = st.text("0123456789abcdef", min_size=1, max_size=20)


@given(IDS, st.sampled_from(list(Wants)))
def test_what_is_written_is_read(parent: str, wants: Wants) -> None:
    assert parse_after(f"{parent}:{wants}") == Dependency(parent, wants)
    assert parse_after(parent) == Dependency(parent, Wants.OK)


@given(st.lists(IDS, unique=True, max_size=5))
def test_each_parent_is_named_once(parents: list[str]) -> None:
    assert [d.parent for d in parse_all(parents)] == parents
    for parent in parents:
        with pytest.raises(ValidationError):
            parse_all([*parents, f"{parent}:any"])


def test_another_word_is_refused() -> None:
    with pytest.raises(ValidationError, match="ok, any or failed"):
        parse_after("a:done")


@given(st.sampled_from(list(Wants)), st.sampled_from([s for s in JobState if s.terminal]))
def test_a_wish_is_met_by_its_end_alone(wants: Wants, end: JobState) -> None:
    met = {Wants.OK: "succeeded", Wants.FAILED: "failed"}
    assert is_met(wants, end) == (wants is Wants.ANY or end.value == met[wants])


def test_many_parents_are_said_in_a_short_sentence() -> None:
    many = [Dependency(f"j{n}") for n in range(9)]
    said = say_wait(many, {"j0": "prepare"}, start=True)
    assert said == (
        "waits for job j0 (prepare) to succeed and for job j1 to succeed and for 7 others to end, "
        "and then for its start time"
    )
