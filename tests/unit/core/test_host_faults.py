"""Probation: set aside at once, tried by itself, ever later where the trial was too easy (ASIDE-3)."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.host_faults import (
    MAX_PAUSE_SECONDS,
    Hindrance,
    Probation,
    find_hindrance,
    is_set_aside,
    list_able_labels,
)

FULL = Hindrance(part="starts", reason="no space")
AWAY = Hindrance(part="containers", reason="away", runtimes=("any", "docker"))


def test_what_hinders_what() -> None:
    words = ("", "any", "docker", "podman")
    assert [find_hindrance([FULL], word) for word in words] == ["no space"] * 4
    assert [find_hindrance([AWAY], word) for word in words] == [None, "away", "away", None]


def test_an_app_that_cannot_run_is_no_label_of_its_host() -> None:
    """ABLE-1."""
    labels = {"app/hole": "yes", "app/well": "yes", "rack": "b12"}
    broken = Hindrance(part="apps", reason="no module", apps=("hole",))
    assert list_able_labels(labels, [broken, AWAY]) == {"app/well": "yes", "rack": "b12"}
    assert list_able_labels(labels, [AWAY]) == labels
    hindered = [find_hindrance([broken], "", app) for app in ("hole", "well", "")]
    assert hindered == ["no module", None, None]
    assert not is_set_aside([broken])


def test_a_failure_sets_aside_and_a_trial_ends_it() -> None:
    aside = Probation().fail(100.0, "full")
    assert (aside.reason, aside.try_at) == ("full", 105.0)
    assert aside.fail(101.0, "still full").try_at == 105.0, "two at once are one"
    assert aside.pass_trial(105.0).reason is None
    assert math.isinf(aside.pass_trial(105.0).try_at)
    assert aside.fail_trial(105.0, "full").try_at == 110.0


def test_it_comes_back_ever_later_where_the_trial_is_too_easy() -> None:
    now, pauses, state = 0.0, [], Probation()
    for _ in range(9):
        state = state.fail(now, "no descriptors")
        pauses.append(state.try_at - now)
        now = state.try_at
        state = state.pass_trial(now)
        now += 1.0
    assert pauses == [5, 10, 20, 40, 80, 160, 300, 300, 300]
    assert state.fail(now + 600.0, "again").try_at == now + 605.0, "long ago is forgiven"


@given(st.lists(st.tuples(st.sampled_from(["fail", "trial", "pass"]), st.floats(0, 900))))
def test_it_is_in_use_or_has_a_trial_ahead(story: list[tuple[str, float]]) -> None:
    state, now = Probation(), 0.0
    for what, seconds in story:
        now += seconds
        if what == "fail":
            state = state.fail(now, "x")
        elif state.reason is not None:
            state = state.fail_trial(now, "x") if what == "trial" else state.pass_trial(now)
        assert (state.reason is None) == math.isinf(state.try_at)
        if state.reason is not None:
            assert 0 < state.try_at - state.changed_at <= MAX_PAUSE_SECONDS
