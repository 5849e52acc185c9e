"""Which host is set aside, for how long, and when it is let back."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.health.blame import (
    MAX_ASIDE_SECONDS,
    MAX_ASIDE_SHARE,
    MIN_PROGRAMS,
    PROBATION_SECONDS,
    HostStanding,
    LetBack,
    SetAside,
    judge_hosts,
    name_program,
)
from holdfast.core.health.due import ASK_SECONDS, FAILURES, CheckState, choose_check, choose_pause
from holdfast.core.host_checks import CheckVerdict
from holdfast.core.spec import JobSpec
from holdfast.core.states import HostState

FAIL, OK = CheckVerdict.FAIL, CheckVerdict.OK


def standing(**changes: Any) -> HostStanding:
    return HostStanding(**{"host_id": "h1", "name": "box", **changes})


def judge_one(**changes: Any) -> SetAside | LetBack | None:
    return next(iter(judge_hosts([standing(**changes)])), None)


def fails(*programs: str, jobs: int = 2, **changes: Any) -> HostStanding:
    """A host of a pool of eight on which `jobs` jobs of each program failed."""
    names = tuple(f"{program}-{n}" for program in programs for n in range(jobs))
    listed = tuple(program for program in programs for _ in range(jobs))
    fields = {"jobs": names, "programs": listed, "failed": 9, "pool_hosts": 8, **changes}
    return standing(**fields)


def test_a_host_that_fails_what_others_pass_is_set_aside_with_the_jobs() -> None:
    """BLAME-2."""
    (found,) = judge_hosts([fails("a", "b", failed=5, passed=2)])
    assert isinstance(found, SetAside)
    assert found.seconds == PROBATION_SECONDS
    assert found.reason == (
        "4 jobs of 2 programs failed here and then succeeded elsewhere (a-0, a-1, b-0); 5 of 7 tasks "
        "failed here in 6 h; set aside for 1 h, then on probation"
    )


@pytest.mark.parametrize(
    "host",
    [
        fails("a", jobs=40),  # one program
        fails("a", "b", "c", jobs=1),  # each of them once
        fails("a", "b", passed=10),  # most of what ends there is well
        fails("a", "b", pool_hosts=1),  # its pool has no other host
        standing(),
    ],
)
def test_less_is_chance(host: HostStanding) -> None:
    assert judge_hosts([host]) == []


def test_programs_that_fail_their_first_attempts_everywhere_speak_against_no_host() -> None:
    """BLAME-1: forty jobs of three such scripts over four hosts."""
    hosts = [
        fails("a", "b", "c", jobs=4, host_id=f"h{n}", passed=8, failed=12, pool_hosts=4)
        for n in range(4)
    ]
    assert judge_hosts(hosts) == []
    assert judge_hosts([*hosts[1:], fails("d", "e", host_id="h0", pool_hosts=4)]) != []


def test_on_probation_one_more_program_is_enough_and_it_is_longer_each_time() -> None:
    """BLAME-3."""
    seconds = []
    for blames in range(1, 8):
        (found,) = judge_hosts([fails("a", passed=50, blames=blames)])
        assert isinstance(found, SetAside)
        seconds.append(found.seconds)
    assert seconds[:2] == [2 * PROBATION_SECONDS, 4 * PROBATION_SECONDS]
    assert seconds[-1] == MAX_ASIDE_SECONDS


def test_time_lets_back_what_jobs_set_aside() -> None:
    assert judge_hosts([fails("a", "b", aside="jobs", aside_left_seconds=1.0)]) == []
    assert isinstance(judge_one(aside="jobs", aside_left_seconds=0.0), LetBack)


def test_a_check_sets_aside_and_a_check_lets_back() -> None:
    """BLAME-4."""
    found = judge_one(verdicts=(FAIL,), check_message="GPU 3 cannot compute")
    assert isinstance(found, SetAside)
    assert "GPU 3 cannot compute" in found.reason
    assert judge_one(verdicts=(OK, FAIL, FAIL)) is None
    assert judge_one(aside="checks", verdicts=(FAIL, FAIL)) is None
    assert isinstance(judge_one(aside="checks", verdicts=(OK, FAIL)), LetBack)


POOL = st.lists(
    st.builds(
        dict,
        programs=st.lists(st.sampled_from("abcdefgh"), max_size=8),
        failing=st.booleans(),
        aside=st.sampled_from(["", "", "", "jobs", "checks"]),
        left=st.floats(-1, 1),
        blames=st.integers(0, 2),
    ),
    min_size=1,
    max_size=12,
)


@given(POOL)
def test_no_more_than_a_share_of_a_pool_is_aside(hosts: list[dict[str, Any]]) -> None:
    """BLAME-5: also not where every check fails, or where programs are made for it."""
    aside = sum(host["aside"] != "" for host in hosts)
    standings = [
        standing(
            host_id=f"h{n}", jobs=tuple(f"{n}-{m}" for m in range(len(host["programs"]))),
            programs=tuple(host["programs"]), failed=99, blames=host["blames"],
            verdicts=(FAIL,) if host["failing"] else (OK,), aside=host["aside"],
            aside_left_seconds=host["left"], pool_hosts=len(hosts), pool_aside=aside,
        )
        for n, host in enumerate(hosts)
    ]  # fmt: skip
    verdicts = judge_hosts(standings)
    assert len({verdict.host_id for verdict in verdicts}) == len(verdicts)
    after = aside
    for verdict in verdicts:
        after += 1 if isinstance(verdict, SetAside) else -1
    most = max(1, int(len(hosts) * MAX_ASIDE_SHARE))
    assert after <= max(most, aside)
    for verdict in verdicts:
        if isinstance(verdict, SetAside) and verdict.kind == "jobs":
            mine = standings[int(verdict.host_id[1:])]
            assert len(hosts) > 1
            assert len(set(mine.programs)) >= (1 if mine.blames else MIN_PROGRAMS)


def test_what_was_measured_goes_before_what_jobs_tell() -> None:
    verdicts = judge_hosts(
        [
            fails("a", "b", jobs=9, host_id="h1", pool_hosts=4),
            standing(host_id="h2", verdicts=(FAIL,), pool_hosts=4),
        ]
    )
    assert [verdict.host_id for verdict in verdicts] == ["h2"]


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ({"argv": ("python", "train.py", "--lr", "1")}, {"argv": ("python3", "train.py")}, True),
        ({"argv": ("./a", "x")}, {"argv": ("./b", "x")}, False),
        ({"shell": "try 1"}, {"shell": "try 22"}, True),
        ({"argv": ("sh", "-c", "exit 1")}, {"argv": ("sh", "-c", "exit 2")}, True),
        ({"argv": ("sh", "-c", "one")}, {"argv": ("sh", "-c", "two")}, False),
        ({"image": "a:1"}, {"image": "b:1"}, False),
    ],
)
def test_a_program_is_one_whatever_its_arguments(
    one: dict[str, Any], other: dict[str, Any], same: bool
) -> None:
    names = [name_program("default", JobSpec(**fields)) for fields in (one, other)]
    assert (names[0] == names[1]) is same
    assert name_program("p", JobSpec(**one)) != names[0]


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
