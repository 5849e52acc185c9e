"""The work that a stop loses, and the jobs that are stopped because they lose least (COST-1,
UNSAVED-1, UNSAVED-2)."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.placement.plan import Candidate, Capacity, RunningTask, plan_admission
from holdfast.core.placement.unsaved import weigh_jobs

HOUR = 3600.0


def runs(name: str, gpus: int = 1, *, priority: int = 10, **fields: object) -> RunningTask:
    about: dict[str, object] = {
        "host_id": "h",
        "cpu_slots": 0,
        "memory_bytes": 0,
        "ran_seconds": HOUR,
        "preemptible": True,
        "stoppable": True,
        **fields,
    }
    return RunningTask(job_id=name, priority=priority, devices=gpus, **about)  # type: ignore[arg-type]  # by name


def choose(running: Sequence[RunningTask], gpus: int = 1, cpu_slots: int = 0) -> tuple[str, ...]:
    """Return the jobs that are stopped so that a job of these needs starts on the one full host."""
    asker = Candidate(
        job_id="asker",
        epoch=0,
        queue="q",
        priority=90,
        tasks=1,
        gpus=gpus,
        cpu_slots=cpu_slots,
        memory_bytes=0,
    )
    full = Capacity(
        host_id="h",
        name="h",
        incarnation="i",
        queues=frozenset(),
        free_cpu_slots=0,
        free_memory_bytes=0,
        free_devices=(),
    )
    found = plan_admission([asker], [full], {}, running=running, lowest_preemptible=0)
    return found.preemptions[0].victims if found.preemptions else ()


def test_the_job_that_saved_last_is_stopped_though_it_ran_longest() -> None:
    old = runs("saved", ran_seconds=9 * HOUR, saved_seconds=20.0, saved_step=400)
    assert choose([runs("young", ran_seconds=400.0), old, runs("b", saved_seconds=30.0)]) == (
        "saved",
    )


def test_a_job_that_never_saved_loses_all_since_its_attempt_began() -> None:
    found = weigh_jobs([runs("a", 2), runs("b", 2, saved_seconds=5 * HOUR, ran_seconds=60.0)])
    assert (found["a"].gpu_seconds, found["a"].by) == (2 * HOUR, "attempt")
    # The checkpoint of an attempt before covers no second of this one.
    assert (found["b"].gpu_seconds, found["b"].by) == (120.0, "attempt")


def test_each_gpu_of_a_gang_counts() -> None:
    gang = [runs("gang", 1, saved_seconds=60.0) for _ in range(4)]
    assert weigh_jobs(gang)["gang"].gpu_seconds == 240.0
    assert choose([*gang, runs("one", saved_seconds=200.0)]) == ("one",)


def test_two_jobs_that_lose_little_are_stopped_rather_than_one_that_loses_much() -> None:
    small = [runs(f"s{i}", saved_seconds=10.0 + i) for i in range(3)]
    assert sorted(choose([runs("large", 2), *small], gpus=2)) == ["s0", "s1"]


def test_what_is_less_important_is_stopped_even_if_it_loses_more() -> None:
    """COST-1: else the more important one, queued again, would stop the spared one in its turn, and
    the work of both would be lost."""
    spared, stopped = runs("b", priority=20, saved_seconds=1.0), runs("a", priority=10)
    assert choose([spared, stopped]) == ("a",)


def test_jobs_without_gpus_are_compared_by_cpu_slots() -> None:
    wide = runs("wide", 0, cpu_slots=4, saved_seconds=50.0)
    narrow = runs("narrow", 0, cpu_slots=4, saved_seconds=49.0)
    found = weigh_jobs([wide])["wide"]
    assert (found.gpu_seconds, found.cpu_slot_seconds) == (0.0, 200.0)
    assert choose([wide, narrow], gpus=0, cpu_slots=4) == ("narrow",)


def test_equal_losses_are_told_apart_by_number_then_importance_then_age() -> None:
    same = {"saved_seconds": 10.0}
    assert choose([runs("b", 1, **same), runs("a", 1, **same)]) == ("a",)
    assert choose([runs("a", ran_seconds=900.0, **same), runs("b", ran_seconds=800.0, **same)]) == (
        "b",
    )
    assert choose([runs("two", 2, **same), runs("a", **same), runs("b", **same)], gpus=2) == (
        "two",
    )


def test_a_job_whose_checkpoint_was_twice_not_there_is_weighed_with_its_projects_median() -> None:
    """UNSAVED-2: it saves every second and never goes on from there, so its word is worth nothing."""
    liar = runs("liar", saved_seconds=1.0, saved_step=9000, broken=2)
    honest = [runs(f"h{i}", saved_seconds=seconds) for i, seconds in enumerate((60.0, 90.0, 600.0))]
    found = weigh_jobs([liar, *honest, runs("other", project="else", saved_seconds=5.0)])["liar"]
    assert (found.seconds, found.by, found.step) == (90.0, "median", None)
    assert choose([liar, *honest]) == ("h0",)
    once = runs("once", saved_seconds=1.0, broken=1)
    assert choose([once, *honest]) == ("once",), "one broken word may be an accident"


def test_without_others_of_its_project_a_doubted_job_loses_all_since_its_attempt_began() -> None:
    assert weigh_jobs([runs("liar", saved_seconds=1.0, broken=5)])["liar"].seconds == HOUR


@pytest.mark.parametrize("preemptible", [True, False])
def test_nothing_that_may_not_be_stopped_yet_is_chosen_however_little_it_loses(
    preemptible: bool,
) -> None:
    young = runs("young", saved_seconds=0.0, preemptible=preemptible)
    chosen = choose([young, runs("old")])
    assert chosen == (("young",) if preemptible else ("old",))


@given(
    st.lists(
        st.tuples(
            st.integers(0, 4),
            st.floats(0, 1e6),
            st.none() | st.floats(0, 1e6),
            st.integers(0, 3),
            st.sampled_from("pq"),
        ),
        max_size=8,
    )
)
def test_no_job_loses_more_than_its_attempt_unless_its_word_is_doubted(
    rows: list[tuple[int, float, float | None, int, str]],
) -> None:
    running = [
        runs(str(i), gpus, ran_seconds=ran, saved_seconds=saved, broken=broken, project=project)
        for i, (gpus, ran, saved, broken, project) in enumerate(rows)
    ]
    found = weigh_jobs(running)
    for task in running:
        loss = found[task.job_id]
        assert loss.gpu_seconds == task.devices * loss.seconds >= 0
        if task.broken < 2:
            assert loss.seconds <= task.ran_seconds
        # No job changes the weight of another by what it says of itself once it is doubted.
        others = weigh_jobs([t for t in running if t is not task])
        if task.broken >= 2:
            assert all(found[i] == other for i, other in others.items())
