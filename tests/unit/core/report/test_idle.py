"""GPUs that are held for nothing (HELD-1…3)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.ledger.values import LedgerName
from holdfast.core.report.idle import (
    IDLE_NAMES,
    IdleGpus,
    IdleLook,
    IdlePolicy,
    Then,
    decide_idle,
    say_idle,
    take_look,
)

START = datetime(2026, 11, 20, 12, tzinfo=UTC)
DRAIN = IdlePolicy(then="drain", tell_seconds=600, drain_seconds=300)


def _look(minute: int, *, excused: bool = False, epoch: int = 1, **ms: int) -> IdleLook:
    return IdleLook(
        job_id="j",
        epoch=epoch,
        gpus=2,
        since=START + timedelta(minutes=minute),
        until=START + timedelta(minutes=minute + 1),
        ms={LedgerName(name): value for name, value in ms.items()},
        excused=excused,
        usd_per_hour=6.0,
    )


def _watch(looks: list[IdleLook], policy: IdlePolicy) -> list[tuple[int, Then]]:
    """Return what was done, and at the end of which minute."""
    known: IdleGpus | None = None
    done = []
    for number, look in enumerate(looks):
        known = take_look(known, look)
        if known is None:
            continue
        then = decide_idle(known, policy)
        if then is Then.TELL:
            known = msgspec.structs.replace(known, told_at=known.seen_at)
        if then is not Then.KEEP:
            done.append((number + 1, then))
        if then is Then.DRAIN:
            break
    return done


def test_people_are_told_first_and_the_job_is_stopped_later() -> None:
    looks = [_look(minute, idle=120_000) for minute in range(60)]
    assert _watch(looks, DRAIN) == [(10, Then.TELL), (15, Then.DRAIN)]
    assert _watch(looks, msgspec.structs.replace(DRAIN, then="tell")) == [(10, Then.TELL)]
    assert _watch(looks, msgspec.structs.replace(DRAIN, then="off")) == []


def test_a_job_that_never_beat_is_judged_as_well() -> None:
    looks = [_look(minute, unmeasured_idle=120_000) for minute in range(60)]
    assert _watch(looks, DRAIN) == [(10, Then.TELL), (15, Then.DRAIN)]


def test_one_working_minute_after_the_telling_keeps_the_job() -> None:
    looks = [_look(minute, idle=120_000) for minute in range(60)]
    looks[12] = _look(12, idle=100_000, kept=20_000)
    assert _watch(looks, DRAIN) == [(10, Then.TELL), (23, Then.TELL), (28, Then.DRAIN)]


def test_a_section_begins_anew() -> None:
    looks = [_look(minute, idle=120_000, excused=minute == 9) for minute in range(15)]
    assert _watch(looks, DRAIN) == []


def test_a_look_without_readings_changes_nothing() -> None:
    """HELD-1: while the leader was away nothing was read, and that is no evidence either way."""
    known = take_look(None, _look(0, idle=120_000))
    assert take_look(known, _look(1)) == known
    assert take_look(None, _look(1)) is None


def test_a_job_that_began_within_the_look_was_idle_from_its_begin() -> None:
    known = take_look(None, _look(0, idle=60_000))
    assert known is not None
    assert known.since == START + timedelta(seconds=30)


def test_another_attempt_begins_anew() -> None:
    known = take_look(None, _look(0, idle=120_000))
    again = take_look(known, _look(5, idle=120_000, epoch=3))
    assert again is not None
    assert again.since == START + timedelta(minutes=5)


spent = st.dictionaries(st.sampled_from(LedgerName), st.integers(0, 60_000), max_size=3)
looks_of = st.lists(st.tuples(spent, st.booleans()), max_size=40)


@given(looks_of, st.sampled_from(["off", "tell", "drain"]))
def test_nothing_is_stopped_untold_or_after_work(
    found: list[tuple[dict[LedgerName, int], bool]], then: str
) -> None:
    """HELD-1, HELD-3"""
    policy = IdlePolicy(then=then, tell_seconds=180, drain_seconds=120)
    looks = [
        msgspec.structs.replace(_look(minute, excused=excused), ms=ms)
        for minute, (ms, excused) in enumerate(found)
    ]
    done = _watch(looks, policy)
    assert then != "off" or not done
    for minute, what in done:
        if what is not Then.DRAIN:
            continue
        assert then == "drain"
        told = max(m for m, before in done if before is Then.TELL and m < minute)
        assert minute - told >= 2
        for look in looks[told - 3 : minute]:
            busy = sum(ms for name, ms in look.ms.items() if name not in IDLE_NAMES)
            assert not look.excused
            assert busy <= 0.02 * sum(look.ms.values())


def test_the_sentence_names_gpus_time_cost_and_what_follows() -> None:
    known = take_look(take_look(None, _look(0, idle=120_000)), _look(29, idle=120_000))
    assert known is not None
    assert say_idle(known, DRAIN) == (
        "it holds 2 GPUs that did nothing for 30 min, which cost $3.00; unless they work, "
        "it is stopped in 5 min and queued again"
    )
    assert say_idle(known, DRAIN, drains=True).endswith("; it is queued again (idle_gpus=drain)")
