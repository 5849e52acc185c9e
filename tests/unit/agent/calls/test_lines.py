"""How much of what executors say goes into one request, and what crosses with it, without I/O."""

from __future__ import annotations

import asyncio
from typing import cast

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.agent.calls.lines import ExecutorLine, count_ends, drop_recorded, fit_ends
from holdfast.core.calls.values import FunctionSpec
from holdfast.core.facts import TaskFacts
from holdfast.core.ids import TaskKey
from holdfast.wire.calls import (
    AgentFrame,
    Batch,
    BatchEnds,
    CallEnd,
    CallOrder,
    Closing,
    ExecutorFrame,
    ExecutorReport,
    SetInfo,
)
from holdfast.wire.frames import FrameReader

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


SETS = [SetInfo(id="s", spec=FunctionSpec(function="m:f"))]


class Socket:
    """What the line writes to its executor."""

    def __init__(self) -> None:
        self._reader = FrameReader()
        self.given: list[int] = []

    def write(self, data: bytes) -> None:
        for body in self._reader.feed(data):
            frame = msgspec.msgpack.decode(body, type=AgentFrame)
            self.given += [batch.id for batch in frame.batches]

    def close(self) -> None:
        pass


def batch(number: int, calls: int = 1) -> AgentFrame:
    orders = [CallOrder(0, index, 1, "[]") for index in range(calls)]
    return AgentFrame(batches=[Batch(id=number, sets=SETS, calls=orders)])


@pytest.fixture
def socket() -> Socket:
    return Socket()


@pytest.fixture
def line(socket: Socket) -> ExecutorLine:
    made = ExecutorLine(TaskKey("0" * 20, 0, 1))
    made.connect(cast(asyncio.StreamWriter, socket))
    return made


@pytest.mark.parametrize(("calls", "left"), [(1, 2), (3, 0), (4, 0)])
def test_what_crosses_with_a_batch_asks_for_nothing_beside_it(
    line: ExecutorLine, calls: int, left: int
) -> None:
    """LINE-4."""
    line.receive_frame(ExecutorFrame(want=3))
    line.send_frame(batch(1, calls))
    assert (line.report().want, line.report().held) == (0, [1])
    line.receive_frame(ExecutorFrame(want=3, loaded="m"))  # it was said before the batch was there
    assert (line.report().want, line.report().held) == (left, [1])
    line.receive_frame(ExecutorFrame(want=3, held=[1]))
    assert (line.report().want, line.report().held) == (3, [1])


def test_a_batch_that_was_taken_back_before_it_was_heard_of_holds_back_no_other(
    line: ExecutorLine,
) -> None:
    line.send_frame(batch(1))
    line.send_frame(AgentFrame(dropped=[1]))
    line.receive_frame(ExecutorFrame(want=1))
    assert (line.report().want, line.report().held) == (1, [])


def test_a_batch_is_run_once_however_late_an_answer_brings_it_again(
    line: ExecutorLine, socket: Socket
) -> None:
    """LINE-5. It comes again as long as the executor has not named it: it may have been away."""
    line.send_frame(batch(1))
    line.send_frame(batch(1))
    assert socket.given == [1, 1]
    line.receive_frame(ExecutorFrame(held=[1]))
    line.receive_frame(ExecutorFrame())  # its ends are on record
    line.send_frame(batch(1))
    line.send_frame(batch(2))
    assert socket.given == [1, 1, 2]
    assert line.report().held == [2]
