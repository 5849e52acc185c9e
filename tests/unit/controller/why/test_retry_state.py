"""The retry state's sentence and numbers, over every state a job can be in."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.controller.why.retry_state import (
    count_retries,
    make_chain,
    make_retry_state,
    policy_of_end,
    say_time,
)
from holdfast.core.records import AttemptRecord, JobRecord
from holdfast.core.retry import RetryPolicy
from holdfast.core.states import JobState

T0 = datetime(2026, 1, 1, 12, 0, 0, tzinfo=UTC)


def job(**fields: Any) -> JobRecord:
    plain: dict[str, Any] = {
        "id": "0" * 20, "name": "x", "project": "p", "queue": "cpu", "priority": 50, "state": "running", "reason": "",
        "tasks": 1, "gpus": 0, "cpu_slots": 1, "memory_bytes": 0, "labels": {}, "spec": {"argv": ["x"]}, "epoch": 1,
        "attempts": 1, "created_at": T0,
    }  # fmt: skip
    return msgspec.convert({**plain, **fields}, JobRecord)


def attempt(number: int, **fields: Any) -> AttemptRecord:
    plain = {
        "job_id": "0" * 20,
        "number": number,
        "parent": number - 1 or None,
        "epoch": number,
        "state": "ended",
        "reserved_at": T0,
    }
    return msgspec.convert({**plain, **fields}, AttemptRecord)


@pytest.mark.parametrize(
    ("fields", "held", "sentence"),
    [
        ({"state": "queued", "attempts": 0}, None, "not started yet, up to 4 attempts"),
        ({"attempts": 1}, None, "attempt 1 of 4, running"),
        ({"attempts": 2, "retries_charged": 2, "state": "waiting", "wait_cause": "back_off", "retry_at": T0 + timedelta(seconds=200)},
         None, "attempt 2 of 4, next at 12:03:20 UTC"),
        ({"attempts": 2, "retries_charged": 2, "state": "waiting", "wait_cause": "back_off", "retry_at": T0 + timedelta(days=1)},
         None, "attempt 2 of 4, next at 2026-01-02 12:00:00 UTC"),
        ({"attempts": 2, "retries_charged": 2, "state": "waiting", "wait_cause": "back_off", "retry_at": T0},
         None, "attempt 2 of 4, next any moment"),
        ({"attempts": 2, "retries_charged": 2, "state": "waiting", "wait_cause": "retries_held", "retry_at": T0},
         "the cluster", "attempt 2 of 4, next when retries are no longer held by the cluster"),
        ({"attempts": 2, "retries_charged": 2, "state": "queued"}, None, "attempt 2 of 4, next as soon as it is admitted"),
        ({"attempts": 4, "retries_charged": 4, "state": "failed"}, None, "attempt 4 of 4, failed"),
        ({"attempts": 3, "retries_charged": 2, "state": "succeeded"}, None, "attempt 3 of 4, succeeded"),
        ({"attempts": 0, "state": "cancelled"}, None, "ended before its first attempt"),
    ],
)  # fmt: skip
def test_sentences(fields: dict[str, Any], held: str | None, sentence: str) -> None:
    retries = 3
    assert (
        make_retry_state(
            job(**fields), RetryPolicy(max_retries=retries), held=held, now=T0
        ).sentence
        == sentence
    )


def test_a_preempted_attempt_costs_no_retry_and_changes_neither() -> None:
    """CHAIN-1"""
    state = make_retry_state(
        job(attempts=3, retries_charged=0), RetryPolicy(max_retries=1), held=None, now=T0
    )
    assert (state.attempt, state.of, state.retries_left) == (1, 2, 1)
    assert state.sentence == "attempt 1 of 2 (started 3 times), running"
    assert count_retries(job(attempts=3, retries_charged=3, state="failed"), 2) == 2


def test_of_a_gang_the_rank_that_failed_most_decides() -> None:
    ranks = {"0": {"retries": 1}, "3": {"retries": 2}}
    gang = job(tasks=4, attempts=4, retries_charged=3, rank_charges=ranks)
    state = make_retry_state(gang, RetryPolicy(max_retries=3), held=None, now=T0)
    assert (state.attempt, state.of, state.retries_left) == (3, 4, 1)


def test_an_interactive_job_has_no_retries() -> None:
    spec = {"argv": ["x"], "interactive": True}
    assert make_retry_state(job(spec=spec), RetryPolicy(max_retries=9), held=None, now=T0).of == 1


@given(
    state=st.sampled_from(list(JobState)),
    attempts=st.integers(0, 50),
    charged=st.integers(0, 60),
    allowed=st.integers(0, 20),
    due=st.none() | st.integers(-100_000, 100_000),
    held=st.none() | st.just("project p"),
)
def test_the_numbers_always_hold_together(
    state: JobState, attempts: int, charged: int, allowed: int, due: int | None, held: str | None
) -> None:
    waits = state is JobState.WAITING and due is not None
    one = job(
        state=state.value,
        attempts=attempts,
        retries_charged=charged,
        retry_at=T0 + timedelta(seconds=due) if waits and due is not None else None,
    )
    found = make_retry_state(one, RetryPolicy(max_retries=allowed), held=held, now=T0)
    assert found.attempt <= min(attempts, found.of)
    assert found.retries_left == max(0, allowed - charged)
    assert found.of == 1 + allowed, "whatever happens"
    assert (found.next_at is not None) == waits
    assert found.held == (held if waits else None)
    if attempts:
        assert found.sentence.startswith(f"attempt {found.attempt} of {found.of}")
        assert (f"started {attempts} times" in found.sentence) is (attempts > found.attempt)
    if waits and attempts and held is None and found.next_at is not None and found.next_at > T0:
        assert say_time(found.next_at, T0) in found.sentence


def test_the_chain_is_oldest_first_and_light() -> None:
    policy = RetryPolicy(max_retries=1)
    chain = make_chain(
        [attempt(2, retry_count=1), attempt(1, cause="nonzero_exit", next_at=T0, policy=policy)]
    )
    assert [
        (link.number, link.parent, link.retry_count, link.cause, link.retry_cause) for link in chain
    ] == [(1, None, 0, "nonzero_exit", None), (2, 1, 1, None, "nonzero_exit")]
    assert b"policy" not in msgspec.json.encode(chain)


def test_an_ended_job_is_told_by_the_policy_it_ended_under() -> None:
    then = RetryPolicy(max_retries=3)
    rows = [attempt(1, policy=RetryPolicy(max_retries=9)), attempt(2, policy=then)]
    assert policy_of_end(job(state="failed", attempts=2), rows) == then
    assert policy_of_end(job(state="running", attempts=2), rows) is None
    assert policy_of_end(job(state="failed"), [attempt(1)]) is None
