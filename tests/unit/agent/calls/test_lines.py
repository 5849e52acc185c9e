"""How much of what executors say goes into one request."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.agent.calls.lines import count_ends, drop_recorded, fit_ends
from holdfast.core.facts import TaskFacts
from holdfast.core.ids import TaskKey
from holdfast.wire.calls import BatchEnds, CallEnd, Closing, ExecutorReport

SIZES = st.lists(st.lists(st.lists(st.integers(0, 40), max_size=6), max_size=3), max_size=4)


def make_reports(sizes: list[list[list[int]]]) -> list[ExecutorReport]:
    return [
        ExecutorReport(
            key=TaskKey("0123456789abcdefghjk", 0, number),
            ends=[
                BatchEnds(
                    batch, [CallEnd(at, False, 0.0, "é" * size) for at, size in enumerate(of_batch)]
                )
                for batch, of_batch in enumerate(of_executor)
            ],
            closing=Closing(facts=TaskFacts(exit_code=0)),
        )
        for number, of_executor in enumerate(sizes)
    ]


@given(SIZES, st.integers(1, 200))
def test_every_end_is_told_in_the_end_and_an_executor_closes_with_its_last(
    sizes: list[list[list[int]]], most: int
) -> None:
    waiting = make_reports(sizes)
    told: list[tuple[TaskKey, int, int]] = []
    while waiting:
        fitted = fit_ends(waiting, most)
        assert len(fitted) == len(waiting)
        values = [end.value for report in fitted for b in report.ends for end in b.ends]
        assert sum(len(v.encode()) for v in values[:-1]) < most
        going = []
        for before, report in zip(waiting, fitted, strict=True):
            some = {(b.batch, end.position) for b in report.ends for end in b.ends}
            told += [(report.key, *place) for place in sorted(some)]
            left = drop_recorded(before, some)
            assert (report.closing is None) == bool(left.ends)
            if left.ends:
                going.append(left)
        assert count_ends(b for r in fitted for b in r.ends) or not going, (
            "each request brings some on"
        )
        waiting = going
    assert len(told) == len(set(told)) == sum(len(b) for e in sizes for b in e)
