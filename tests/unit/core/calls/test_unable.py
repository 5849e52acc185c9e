"""ABLE-2, ABLE-3: a call whose host cannot run it is tried on others, at no charge."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.calls.decide import CallOutcome
from holdfast.core.calls.unable import MOST_HOSTS, MOST_TRIED, AppHosts, decide_unable
from holdfast.core.calls.values import CallCharges

WHY = "module hole cannot be imported on host b: ModuleNotFoundError: No module named 'x'"


def play(
    on: Sequence[str], able: Sequence[str], working: Sequence[str] = ()
) -> list[tuple[CallOutcome, float]]:
    """Return what becomes of a call after each of its tries."""
    hosts = AppHosts(able=frozenset(able), working=frozenset(working))
    charges, outcomes = CallCharges(retries=1), []
    for host in on:
        decision = decide_unable(WHY, charges, host, hosts)
        charges = decision.charges
        assert (charges.retries, decision.charged_to) == (1, "nothing")
        assert decision.reason.startswith(WHY)
        outcomes.append((decision.outcome, decision.delay_seconds))
    return outcomes


READY, FAILED = (CallOutcome.READY, 0.0), (CallOutcome.FAILED, 0.0)


def test_it_fails_where_its_host_is_the_only_one() -> None:
    assert play(["a"], ["a"]) == [FAILED]
    assert play(["a"], []) == [FAILED], "it was taken off meanwhile"


def test_it_is_tried_on_each_of_two_hosts_and_on_three_of_many() -> None:
    assert play(["a", "b"], ["a", "b"]) == [READY, FAILED]
    assert play(["a", "b", "c"], ["a", "b", "c", "d"]) == [READY, READY, FAILED]


def test_it_does_not_fail_while_other_hosts_are_known_to_run_the_app() -> None:
    assert play(["a", "b", "c"], ["a", "b", "c", "d"], ["d"])[-1] == READY
    assert play(["a", "b", "c", "d"], ["a", "b", "c", "d"], ["d"])[-1] == FAILED


def test_a_host_that_takes_it_again_makes_it_wait_ever_longer() -> None:
    outcomes = play(["a"] * 9, ["a", "b"])
    assert outcomes[0] == READY
    assert [seconds for _, seconds in outcomes[1:]] == [2, 4, 8, 16, 32, 60, 60, 60]


@given(
    st.lists(st.sampled_from("abcdefghijkl"), min_size=1, max_size=40),
    st.sets(st.sampled_from("abcdefghijkl"), min_size=1),
    st.sets(st.sampled_from("abcdefghijkl")),
)
def test_it_fails_exactly_where_no_host_is_left(
    on: list[str], able: set[str], working: set[str]
) -> None:
    working &= able
    tried: set[str] = set()
    for host, (outcome, _) in zip(on, play(on, [*able], [*working]), strict=True):
        tried.add(host)
        more = working if len(tried) >= MOST_HOSTS else able
        failed = not more - tried or len(tried) >= MOST_TRIED
        assert (outcome is CallOutcome.FAILED) is failed
