"""OVERLAP-1…3: nothing is sent or written twice because two requests of a host overlap."""

import pytest

from holdfast.controller.runtime.calls.overlaps import OverExecutors, Overlap, add_recorded
from holdfast.core.calls.values import FunctionSpec
from holdfast.core.facts import TaskFacts
from holdfast.core.ids import TaskKey
from holdfast.store.postgres.calls.values import ExecutorTurn, ExecutorTurned
from holdfast.wire.calls import (
    Batch,
    BatchEnds,
    CallEnd,
    CallOrder,
    Closing,
    ExecutorReport,
    SetInfo,
)

KEY = TaskKey("0" * 20, 0, 1)
SETS = [SetInfo(id="s", spec=FunctionSpec(function="m:f"))]


def turn(
    *, held: tuple[int, ...] = (), ends: dict[int, range] | None = None, want: int = 0
) -> ExecutorTurn:
    given = [
        BatchEnds(batch, [CallEnd(p, False, 0.0, "1") for p in positions])
        for batch, positions in (ends or {}).items()
    ]
    report = ExecutorReport(key=KEY, held=list(held), ends=given, want=want)
    return ExecutorTurn(host_id="h", incarnation="i" * 8, report=report)


def handed(*batches: int, calls: int = 1) -> ExecutorTurned:
    orders = [CallOrder(0, index, 1, "") for index in range(calls)]
    return ExecutorTurned(key=KEY, batches=[Batch(id=b, sets=SETS, calls=orders) for b in batches])


def test_a_batch_on_its_way_is_held() -> None:
    overlap = Overlap()
    overlap.note_answer(handed(5), exchange=3)
    seen, _ = overlap.trim(turn(held=(4,)), arrived=2)
    assert seen.report.held == [4, 5]
    assert overlap.trim(turn(held=(5,)), arrived=2)[0].report.held == [5]
    later, _ = overlap.trim(turn(), arrived=3)  # it came after the answer, and does not name it
    assert later.report.held == []


@pytest.mark.parametrize(("want", "left"), [(1, 0), (3, 0), (4, 0), (10, 6)])
def test_what_is_on_its_way_was_asked_for(want: int, left: int) -> None:
    """Others beside it would wait behind it, for as long as it runs, in one executor of many."""
    overlap = Overlap()
    overlap.note_answer(handed(5, calls=4), exchange=3)
    assert overlap.trim(turn(want=want), arrived=2)[0].report.want == left
    assert overlap.trim(turn(want=want, held=(5,)), arrived=2)[0].report.want == want
    assert overlap.trim(turn(want=want), arrived=3)[0].report.want == want, "the store counts it"


def test_recorded_ends_are_answered_for_without_the_store() -> None:
    overlap = Overlap()
    overlap.note_answer(ExecutorTurned(key=KEY, recorded=[(5, 0), (5, 1)]), exchange=1)
    seen, repeated = overlap.trim(turn(ends={5: range(4), 6: range(2)}), arrived=1)
    left = {each.batch: [end.position for end in each.ends] for each in seen.report.ends}
    assert left == {5: [2, 3], 6: [0, 1]}
    assert repeated == [(5, 0), (5, 1)]
    answer = add_recorded(ExecutorTurned(key=KEY, recorded=[(6, 0)]), repeated)
    assert answer.recorded == ((6, 0), (5, 0), (5, 1))
    whole, _ = overlap.trim(turn(ends={5: range(2)}), arrived=1)
    assert whole.report.ends == []


def test_it_remembers_a_few_batches_alone() -> None:
    overlap = Overlap()
    for number in range(100):
        overlap.note_answer(ExecutorTurned(key=KEY, recorded=[(number, 0)]), exchange=number)
    assert overlap.trim(turn(ends={1: range(1)}), arrived=0)[1] == []
    assert overlap.trim(turn(ends={99: range(1)}), arrived=0)[1] == [(99, 0)]


def test_an_executor_that_is_over_asks_for_nothing() -> None:
    over = OverExecutors()
    assert over.trim(turn(want=3)) == turn(want=3)
    over.note_executors([ExecutorReport(key=KEY, closing=Closing(facts=TaskFacts()))])
    over.note_executors([ExecutorReport(key=TaskKey("1" * 20, 0, 1))])
    assert over.trim(turn(held=(5,), want=3)) == turn(held=(5,))
    assert KEY in over
    for number in range(1000):
        key = TaskKey(f"{number:020}", 0, 2)
        over.note_executors([ExecutorReport(key=key, closing=Closing(facts=TaskFacts()))])
    assert KEY not in over, "it remembers the last ones alone"
