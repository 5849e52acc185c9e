"""Totals that supervised runs report become counters, each count once."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from holdfast.controller.runtime.run_counts import RunCounts
from holdfast.core.ids import TaskKey
from holdfast.wire.agent import TaskReport


def report(job: int, frames: float, state: str = "running", **more: float) -> TaskReport:
    key = TaskKey(job_id=f"job{job}", rank=0, epoch=1)
    return TaskReport(key=key, state=state, counts={"frames_in": frames, **more})  # type: ignore[arg-type]  # literals


def read(registry: CollectorRegistry, name: str = "frames_in") -> float:
    return registry.get_sample_value(f"holdfast_supervisor_{name}_total") or 0.0


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 50)), max_size=30))
def test_every_growth_counts_once(growths: list[tuple[int, int]]) -> None:
    """RUN-COUNT-1, with reports that come again."""
    registry = CollectorRegistry()
    counts = RunCounts(registry)
    counts.add_counts(report(job, 1000.0) for job in range(4))
    assert read(registry) == 0.0, "another replica may have counted what there was"
    totals = dict.fromkeys(range(4), 1000.0)
    for job, growth in growths:
        totals[job] += growth
        counts.add_counts([report(job, totals[job])])
        counts.add_counts([report(job, totals[job])])
    assert read(registry) == sum(growth for _, growth in growths)


def test_the_last_report_counts_and_is_then_forgotten() -> None:
    registry = CollectorRegistry()
    counts = RunCounts(registry)
    counts.add_counts([report(1, 5.0)])
    counts.add_counts([report(1, 9.0, "ended")])
    counts.add_counts([report(1, 9.0, "ended")])
    assert read(registry) == 4.0
    counts.add_counts([report(1, 2.0), report(1, 3.0)])
    assert read(registry) == 5.0, "a script that begins anew counts from its own zero"


def test_what_is_no_count_adds_nothing() -> None:
    registry = CollectorRegistry()
    counts = RunCounts(registry)
    counts.add_counts(
        [report(1, 5.0, unheard_of=1.0), TaskReport(key=report(1, 0).key, state="running")]
    )
    counts.add_counts([report(1, 3.0, unheard_of=9.0), report(1, float("inf")), report(1, 4.0)])
    assert read(registry) == 0.0
