"""Indices of arrays, the specs of their members, and what is said of the whole."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.arrays.arrays import (
    MAX_MEMBERS,
    Member,
    find_state,
    make_member,
    parse_indices,
    say_array,
    say_indices,
)
from holdfast.core.spec import JobSpec
from holdfast.core.states import JobState
from holdfast.errors import ValidationError

INDICES = st.sets(st.integers(0, 10_000), min_size=1, max_size=200).map(sorted)


@given(INDICES, st.none() | st.integers(1, 10_000))
def test_what_is_said_is_read_again(indices: list[int], at_once: int | None) -> None:
    text = say_indices(indices) + ("" if at_once is None else f"%{at_once}")
    assert parse_indices(text) == (tuple(indices), at_once)


@given(st.integers(0, 1000), st.integers(0, 500), st.integers(1, 9))
def test_a_range_may_have_steps(first: int, length: int, step: int) -> None:
    found, _ = parse_indices(f"{first}-{first + length}:{step}")
    assert found == tuple(range(first, first + length + 1, step))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "neither a number nor a range"),
        ("5-1", "goes nowhere"),
        ("1-9:0", "goes nowhere"),
        ("1,2,1-3", "stands there already"),
        ("0-9%", "how many run at once"),
        ("0-9%0", "how many run at once"),
        ("a-b", "neither"),
        ("-1", "neither"),
        (f"0-{MAX_MEMBERS}", "at most 100000"),
        ("0-60000,100000-160000", "at most 100000"),
        ("0-9999999999", "goes nowhere"),
    ],
)
def test_what_cannot_be_read_is_told(text: str, said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        parse_indices(text)


def test_a_member_has_its_index_its_parameters_and_its_name() -> None:
    spec = JobSpec(
        argv=("x", "--lr={lr}", "{other}", "{{lr}}"), name="fit", after=("a",), idempotency_key="k"
    )
    own = make_member(spec, "arr", 9, Member(index=4, params={"lr": 1e-05, "big-one": True}))
    assert own.argv == ("x", "--lr=1e-05", "{other}", "{1e-05}")
    assert own.env == {
        "HOLDFAST_ARRAY_ID": "arr",
        "HOLDFAST_ARRAY_INDEX": "4",
        "HOLDFAST_ARRAY_SIZE": "9",
        "HOLDFAST_PARAM_LR": "1e-05",
        "HOLDFAST_PARAM_BIG_ONE": "true",
    }
    assert (own.name, own.after, own.idempotency_key) == ("fit[4]", (), None)


COUNTS = st.dictionaries(st.sampled_from([str(s) for s in JobState]), st.integers(0, 99))


@given(COUNTS)
def test_a_whole_array_has_ended_when_every_member_has(counts: dict[str, int]) -> None:
    alive = any(n and not JobState(word).terminal for word, n in counts.items())
    assert find_state(counts).terminal is not alive
    if not alive:
        failed, cancelled = counts.get("failed"), counts.get("cancelled")
        worst = "failed" if failed else "cancelled" if cancelled else "succeeded"
        assert find_state(counts) == worst


def test_it_is_said_how_far_it_is() -> None:
    counts = {"running": 50, "waiting": 940, "succeeded": 8, "failed": 2}
    assert say_array(counts, 50, 50, "") == (
        "10 of 1000 have ended, 2 of them failed; it runs 50 of its 50 at once"
    )
    assert say_array(counts, None, 50, "waits for X") == "waits for X"
