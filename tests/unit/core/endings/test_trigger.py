"""The rank that began the fall of a gang: tables of what trainers really leave behind, and what is
charged for it (DRAIN-2, GANG-4, GANG-5)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.causes import Cause, Watchdog, WatchdogExit
from holdfast.core.endings.decide import Policy
from holdfast.core.endings.drain import Completion, plan_completion
from holdfast.core.endings.rules import OperatorRule
from holdfast.core.endings.trigger import TOGETHER, classify_failures, find_trigger, is_cascade
from holdfast.core.facts import TaskFacts, Trip
from holdfast.core.records import JobRecord, RankCharges, TaskRecord
from holdfast.core.retry import RetryPolicy
from holdfast.core.spec import JobSpec
from holdfast.core.states import JobEvent, JobState, TaskState

T0 = datetime(2026, 1, 1, tzinfo=UTC)
RETRYING = Policy(retry=RetryPolicy(max_retries=2, retry_delay=8.0))

EXIT_1 = TaskFacts(
    exit_code=1, log_tail="Traceback (most recent call last):\nValueError: bad batch\n"
)
KILLED = TaskFacts(signal=9)
OOM = TaskFacts(signal=9, oom=True)
TERMED = TaskFacts(signal=15)
STUCK = TaskFacts(unkillable=True, stopped=True)
LOST = TaskFacts(lost="lease_lapsed")
XID = TaskFacts(exit_code=1, xids=(79,))
STALLED = TaskFacts(
    signal=9,
    trip=Trip(watchdog=Watchdog.STALL, exit_code=WatchdogExit.STALL, reason="no beat for 120 s"),
)
GLOO = TaskFacts(
    exit_code=1,
    log_tail="[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by "
    "peer [10.0.0.2]:4711",
)
NCCL = TaskFacts(exit_code=1, log_tail="NCCL WARN Connection closed by remote peer host-3<51234>")
STORE = TaskFacts(exit_code=1, log_tail="RuntimeError: Connection reset by peer")
CASCADES = (GLOO, NCCL, STORE, TERMED)


def gang(**changes: object) -> JobRecord:
    fields: dict[str, object] = {
        "id": "j", "name": "j", "project": "default", "queue": "gpu", "priority": 50, "state": JobState.DRAINING,
        "reason": "", "tasks": 4, "gpus": 1, "cpu_slots": 0, "memory_bytes": 0, "labels": {},
        "spec": JobSpec(argv=("train",), tasks=4), "epoch": 3, "attempts": 1, "created_at": T0,
        "drain_cause": Cause.NONZERO_EXIT, "drain_reason": "rank 1 fell", "trigger_rank": 1,
    }  # fmt: skip
    return JobRecord(**(fields | changes))  # type: ignore[arg-type]  # a test's shorthand


def fell(rank: int, at: float, facts: TaskFacts) -> TaskRecord:
    return TaskRecord(
        job_id="j",
        rank=rank,
        epoch=3,
        attempt=1,
        state=TaskState.FAILED,
        host_id=f"h{rank}",
        host_name=f"h{rank}",
        ended_at=T0 + timedelta(seconds=at),
        facts=facts,
    )


def ended(rank: int, state: TaskState) -> TaskRecord:
    facts = (
        TaskFacts(exit_code=0) if state is TaskState.DONE else TaskFacts(signal=15, stopped=True)
    )
    return msgspec.structs.replace(fell(rank, 1.0, facts), state=state)


def complete(job: JobRecord, tasks: Sequence[TaskRecord], policy: Policy = RETRYING) -> Completion:
    completion = plan_completion(job, tasks, policy, (), chance=0.0)
    assert completion is not None
    return completion


@pytest.mark.parametrize(
    ("falls", "trigger", "cascade"),
    [
        # A rank is killed; its peers' collectives break a moment later, and one's report overtakes.
        ([(0, 0.4, GLOO), (1, 0.5, KILLED), (2, 0.6, NCCL), (3, 0.6, STORE)], 1, [0, 2, 3]),
        # The loudest is not the first: the kernel killed rank 2 for its memory, rank 0 printed a
        # traceback at once.
        ([(0, 1.0, EXIT_1), (2, 1.9, OOM)], 2, []),
        # … but not for what came much later.
        ([(0, 1.0, EXIT_1), (2, 9.0, OOM)], 0, []),
        # A dead host is noticed long after its peers gave up waiting for it.
        ([(0, 0.2, NCCL), (1, 0.3, NCCL), (2, 300.0, LOST)], 2, [0, 1]),
        # A card falls off the bus: rank 3's own words are of NCCL too, but the driver's are of its
        # card.
        ([(0, 0.1, NCCL), (3, 0.8, XID)], 3, [0]),
        # A rank hangs: its trip is the cause, although the peers' time-outs came before it.
        ([(0, 0.0, NCCL), (1, 30.0, STALLED)], 1, [0]),
        # A plain `kill` of one rank by hand, with peers that die of it: no rank fell of anything else.
        ([(0, 0.5, GLOO), (1, 0.0, TERMED)], 1, [0]),
        # Asked to end with the others, and stuck in the kernel: it began nothing.
        ([(0, 0.0, KILLED), (1, 1.5, STUCK)], 0, []),
        # Two plain failures: the first in time.
        ([(0, 1.5, EXIT_1), (1, 1.0, EXIT_1)], 1, []),
        # At the same instant: the lowest rank, so that it is the same on every replica.
        ([(2, 1.0, EXIT_1), (1, 1.0, EXIT_1)], 1, []),
    ],
)  # fmt: skip
def test_the_initiating_rank_is_told_from_the_cascade(
    falls: list[tuple[int, float, TaskFacts]], trigger: int, cascade: list[int]
) -> None:
    tasks = [fell(*fall) for fall in falls]
    completion = complete(gang(), tasks)
    assert completion.trigger_rank == trigger
    assert sorted(m.rank for m in completion.members if m.cascade) == cascade
    assert [m.rank for m in completion.members if m.trigger] == [trigger]
    assert f"rank {trigger} on h{trigger}" in completion.decision.reason


falls = st.lists(
    st.tuples(
        st.floats(0, 60),
        st.sampled_from([EXIT_1, KILLED, OOM, TERMED, LOST, STALLED, GLOO, NCCL, STORE]),
    ),
    min_size=1,
    max_size=6,
)


@given(falls, st.randoms(use_true_random=False))
def test_whatever_the_order_of_reports_the_trigger_is_the_same(
    fallen: list[tuple[float, TaskFacts]], chance: object
) -> None:
    tasks = [fell(rank, at, facts) for rank, (at, facts) in enumerate(fallen)]
    trigger = find_trigger(tasks, classify_failures(tasks, ()))
    assert trigger is not None
    shuffled = list(tasks)
    chance.shuffle(shuffled)  # type: ignore[attr-defined]  # hypothesis' Random
    assert find_trigger(shuffled, classify_failures(shuffled, ())) == trigger
    found = classify_failures(tasks, ())
    own = [t for t in tasks if not is_cascade(found[t.rank], t.facts)]
    if own:
        assert trigger in own, "a peer of the fallen is charged with its fall"
        first = min(t.ended_at for t in own if t.ended_at is not None)
        assert trigger.ended_at is not None
        assert trigger.ended_at - first <= TOGETHER


@given(falls)
def test_only_the_triggers_count_grows_and_by_one(fallen: list[tuple[float, TaskFacts]]) -> None:
    """GANG-4, BUDGET-1."""
    tasks = [fell(rank, at, facts) for rank, (at, facts) in enumerate(fallen)]
    before = {"0": RankCharges(retries=1), "5": RankCharges(infra=2)}
    job = gang(tasks=len(tasks), retries_charged=1, infra_charged=2, rank_charges=before)
    if len(tasks) == 1:
        return
    completion = complete(job, tasks)
    grown = {
        rank
        for rank in {*before, *completion.rank_charges}
        if completion.rank_charges.get(rank, RankCharges()) != before.get(rank, RankCharges())
    }
    assert grown <= {str(completion.trigger_rank)}
    sums = [
        sum(getattr(c, kind) for c in completion.rank_charges.values())
        for kind in ("retries", "watchdog", "infra")
    ]
    assert sums == [completion.totals.retries, completion.totals.watchdog, completion.totals.infra]
    assert 0 <= sum(sums) - 3 <= 1


def run_out(ranks: Sequence[int], policy: Policy) -> list[JobEvent]:
    """The job's fate when these ranks fail, one after the other, each an attempt."""
    job, events = gang(), []
    for number, rank in enumerate(ranks, 1):
        tasks = [
            fell(r, 1.0, EXIT_1) if r == rank else ended(r, TaskState.PREEMPTED) for r in range(4)
        ]
        completion = complete(job, tasks, policy)
        events.append(completion.decision.event)
        job = msgspec.structs.replace(
            job,
            attempts=number + 1,
            trigger_rank=rank,
            rank_charges=dict(completion.rank_charges),
            retries_charged=completion.totals.retries,
        )
    return events


def test_a_member_that_fails_every_time_ends_the_job_after_exactly_its_budget() -> None:
    """GANG-4: two retries are three attempts."""
    assert run_out([2, 2, 2], RETRYING) == [JobEvent.BACK_OFF, JobEvent.BACK_OFF, JobEvent.FAIL]


def test_three_members_that_fail_once_each_do_not() -> None:
    """GANG-4: the sum of them would have been over."""
    assert run_out([0, 1, 2, 3], RETRYING) == [JobEvent.BACK_OFF] * 4


def silent_gang(tripped: int, beats: Sequence[float], hosts: Sequence[str]) -> list[TaskRecord]:
    """A gang whose rank `tripped` a watchdog stopped at 200 s. beats: when each rank's last beat
    came."""
    trip = Trip(
        watchdog=Watchdog.STALL,
        exit_code=WatchdogExit.STALL,
        reason="no beat for 120 s",
        evidence={"silent_seconds": 120.0},
    )
    facts = TaskFacts(signal=9, trip=trip)
    return [
        msgspec.structs.replace(
            fell(rank, 200.0, facts) if rank == tripped else ended(rank, TaskState.PREEMPTED),
            beat_at=T0 + timedelta(seconds=beat),
            host_id=hosts[rank],
        )
        for rank, beat in enumerate(beats)
    ]


def test_a_gang_that_falls_silent_together_is_charged_once_whichever_rank_was_seen_first() -> None:
    """SILENT-1: with a budget of one there are two attempts, and "may do so once" is told once."""
    policy = Policy(retry=RetryPolicy(max_retries=2), watchdog_cap=1)
    job, said = gang(tasks=3), []
    for tripped in (2, 0):
        completion = complete(
            job, silent_gang(tripped, (80.0, 81.5, 79.0), ("h0", "h1", "h2")), policy
        )
        assert completion.decision.reason.startswith("all 3 ranks together: no beat for 120 s")
        assert not completion.decision.avoid_host
        assert completion.trigger_rank == tripped
        said.append(
            (
                completion.decision.event,
                "stopped it once, and may do so once" in completion.decision.reason,
            )
        )
        job = msgspec.structs.replace(
            job,
            rank_charges=dict(completion.rank_charges),
            watchdog_charged=completion.totals.watchdog,
        )
    assert said == [(JobEvent.REQUEUE, True), (JobEvent.FAIL, False)]
    assert job.watchdog_charged == 2


def test_a_rank_that_is_silent_while_the_others_beat_is_named_alone() -> None:
    tasks = silent_gang(1, (199.0, 80.0, 198.0), ("h0", "h0", "h1"))
    completion = complete(gang(tasks=3), tasks, Policy(watchdog_cap=1))
    assert completion.decision.reason.startswith("rank 1 on h1: no beat for 120 s")
    assert completion.decision.avoid_host
    some = silent_gang(1, (199.0, 80.0, 81.0), ("h0", "h0", "h0"))
    completion = complete(gang(tasks=3), some, Policy(watchdog_cap=1))
    assert completion.decision.reason.startswith("ranks 1-2 of 3 together: no beat for 120 s")
    assert completion.decision.avoid_host  # all of them ran on one host


@pytest.mark.parametrize(
    "cause", [Cause.PREEMPTED, Cause.HOST_DRAINED, Cause.SCALED_DOWN, Cause.START_TIMEOUT]
)
@pytest.mark.parametrize(
    "facts", [*CASCADES, EXIT_1, KILLED], ids=lambda f: f.log_tail[:12] or f"signal {f.signal}"
)
def test_who_dies_of_being_asked_to_go_is_charged_with_nothing(
    cause: Cause, facts: TaskFacts
) -> None:
    """A rank whose peers were stopped a moment before it breaks on its own; the gang was preempted
    all the same."""
    asked = gang(drain_cause=cause, drain_reason="asked", trigger_rank=None)
    tasks = [fell(0, 1.0, facts), *(ended(r, TaskState.PREEMPTED) for r in (1, 2, 3))]
    completion = complete(asked, tasks, Policy())
    assert completion.trigger_rank is None
    assert completion.totals == RankCharges()
    assert (completion.decision.event, completion.decision.cause) == (JobEvent.REQUEUE, cause)
    assert [m.message for m in completion.members if m.rank == 0] != [""], (
        "what it died of stays on record"
    )


@pytest.mark.parametrize("facts", [OOM, STALLED, XID])
def test_a_fault_that_was_measured_counts_in_any_drain(facts: TaskFacts) -> None:
    asked = gang(drain_cause=Cause.PREEMPTED, drain_reason="asked", trigger_rank=None)
    completion = complete(
        asked, [fell(0, 1.0, facts), *(ended(r, TaskState.PREEMPTED) for r in (1, 2, 3))]
    )
    assert completion.trigger_rank == 0


# ---- GANG-5


@pytest.mark.parametrize("on_partial", ["fail", "restart"])
def test_finished_work_is_not_run_again_unless_it_may_be(on_partial: str) -> None:
    job = gang(spec=JobSpec(argv=("train",), tasks=4, on_partial=on_partial))  # type: ignore[arg-type]  # of the two
    tasks = [
        ended(0, TaskState.DONE),
        fell(1, 1.0, EXIT_1),
        ended(2, TaskState.PREEMPTED),
        ended(3, TaskState.PREEMPTED),
    ]
    decision = complete(job, tasks).decision
    assert decision.event is (JobEvent.FAIL if on_partial == "fail" else JobEvent.BACK_OFF)
    if on_partial == "fail":
        assert "rank 0 had finished its work" in decision.reason
        assert not decision.front
        assert decision.retry is None


def test_another_rank_that_is_never_retried_fails_the_gang() -> None:
    rule = OperatorRule(name="no-license", exit_codes=(7,), never_retry=True, message="no licence")
    tasks = [
        fell(0, 1.0, EXIT_1),
        fell(1, 2.5, TaskFacts(exit_code=7)),
        ended(2, TaskState.PREEMPTED),
        ended(3, TaskState.PREEMPTED),
    ]
    completion = plan_completion(gang(trigger_rank=0), tasks, RETRYING, (rule,), chance=0.0)
    assert completion is not None
    assert completion.decision.event is JobEvent.FAIL
    assert "rank 1 failed of" in completion.decision.reason


def test_those_who_fell_with_a_lost_host_do_not_fail_the_gang_by_their_cause() -> None:
    """A job that retries lost hosts alone: its ranks' broken connections are not failures of their
    own."""
    infra_only = Policy(retry=RetryPolicy(max_retries=0, eligible_causes=(Cause.AGENT_TRANSIENT,)))
    tasks = [fell(0, 300.0, LOST), fell(1, 1.0, NCCL), fell(2, 1.0, GLOO), fell(3, 1.2, TERMED)]
    decision = complete(gang(trigger_rank=1), tasks, infra_only).decision
    assert (decision.event, decision.cause) == (JobEvent.REQUEUE, Cause.AGENT_TRANSIENT)


def test_a_gang_whose_every_rank_is_done_has_succeeded_whatever_was_asked() -> None:
    job = gang(drain_cause=Cause.PREEMPTED, drain_reason="asked", trigger_rank=None)
    assert (
        complete(job, [ended(r, TaskState.DONE) for r in range(4)]).decision.event
        is JobEvent.SUCCEED
    )
