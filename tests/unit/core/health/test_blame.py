"""Which host is set aside, for how long, and when it is let back."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.health.blame import (
    MAX_ASIDE_SECONDS,
    MIN_JOBS,
    PROBATION_SECONDS,
    HostStanding,
    LetBack,
    SetAside,
    judge_hosts,
)
from holdfast.core.health.checks import CheckVerdict
from holdfast.core.health.due import ASK_SECONDS, FAILURES, CheckState, choose_check, choose_pause
from holdfast.core.states import HostState

FAIL, OK = CheckVerdict.FAIL, CheckVerdict.OK


def standing(**changes: Any) -> HostStanding:
    return HostStanding(**{"host_id": "h1", "name": "box", **changes})


def judge_one(**changes: Any) -> SetAside | LetBack | None:
    return next(iter(judge_hosts([standing(**changes)])), None)


THREE = ("a", "b", "c")


def test_a_host_that_fails_what_others_pass_is_set_aside_with_the_jobs() -> None:
    """BLAME-2."""
    found = judge_one(jobs=THREE, failed=5, passed=2)
    assert isinstance(found, SetAside)
    assert found.seconds == PROBATION_SECONDS
    assert found.reason == (
        "3 jobs failed here and then succeeded elsewhere (a, b, c); 5 of 7 tasks failed here in 6 h; "
        "set aside for 1 h, then on probation"
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"jobs": THREE[: MIN_JOBS - 1], "failed": 9},
        {"jobs": THREE, "failed": 5, "passed": 6},  # most of what ends there is well
        {},
        {"verdicts": (FAIL,)},  # once is chance
        {"verdicts": (OK, FAIL, FAIL)},
    ],
)
def test_less_is_chance(changes: dict[str, Any]) -> None:
    assert judge_one(**changes) is None


def test_on_probation_one_more_is_enough_and_it_is_longer_each_time() -> None:
    """BLAME-3."""
    seconds = []
    for blames in range(1, 8):
        found = judge_one(jobs=("a",), failed=1, passed=50, blames=blames)
        assert isinstance(found, SetAside)
        seconds.append(found.seconds)
    assert seconds[:2] == [2 * PROBATION_SECONDS, 4 * PROBATION_SECONDS]
    assert seconds[-1] == MAX_ASIDE_SECONDS


def test_time_lets_back_what_jobs_set_aside() -> None:
    assert judge_one(aside="jobs", aside_left_seconds=1.0, jobs=THREE) is None
    assert isinstance(judge_one(aside="jobs", aside_left_seconds=0.0), LetBack)


def test_checks_set_aside_and_a_check_lets_back() -> None:
    """BLAME-4."""
    found = judge_one(verdicts=(FAIL, FAIL), check_message="GPU 3 cannot compute")
    assert isinstance(found, SetAside)
    assert "GPU 3 cannot compute" in found.reason
    assert judge_one(aside="checks", verdicts=(FAIL, FAIL)) is None
    assert isinstance(judge_one(aside="checks", verdicts=(OK, FAIL)), LetBack)


@given(st.sampled_from(HostState), st.booleans(), st.floats(0, 1e6), st.integers(0, 9))
def test_a_check_that_was_made_is_not_due_again_at_once(
    state: HostState, preflighted: bool, age: float, failed: int
) -> None:
    at = CheckState(
        state=state, preflighted=preflighted, last_check_seconds=age, failed_since=failed
    )
    kind = choose_check(at, 3600.0)
    if kind is not None:
        after = CheckState(state=state, preflighted=True)
        assert choose_check(after, 3600.0) is None
    assert 0 < choose_pause(at, 3600.0) <= ASK_SECONDS


def test_failures_bring_a_check_and_off_means_off() -> None:
    active = CheckState(state=HostState.ACTIVE, last_check_seconds=1e6)
    assert choose_check(active, None) is None
    failed = CheckState(state=HostState.ACTIVE, failed_since=FAILURES)
    assert choose_check(failed, None) == "failures"
    aside = CheckState(state=HostState.QUARANTINED, last_check_seconds=1e6)
    assert choose_check(aside, None) == "periodic", "or nothing would let it back"
