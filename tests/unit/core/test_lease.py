"""LEASE-5: a step of the store's clock is told from its running, however long a reading takes.
LEASE-6: only time in which a renewal could be written counts."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.lease import (
    GAP_SECONDS,
    STEP_SECONDS,
    STEP_SHARE,
    ClockReading,
    Spell,
    count_gaps,
    find_step,
)

START = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
SPANS = st.floats(0.0, 60.0)


def read(begins: float, took: float, told: float) -> ClockReading:
    """A reading that took so long, and what the clock told."""
    return ClockReading(at=START + timedelta(seconds=told), before=begins, after=begins + took)


def looked(begins: float, took: float, share: float) -> float:
    return begins + took * share


@given(
    pause=SPANS,
    first=SPANS,
    second=SPANS,
    shares=st.tuples(st.floats(0, 1), st.floats(0, 1)),
    rate=st.floats(0.97, 1.03),
)
def test_no_step_is_seen_where_there_was_none(
    pause: float, first: float, second: float, shares: tuple[float, float], rate: float
) -> None:
    """However slowly the store answers, and where its clock is slewed."""
    begins = 1000.0 + first + pause
    last = read(1000.0, first, rate * looked(1000.0, first, shares[0]))
    this = read(begins, second, rate * looked(begins, second, shares[1]))
    assert find_step(last, this) == 0.0


@given(
    pause=SPANS,
    first=SPANS,
    second=SPANS,
    shares=st.tuples(st.floats(0, 1), st.floats(0, 1)),
    step=st.floats(1.5, 1e7),
    back=st.booleans(),
)
def test_a_step_that_no_reading_explains_is_seen_with_its_direction(
    pause: float, first: float, second: float, shares: tuple[float, float], step: float, back: bool
) -> None:
    begins = 1000.0 + first + pause
    whole = pause + first + second
    step += first + second + max(STEP_SECONDS, STEP_SHARE * whole)
    last = read(1000.0, first, looked(1000.0, first, shares[0]))
    this = read(begins, second, looked(begins, second, shares[1]) + (-step if back else step))
    found = find_step(last, this)
    assert (found < 0.0) is back
    assert abs(found) >= step - first - second - 0.001
    assert abs(found) <= step + 0.001


def make_spells(lengths: list[tuple[float, float]]) -> list[Spell]:
    """Spells of these lengths, each after a pause of this length."""
    spells, at = [], START
    for pause, length in lengths:
        since = at + timedelta(seconds=pause)
        at = since + timedelta(seconds=length)
        spells.append(Spell(since, at))
    return spells


@given(st.lists(st.tuples(SPANS, SPANS), max_size=5), SPANS, SPANS)
def test_time_is_in_a_gap_or_counts(
    lengths: list[tuple[float, float]], begins: float, lasts: float
) -> None:
    """Between two times no more is left out than passed outside of spells, and all of it but the
    bound for each gap."""
    spells = make_spells(lengths)
    since = START + timedelta(seconds=begins)
    until = max([since, *(spell.until for spell in spells)]) + timedelta(seconds=lasts)
    outside = (until - since).total_seconds() - sum(
        max(0.0, (min(s.until, until) - max(s.since, since)).total_seconds()) for s in spells
    )
    found = count_gaps(spells, since, until)
    assert 0.0 <= found <= outside + 1e-6
    before = max(0.0, (spells[0].since - since).total_seconds()) if spells else outside
    assert found >= outside - before - GAP_SECONDS * len(spells) - 1e-6


def test_a_gap_before_the_last_renewal_prolongs_no_lease() -> None:
    first, second = make_spells([(0.0, 10.0), (60.0, 10.0)])
    gap = 60.0 - GAP_SECONDS
    assert count_gaps([first, second], first.until, second.until) == gap
    assert count_gaps([first, second], second.since, second.until) == 0.0
    assert count_gaps([first], first.until, second.since) == gap, "it is not over yet"
    assert count_gaps([], first.since, second.until) == 0.0
