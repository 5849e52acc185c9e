"""Costs of spans of work: real processes, counted by the clock that every kernel counts."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
from bench.costs import (
    SOFTWARE,
    TASK_CLOCK,
    Cost,
    Meter,
    close_counters,
    describe_refusal,
    list_cost_lines,
    open_counters,
    sum_counters,
)

BURN = "import time\nuntil = time.process_time() + {}\nwhile time.process_time() < until: pass\n"
STARTER = f"""
import subprocess, sys
for line in sys.stdin:
    subprocess.run([sys.executable, "-S", "-c", {BURN.format(0.4)!r}])
    print("ready", flush=True)
"""
NO_EVENT = (SOFTWARE, 10_000)


@pytest.fixture
def starter() -> Iterator[subprocess.Popen[str]]:
    """A process that starts one that burns 0.4 s for each line it is given."""
    process = subprocess.Popen(
        [sys.executable, "-S", "-c", STARTER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def _ask(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("go\n")
    process.stdin.flush()
    assert process.stdout.readline() == "ready\n"


def _burn(seconds: float) -> None:
    until = time.process_time() + seconds
    while time.process_time() < until:
        pass


def _can_count() -> bool:
    try:
        close_counters(open_counters([os.getpid()], TASK_CLOCK, inherit=True))
    except OSError:
        return False
    return True


def test_a_span_is_divided_by_its_work() -> None:
    meter = Meter({"me": lambda: [os.getpid()]})
    with meter.count(100):
        _burn(0.5)
    (cost,) = meter.costs["me"]
    assert 4_500 <= cost.cpu_us <= 8_000


def test_what_a_part_alone_starts_is_a_part_of_its_own(starter: subprocess.Popen[str]) -> None:
    meter = Meter({"parent": lambda: [starter.pid]}, alone="parent", started="tasks")
    with meter.count(1):
        _ask(starter)
    (tasks,), (parent,) = meter.costs["tasks"], meter.costs["parent"]
    assert tasks.cpu_us >= 380_000
    assert parent.cpu_us < 200_000


def test_what_a_part_starts_is_in_its_cost(starter: subprocess.Popen[str]) -> None:
    meter = Meter({"parent": lambda: [starter.pid]})
    with meter.count(1):
        _ask(starter)
    assert meter.costs["parent"][0].cpu_us >= 380_000


@pytest.mark.skipif(not _can_count(), reason="this kernel lets no process count")
def test_a_counter_follows_what_is_started_and_no_counter_alone_does(
    starter: subprocess.Popen[str],
) -> None:
    """In nanoseconds of CPU, which stand in for instructions where a machine counts none."""
    meter = Meter(
        {"parent": lambda: [starter.pid]}, alone="parent", started="tasks", event=TASK_CLOCK
    )
    with meter.count(1000):
        _ask(starter)
    assert meter.refused == ""
    (tasks,), (parent,) = meter.costs["tasks"], meter.costs["parent"]
    assert tasks.kilo_instructions is not None
    assert parent.kilo_instructions is not None
    assert tasks.kilo_instructions >= 380
    assert 0 < parent.kilo_instructions < 200
    assert tasks.kilo_instructions == pytest.approx(tasks.cpu_us, rel=0.3)


@pytest.mark.skipif(not _can_count(), reason="this kernel lets no process count")
def test_counters_are_closed_after_each_span(starter: subprocess.Popen[str]) -> None:
    before = os.listdir("/proc/self/fd")
    meter = Meter({"parent": lambda: [starter.pid]}, event=TASK_CLOCK)
    for _ in range(3):
        with pytest.raises(KeyError), meter.count(1):
            raise KeyError
        with meter.count(1):
            pass
    assert os.listdir("/proc/self/fd") == before


def test_a_process_that_is_gone_costs_nothing() -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    meter = Meter({"gone": lambda: [gone.pid]})
    with meter.count(1):
        pass
    assert meter.costs["gone"][0].cpu_us == 0
    assert sum_counters(open_counters([gone.pid], inherit=True)) == 0


def test_what_is_not_counted_is_said_and_has_no_row() -> None:
    meter = Meter({"me": lambda: [os.getpid()]}, event=NO_EVENT)
    with meter.count(1):
        pass
    assert meter.costs["me"][0].kilo_instructions is None
    assert meter.refused
    assert describe_refusal(meter) == (f"Instructions are not counted here: {meter.refused}.",)
    lines = list(list_cost_lines("a job", meter, "loop", meter))
    assert [line.what for line in lines] == ["a job: CPU, me", "a job: CPU, all"]


def test_all_parts_of_a_round_are_summed_beside_those_of_the_limit() -> None:
    meter, limit = Meter({}), Meter({})
    meter.costs = {"a": [Cost(1.0, 10.0), Cost(3.0, 30.0)], "b": [Cost(2.0, 20.0), Cost(2.0, 5.0)]}
    limit.costs = {"loop": [Cost(2.0, 5.0), Cost(4.0, 5.0)]}
    lines = {line.what: line for line in list_cost_lines("a job", meter, "loop", limit)}
    whole, counted = lines["a job: CPU, all"], lines["a job: instructions, all"]
    assert (whole.value.low, whole.value.high, whole.ratio) == (3.0, 5.0, 4.0 / 3.0)
    assert (counted.value.low, counted.value.high, counted.ratio) == (30.0, 35.0, 6.5)
    assert lines["a job: instructions, b"].value.median == 12.5
