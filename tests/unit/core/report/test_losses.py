"""What was lost, and what would have saved it (MEND-1)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.ledger.values import JobLosses, LostBy
from holdfast.core.report.losses import (
    INTERVALS_SECONDS,
    LossLine,
    list_losses,
    propose,
    say_hours,
    say_interval,
)

HOUR = 3_600_000


def _job(*lost: LostBy, **more: object) -> JobLosses:
    fields = {
        "job_id": "j1",
        "job_name": "train",
        "project": "vision",
        "owner": "ada",
        "queue": "gpu",
        "devices": 1,
        "lost": list(lost),
        **more,
    }
    return JobLosses(**fields)  # type: ignore[arg-type]  # fields of several types


def _losses(*jobs: JobLosses, **more: dict[str, float]) -> tuple[LossLine, ...]:
    held, free = more.get("held", {}), more.get("free", {})
    return list_losses(held, free, jobs, {}, rates={}, rate=2.0)


def test_steps_done_again_are_told_with_their_cause_and_their_mend() -> None:
    lost = LostBy(cause="stalled", ends=4, lost_ms=round(3.1 * HOUR))
    (line,) = _losses(_job(lost))
    assert line.sentence == (
        "3.1 h: steps done again after 4 stalls of `train`; "
        "a checkpoint each 10 min would have saved 2.4 h"
    )
    assert line.usd == 2.0 * line.hours
    assert line.job_id == "j1"


def test_a_cause_without_a_word_of_its_own_is_named_as_it_is() -> None:
    (line,) = _losses(_job(LostBy(cause="unknown", ends=1, lost_ms=HOUR), save_seconds=60.0))
    assert line.sentence == "1.0 h: steps done again after 1 end (unknown) of `train`"


def test_the_other_names_are_told_with_the_job_that_had_most_of_it() -> None:
    jobs = (_job(stalled_ms=2 * HOUR), _job(job_id="j2", job_name="other", stalled_ms=HOUR))
    lines = _losses(*jobs, held={"stalled": 3.0}, free={"unused": 9.0})
    assert [line.sentence.split(";")[0] for line in lines] == [
        "9.0 h: hosts that stood ready without work",
        "3.0 h: silence until a watchdog stopped what hung, most of it of `train`",
    ]


def test_what_reads_as_nothing_is_not_told() -> None:
    assert _losses(held={"waiting": 0.001}) == ()


ends = st.lists(st.integers(1, 40_000), min_size=1, max_size=12)


@given(ends, st.integers(1, 16), st.none() | st.integers(1, 20_000))
def test_a_proposal_saves_at_least_what_it_says(
    instants: list[int], devices: int, save_seconds: int | None
) -> None:
    """MEND-1: the same ends, played again with a checkpoint each T, lose so much less."""
    kept_each = save_seconds or 10**9
    lost = [instant % kept_each for instant in instants]
    found = propose(
        lost_ms=sum(lost) * 1000 * devices,
        ends=len(instants),
        devices=devices,
        save_seconds=save_seconds,
    )
    if found is None:
        return
    again = sum(instant % found.seconds for instant in instants)
    assert 0 < found.saved_ms <= (sum(lost) - again) * 1000 * devices


@given(
    st.integers(0, 10**10),
    st.integers(1, 100),
    st.integers(1, 64),
    st.integers(0, 10**10),
    st.floats(0.1, 1e5),
)
def test_a_proposal_is_one_of_the_steps_and_closer_than_before(
    lost_ms: int, ends: int, devices: int, checkpointing_ms: int, save_seconds: float
) -> None:
    leased_ms = lost_ms + checkpointing_ms + 10**9
    found = propose(
        lost_ms=lost_ms,
        ends=ends,
        devices=devices,
        leased_ms=leased_ms,
        checkpointing_ms=checkpointing_ms,
        save_seconds=save_seconds,
    )
    if found is not None:
        assert found.seconds in INTERVALS_SECONDS
        assert found.seconds < save_seconds
        assert 0 < found.saved_ms <= lost_ms


def test_saves_that_cost_much_are_proposed_further_apart() -> None:
    """Seven hours were lost at 4 ends; with saves of 1 s each minute is best, with saves of 2
    minutes it is not."""

    def best(save_cost_seconds: int) -> int:
        saves = 100 * 3600 // 7200
        found = propose(
            lost_ms=7 * HOUR,
            ends=4,
            devices=1,
            leased_ms=100 * HOUR,
            checkpointing_ms=saves * save_cost_seconds * 1000,
            save_seconds=7200,
        )
        assert found is not None
        return found.seconds

    assert best(1) < best(20) <= best(60)


def test_figures_are_written_for_people() -> None:
    assert [say_hours(h) for h in (0.011, 0.25, 0.94, 0.96, 3.14, 1204.2)] == [
        "40 s",
        "15 min",
        "56 min",
        "1.0 h",
        "3.1 h",
        "1,204 h",
    ]
    assert [say_interval(s) for s in (60, 600, 3600, 7200)] == ["1 min", "10 min", "1 h", "2 h"]
