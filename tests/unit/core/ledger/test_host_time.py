"""`core.ledger.host_time`: the time of devices that no lease holds."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.ledger.host_time import HostTime, find_unfit, name_unleased
from holdfast.core.ledger.split_lease import MINUTE_MS
from holdfast.core.states import HostState

STRETCHES = st.lists(
    st.tuples(
        st.sampled_from(HostState), st.integers(0, 90).map(lambda s: s * 1000), st.integers(0, 8)
    ),
    max_size=8,
)


def lay(stretches: list[tuple[HostState, int, int]]) -> list[HostTime]:
    """Return the stretches one after the other, from second 20 of a minute on."""
    at, times = 20_000, []
    for state, ms, devices in stretches:
        times.append(HostTime(state=state, since=at, until=at + ms, devices=devices))
        at += ms
    return times


@given(STRETCHES, st.dictionaries(st.integers(0, 12), st.integers(0, 10**6)))
def test_every_offered_second_is_leased_or_named(
    stretches: list[tuple[HostState, int, int]], leased: dict[int, int]
) -> None:
    times = lay(stretches)
    held = {n * MINUTE_MS: ms for n, ms in leased.items()}
    found: Counter[int] = Counter()
    for piece in name_unleased(times, held, 0, 10**9):
        assert piece.ms > 0
        found[piece.at_ms] += piece.ms
    offered: Counter[int] = Counter()
    for time in times:
        for ms in range(time.since, time.until, 1_000):
            end = min(ms + 1_000, time.until)
            offered[ms - ms % MINUTE_MS] += (end - ms) * time.devices if end > ms else 0
    assert sum(found.values()) == sum(max(0, ms - held.get(at, 0)) for at, ms in offered.items())


def test_unleased_time_is_named_by_the_state_of_its_host() -> None:
    states = (HostState.SPAWNING, HostState.ACTIVE, HostState.QUARANTINED, HostState.DRAINING)
    times = lay([(state, 10_000, 2) for state in states])
    found = {p.name: p.ms for p in name_unleased(times, {0: 5_000}, 0, MINUTE_MS)}
    assert found == {"starting": 20_000, "unused": 15_000, "unfit": 20_000, "draining": 20_000}
    assert [(u.since, u.until) for u in find_unfit(times)] == [(40_000, 50_000)]


def test_time_that_a_lease_held_in_quarantine_is_named_once() -> None:
    """A job holds one of two GPUs for the whole minute, of which its host is in quarantine for 15 s."""
    stretches = (
        (HostState.ACTIVE, 30_000),
        (HostState.QUARANTINED, 15_000),
        (HostState.ACTIVE, 15_000),
    )
    at, times = 0, []
    for state, ms in stretches:
        times.append(HostTime(state=state, since=at, until=at + ms, devices=2))
        at += ms
    pieces = name_unleased(times, {0: MINUTE_MS}, 0, MINUTE_MS, unfit={0: 15_000})
    assert {p.name: p.ms for p in pieces} == {"unused": 45_000, "unfit": 15_000}
