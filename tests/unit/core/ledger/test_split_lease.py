"""`core.ledger.split_lease`: a lease's minutes sum to it exactly, whatever its agent tells."""

from collections import Counter

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.ledger.split_lease import (
    MINUTE_MS,
    Account,
    Interval,
    Lease,
    TallyReport,
    apportion,
    count_lease,
    find_lost,
    floor_minute,
    measure_by,
)
from holdfast.core.ledger.tally import Tally, TallyClock
from holdfast.core.ledger.values import LedgerName

BEGUN = 1_700_000_003_217
NAMES = st.sampled_from([str(name) for name in LedgerName] + ["made_up_later"])
TALLIES = st.builds(
    Tally,
    ms=st.dictionaries(NAMES, st.integers(0, 10**7), max_size=6),
    now=NAMES,
    beaten=st.booleans(),
    first_step=st.none() | st.integers(0, 50),
    step=st.none() | st.integers(0, 500),
)
REPORTS = st.lists(
    st.tuples(st.integers(1, 400_000), st.none() | TALLIES, st.integers(-90_000, 90_000)),
    min_size=1,
    max_size=12,
)


def count_all(
    reports: list[tuple[int, Tally | None, int]], *, unfit: list[Interval]
) -> tuple[Account, Counter[tuple[int, str]], int]:
    """Count a lease step by step; return its account, its rows, and its end."""
    rows: Counter[tuple[int, str]] = Counter()
    account: Account | None = None
    at = BEGUN
    for n, (gap, tally, late) in enumerate(reports):
        at += gap
        told = None if tally is None else TallyReport(tally=tally, at_ms=at - late, final=late == 0)
        ended = at if n == len(reports) - 1 else None
        lease = Lease(begun_ms=BEGUN, ended_ms=ended, started_ms=BEGUN + 7, beats=n > 1, told=told)
        found = count_lease(account, lease, at, unfit)
        account = found.account
        for piece in found.pieces:
            rows[piece.at_ms, piece.name] += piece.ms
        for correction in found.corrections:
            assert correction.ms > 0
            rows[0, correction.name] -= correction.ms
            rows[0, correction.to] += correction.ms
    assert account is not None
    return account, rows, at


@given(REPORTS)
def test_the_names_of_a_lease_sum_to_it_whatever_tallies_come(
    reports: list[tuple[int, Tally | None, int]],
) -> None:
    """LEDGER-1, also per minute: each minute holds exactly the part of the lease inside it."""
    account, rows, end = count_all(reports, unfit=[Interval(BEGUN + 100_000, BEGUN + 130_001)])
    assert sum(rows.values()) == end - BEGUN == sum(account.ms.values())
    assert account.ended
    by_minute: Counter[int] = Counter()
    for (at, _), ms in rows.items():
        by_minute[at] += ms
    for at, ms in by_minute.items():
        assert at == 0 or ms == min(end, at + MINUTE_MS) - max(BEGUN, at)
    assert by_minute[0] == 0


@given(REPORTS, st.integers(0, 12))
def test_a_second_count_of_the_same_time_adds_nothing(
    reports: list[tuple[int, Tally | None, int]], n: int
) -> None:
    """LEDGER-2."""
    account, _, end = count_all(reports, unfit=[])
    tally = reports[n % len(reports)][1]
    told = None if tally is None else TallyReport(tally=tally, at_ms=end)
    again = count_lease(account, Lease(begun_ms=BEGUN, ended_ms=end, told=told), end + 9 * n)
    assert again.pieces == []
    assert sum(again.account.ms.values()) == end - BEGUN


@given(
    st.integers(0, 10**9),
    st.dictionaries(st.sampled_from(LedgerName), st.integers(1, 10**9), min_size=1),
)
def test_a_share_differs_from_its_weight_by_less_than_one(
    whole: int, weights: dict[LedgerName, int]
) -> None:
    shares = apportion(whole, weights)
    assert sum(shares.values()) == whole
    for name, weight in weights.items():
        assert abs(shares.get(name, 0) - whole * weight / sum(weights.values())) <= 1


def test_a_job_that_beats_is_measured_before_its_first_tally_comes() -> None:
    """The tally then says how long it loaded, and that time is taken back from what was kept."""
    lease = Lease(begun_ms=BEGUN, started_ms=BEGUN + 1_000, beats=True)
    found = count_lease(None, lease, BEGUN + 60_000)
    assert found.account.ms == {"setting_up": 1_000, "kept": 59_000}
    told_ms = {"setting_up": 1_000, "loading": 9_000, "kept": 60_000}
    tally = Tally(ms=told_ms, now="kept", beaten=True, first_step=0, step=60)
    told = TallyReport(tally=tally, at_ms=BEGUN + 70_000)
    lease = msgspec.structs.replace(lease, told=told)
    found = count_lease(found.account, lease, BEGUN + 70_000)
    assert found.account.ms == told_ms


def test_tallies_that_come_each_minute_are_counted_to_the_millisecond() -> None:
    clock = TallyClock().count(0, LedgerName.SETTING_UP)
    clock = clock.count(4_000, LedgerName.UNMEASURED_BUSY)
    account = None
    rows: Counter[str] = Counter()
    for minute in range(1, 6):
        now = minute * MINUTE_MS
        if minute == 2:
            clock = clock.beat(70_000, 1, LedgerName.KEPT)
        clock = clock.count(
            now, LedgerName.KEPT if clock.tally.beaten else LedgerName.UNMEASURED_BUSY
        )
        ended = BEGUN + 1_000 + now if minute == 5 else None
        told = TallyReport(tally=clock.tally, at_ms=BEGUN + 1_000 + now, final=minute == 5)
        lease = Lease(begun_ms=BEGUN, ended_ms=ended, told=told)
        found = count_lease(account, lease, BEGUN + 1_000 + now)
        account = found.account
    for name, ms in account.ms.items() if account else ():
        rows[name] += ms
    assert rows == {"setting_up": 5_000, "loading": 66_000, "kept": 230_000}


def test_a_lost_tally_is_made_up_for_by_the_next_one() -> None:
    """A minute without news is guessed; the cumulative tally after it puts the sum right."""
    save = Tally(ms={"kept": 60_000, "checkpointing": 60_000}, now="kept", beaten=True)
    first = TallyReport(
        tally=Tally(ms={"kept": 60_000}, now="kept", beaten=True), at_ms=BEGUN + MINUTE_MS
    )
    account = None
    for told, until in (
        (first, 1),
        (first, 2),
        (TallyReport(tally=save, at_ms=BEGUN + 2 * MINUTE_MS), 3),
    ):
        lease = Lease(begun_ms=BEGUN, told=told)
        account = count_lease(account, lease, BEGUN + until * MINUTE_MS).account
    assert account is not None
    assert account.ms == {"kept": 120_000, "checkpointing": 60_000}


def test_the_silence_before_a_trip_is_taken_back_from_work() -> None:
    working = Tally(ms={"kept": 600_000}, now="kept", beaten=True, first_step=1, step=10)
    end = BEGUN + 620_000
    told = TallyReport(tally=working, at_ms=BEGUN + 600_000)
    account = count_lease(None, Lease(begun_ms=BEGUN, told=told), BEGUN + 600_000).account
    tripped = Tally(ms={"kept": 300_000, "stalled": 320_000}, beaten=True, first_step=1, step=10)
    last = Lease(
        begun_ms=BEGUN, ended_ms=end, told=TallyReport(tally=tripped, at_ms=end, final=True)
    )
    found = count_lease(account, last, end + MINUTE_MS)
    assert {(p.name, p.ms) for p in found.pieces if p.at_ms >= floor_minute(end)} <= {
        (LedgerName.STALLED, 20_000), (LedgerName.STALLED, end - floor_minute(end))
    }  # fmt: skip
    assert [(t.name, t.to, t.ms) for t in found.corrections] == [("kept", "stalled", 300_000)]
    assert found.account.ms == {"kept": 300_000, "stalled": 320_000}


def test_steps_that_a_later_attempt_does_again_are_lost() -> None:
    """Work is lost from the point at which the earlier attempt passed that step, at its own pace."""
    account = Account(
        until_ms=0, ms={"kept": 1_000}, points=[(0, 0), (200, 100), (1_000, 200)], ended=True
    )
    again, lost = find_lost(account, 151)
    assert lost == 400  # steps 151 … 200, of 8 ms each
    assert again.ms == {"kept": 600, "lost": 400}
    assert find_lost(again, 151)[1] == find_lost(again, 180)[1] == 0
    third, more = find_lost(again, 1)
    assert more == 600
    assert third.ms == {"kept": 0, "lost": 1_000}


def test_a_rank_without_beats_is_measured_by_one_that_beats() -> None:
    silent = Tally(ms={"setting_up": 5, "unmeasured_busy": 100}, now="unmeasured_busy")
    beating = Tally(
        ms={"setting_up": 9, "loading": 30, "kept": 60},
        now="kept",
        beaten=True,
        first_step=1,
        step=4,
    )
    assert measure_by(silent, beating).ms == {"setting_up": 5, "loading": 33, "kept": 67}
    assert measure_by(silent, Tally()) == silent
