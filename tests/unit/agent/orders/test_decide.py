"""CMD-1…3, FALL-1: what a sync answer asks of a host, as a table of values."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from holdfast.agent.orders.decide import (
    Begin,
    ChangeWatch,
    DropPlace,
    ForgetEnds,
    Instruction,
    Instructions,
    KeepPlace,
    Known,
    KnownTask,
    LetBeOffered,
    LetUploadsGo,
    LoseLease,
    Prolong,
    StopOne,
    TellEnd,
    TripByOperator,
    decide_answer,
    decide_fall,
)
from holdfast.core.causes import Cause, Watchdog
from holdfast.core.facts import TaskFacts
from holdfast.core.ids import TaskKey
from holdfast.core.lease import host_deadline
from holdfast.core.settings.watch import WatchSettings
from holdfast.core.states import AgentTaskState as S
from holdfast.wire.agent import (
    AlikeTask,
    ClaimOrder,
    LaunchOrder,
    NewWatch,
    PreemptOrder,
    RefusedReport,
    Renewed,
    SyncAnswer,
)

KEY, OTHER = TaskKey("job", 0, 1), TaskKey("other", 0, 1)
BEGAN, NOW = 1000.0, 1001.0
DEADLINE = host_deadline(BEGAN, 300.0)
BEFORE_ITS_END = [S.ORDERED, S.FETCHING, S.LAUNCHED, S.RUNNING, S.ENDING, S.SAVING]
AFTER = [S.REPORTED, S.ACKNOWLEDGED]


def launch(key: TaskKey = KEY, **fields: object) -> LaunchOrder:
    return LaunchOrder(key=key, attempt=1, name="n", queue="q", project="p", argv=["x"], **fields)  # type: ignore[arg-type]  # test fields


def preempt(**fields: object) -> PreemptOrder:
    return PreemptOrder(key=KEY, grace_seconds=30.0, cause=Cause.USER_CANCELLED, **fields)  # type: ignore[arg-type]  # test fields


def known(state: S | None = None, *, closing: bool = False, **fields: object) -> Known:
    tasks = {} if state is None else {KEY: KnownTask(state=state, **fields)}  # type: ignore[arg-type]  # test fields
    return Known(tasks=tasks, closing=closing)


def decide(
    answer: SyncAnswer, what: Known, *, newest: bool = True, now: float = NOW
) -> Instructions:
    return decide_answer(answer, what, started_at=BEGAN, now=now, newest=newest)


def list_all(found: Instructions) -> list[Instruction]:
    every: Sequence[Instruction] = [
        *found.ranks, *found.settled, *found.stops, *found.launches, *found.watches
    ]  # fmt: skip
    return [each for each in every if not isinstance(each, DropPlace)]


def test_a_launch_is_done_once_per_key() -> None:
    """CMD-1."""
    found = decide(SyncAnswer(launch=[launch(), launch()]), known())
    assert list_all(found) == [Begin(launch(), DEADLINE)]
    assert found.news
    for state in (*BEFORE_ITS_END, *AFTER):
        found = decide(SyncAnswer(launch=[launch()]), known(state))
        assert (list_all(found), found.news) == ([], False)


def test_a_launch_after_the_end_of_its_key_is_answered_with_that_end() -> None:
    """CMD-1."""
    found = decide(SyncAnswer(launch=[launch()]), Known(tasks={}, buried=frozenset([KEY])))
    (told,) = list_all(found)
    assert isinstance(told, TellEnd)
    assert told.facts.trip is not None
    assert told.facts.trip.watchdog is Watchdog.LOST_LEASE


def test_a_launch_whose_lease_is_over_waits_for_its_next_offer() -> None:
    """CMD-2."""
    found = decide(SyncAnswer(launch=[launch(ttl_seconds=10.0)]), known(), now=BEGAN + 20.0)
    assert list_all(found) == [LetBeOffered(launch(ttl_seconds=10.0))]
    assert not found.news


def test_a_host_that_closes_begins_nothing() -> None:
    answer = SyncAnswer(launch=[launch()], claim=[ClaimOrder(key=OTHER, attempt=1)])
    found = decide(answer, known(closing=True))
    assert (list_all(found), found.news) == ([], False)


def test_ranks_of_a_gang_go_first_and_alike_tasks_are_launched_one_by_one() -> None:
    rank = launch(OTHER, world_size=2, local_world_size=2)
    more = launch(also=[AlikeTask(TaskKey("alike", 0, 1), 1, [], 300.0)])
    found = decide(SyncAnswer(launch=[more, rank]), known())
    assert [each for each in found.ranks if isinstance(each, Begin)] == [Begin(rank, DEADLINE)]
    begun = [each.order.key.job_id for each in found.launches if isinstance(each, Begin)]
    assert begun == ["job", "alike"]


@pytest.mark.parametrize("state", [*BEFORE_ITS_END, *AFTER])
def test_an_end_is_forgotten_once_it_is_on_record(state: S) -> None:
    for answer in (SyncAnswer(acked=[KEY]), SyncAnswer(refused=[RefusedReport(key=KEY)])):
        found = decide(answer, known(state), newest=False)
        assert list_all(found) == ([ForgetEnds((KEY,))] if state is S.REPORTED else [])
        assert found.news == (state is S.REPORTED)


def test_an_older_answer_renews_and_commands_nothing() -> None:
    """SYNC-1."""
    answer = SyncAnswer(
        renewed=[Renewed(key=KEY, ttl_seconds=300.0)],
        launch=[launch(OTHER)],
        preempt=[preempt()],
        lost=[KEY],
        watch=[NewWatch(key=KEY, watch=WatchSettings())],
    )
    found = decide(answer, known(S.RUNNING), newest=False)
    assert list_all(found) == [Prolong(((KEY, DEADLINE),))]
    assert not found.news


def test_a_place_is_news_once() -> None:
    answer = SyncAnswer(claim=[ClaimOrder(key=KEY, attempt=1)])
    for places in (frozenset[TaskKey](), frozenset([KEY])):
        found = decide(answer, Known(tasks={}, places=places))
        assert list_all(found) == [KeepPlace(answer.claim[0], DEADLINE)]
        assert found.news == (not places)
    assert list_all(decide(answer, known(S.LAUNCHED))) == []


def test_a_stop_of_a_task_that_never_came_here_is_answered_at_once() -> None:
    """CMD-3: and what comes after it in the same answer does not run."""
    found = decide(SyncAnswer(preempt=[preempt()], launch=[launch()]), known())
    assert list_all(found) == [TellEnd(KEY, TaskFacts(stopped=True))]
    nameless = PreemptOrder(key=TaskKey("../x", 0, 1), grace_seconds=1.0, cause=Cause.UNKNOWN)
    found = decide(SyncAnswer(preempt=[nameless]), known())
    assert (list_all(found), found.news) == ([], False), "nobody would understand a report of it"


@pytest.mark.parametrize("state", BEFORE_ITS_END)
def test_a_stop_is_sent_once_and_again_where_it_is_sooner(state: S) -> None:
    answer = SyncAnswer(preempt=[preempt()])
    stop = StopOne(
        key=KEY, grace_seconds=30.0, why="user_cancelled: ", begun=state is not S.FETCHING
    )
    assert list_all(decide(answer, known(state))) == [stop]
    again = decide(answer, known(state, stop_asked=True, stop_grace=30.0))
    assert (list_all(again), again.news) == ([], False)
    assert list_all(decide(answer, known(state, stop_asked=True, stop_grace=31.0))) == [stop]
    twice = decide(SyncAnswer(preempt=[preempt(), preempt()]), known(state))
    assert list_all(twice) == [stop]


def test_a_hard_stop_waits_for_no_upload_and_an_operators_goes_on_record() -> None:
    found = decide(SyncAnswer(preempt=[preempt(hard=True)]), known(S.RUNNING))
    assert [type(each) for each in list_all(found)] == [StopOne, LetUploadsGo]
    for state, tick in ((S.RUNNING, False), (S.LAUNCHED, True)):
        answer = SyncAnswer(preempt=[preempt(operator_stop=True, reason="off")])
        trip, stop = list_all(decide(answer, known(state)))
        assert trip == TripByOperator(KEY, "off", tick)
        assert isinstance(stop, StopOne)


@pytest.mark.parametrize(
    ("state", "wanted"),
    [
        (S.FETCHING, LoseLease(key=KEY, tick=True, begun=False, watched=False)),
        (S.LAUNCHED, LoseLease(key=KEY, tick=True, begun=True, watched=False)),
        (S.RUNNING, LoseLease(key=KEY, tick=False, begun=True, watched=True)),
        (S.SAVING, LetUploadsGo(KEY)),
        (S.REPORTED, None),
        (None, None),
    ],
)
def test_a_task_that_the_controller_does_not_know_here_is_ended(
    state: S | None, wanted: Instruction | None
) -> None:
    found = decide(SyncAnswer(lost=[KEY]), known(state))
    assert (list_all(found), found.news) == ([wanted] if wanted else [], wanted is not None)
    if state is not None:
        assert list_all(decide(SyncAnswer(lost=[KEY]), known(state, tripped=True))) == []


def test_changed_settings_are_news() -> None:
    settings = WatchSettings()
    found = decide(SyncAnswer(watch=[NewWatch(key=KEY, watch=settings)]), known(S.RUNNING))
    assert (list_all(found), found.news) == ([ChangeWatch(KEY, settings)], True)


def test_the_other_ranks_of_a_gang_that_fell_are_stopped_with_their_own_graces() -> None:
    """FALL-1."""
    keys = [TaskKey("gang", rank, 1) for rank in range(1, 6)]
    tasks = [
        KnownTask(state=S.RUNNING),
        KnownTask(state=S.FETCHING),
        KnownTask(state=S.RUNNING, stop_asked=True),
        KnownTask(state=S.ENDING),
        KnownTask(state=S.REPORTED),
    ]
    found = decide_fall(list(zip(keys, tasks, [1.0, 2.0, 3.0, 4.0, 5.0], strict=True)), fallen=0)
    why = "rank 0 has fallen"
    assert found == [
        StopOne(key=keys[0], grace_seconds=1.0, why=why),
        StopOne(key=keys[1], grace_seconds=2.0, why=why, begun=False),
    ]
