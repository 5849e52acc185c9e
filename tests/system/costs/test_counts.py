"""Costs: what things cost stands in docs/reference/costs.md, and nothing costs more: counts of a real
controller, PostgreSQL and hosts, in which no time is measured.

A change that makes a thing dearer fails here until `make costs` has written its price into that
page, for whoever reviews it.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from bench.counts.acts import ACTS, BURSTS, Act, Burst, Idle
from bench.counts.counts import Counts, tell_rises
from bench.counts.rig import Rig, start_rig
from bench.counts.table import read_page

from tests.system.costs.broken import MORE

pytestmark = pytest.mark.slow
TRIES = 5
# A query of each, beside which one more statement is run.
BROKEN = {
    "a sync that says nothing new": "touch_hosts",
    "a submission of 1": "insert_jobs",
    "an idle second, one host": "look",
}


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    with start_rig() as rig:
        yield rig


@pytest.fixture(scope="module")
def broken_rig() -> Iterator[Rig]:
    """One whose controller runs one more statement beside each query of `BROKEN`."""
    with start_rig(program=("-m", "tests.system.costs.broken", *BROKEN.values(), "--")) as rig:
        yield rig


def find_rises(act: Act | Burst | Idle, rig: Rig) -> list[str]:
    """Count until the act costs no more than the page says; what it costs more, where it always
    does."""
    allowed, rises = read_page().get(act.name, Counts({})), [""]
    for _ in range(TRIES):
        rises = list(tell_rises(allowed, act.count_once(rig), act.slack))
        if not rises:
            break
    return rises


@pytest.mark.parametrize(
    "act", [pytest.param(a, marks=() if a.thin else pytest.mark.heavy, id=a.name) for a in ACTS]
)
def test_nothing_costs_more_than_the_page_says(act: Act | Idle, rig: Rig) -> None:
    if act.name not in read_page():
        pytest.skip("docs/reference/costs.md has no count of it yet: make costs")
    rises = find_rises(act, rig)
    assert not rises, f"{act.name} costs more than docs/reference/costs.md says: {rises}"


@pytest.mark.heavy
@pytest.mark.parametrize("act", [a for a in ACTS if a.name in BROKEN], ids=lambda a: a.name)
def test_one_more_statement_is_noticed(act: Act | Idle, broken_rig: Rig) -> None:
    rises = find_rises(act, broken_rig)
    assert any(MORE in rise for rise in rises), rises


def test_what_is_broken_is_in_the_table() -> None:
    """A query that has another name now would break nothing."""
    page = read_page()
    assert all(query in page[name].names for name, query in BROKEN.items())
    assert set(page) <= {act.name for act in (*ACTS, *BURSTS)}
