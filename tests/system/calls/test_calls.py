"""Calls end to end: a real controller, PostgreSQL, agents and executors."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast
from holdfast.core.calls.values import MAX_INLINE_BYTES
from holdfast.core.spec import JobSpec
from holdfast.errors import ValidationError
from holdfast.functions import CallCancelled, CallFailed
from holdfast.functions.connection import CONNECTION
from tests.system.cluster import Cluster
from tests.waits import Patience, stretch, wait_until

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))  # hosts import the app by the same name

import pages  # noqa: E402  found by the line above

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def hosted(shared: Cluster) -> Iterator[Cluster]:
    """A cluster whose host runs two executors of the app."""
    shared.add_host("pages", cpu_slots=2, apps=["pages"], app_path=str(HERE))
    shared.client.set_config({"forensics_seconds": 0, "stall_sample_interval_seconds": 0.2})
    CONNECTION.use(shared.client)
    yield shared
    CONNECTION.use(None)


def test_a_call_a_map_and_handles_as_they_end(hosted: Cluster) -> None:
    assert pages.double.submit(3).result(timeout=stretch(60)) == 6
    assert list(pages.double.map(range(5000))) == [2 * n for n in range(5000)]
    handles = [pages.double.submit(n) for n in range(10)]
    ended = list(holdfast.as_completed(handles, timeout=stretch(60)))
    assert sorted(handle.result() for handle in ended) == [2 * n for n in range(10)]


def test_a_call_that_raises_is_retried_and_shows_its_chain(hosted: Cluster, tmp_path: Path) -> None:
    handle = pages.fail_twice.submit(str(tmp_path / "tries"))
    assert handle.result(timeout=stretch(60)) == 3
    assert handle.attempts == 3
    view = hosted.client.call_view(handle.set_id, handle.index)
    assert [(failure.attempt, failure.cause) for failure in view.failures] == [
        (1, "nonzero_exit"),
        (2, "nonzero_exit"),
    ]
    assert "try 1 is too early" in view.failures[0].reason
    with pytest.raises(CallFailed, match="KeyError: 'gone'") as failed:
        pages.fail.submit().result(timeout=stretch(60))
    assert 'raise KeyError("gone")' in failed.value.remote_traceback


def test_a_wedged_call_is_freed_and_charged_alone(hosted: Cluster, tmp_path: Path) -> None:
    results = pages.wedge.map(["", "", str(tmp_path / "wedged"), "", ""])
    assert list(results) == ["passed"] * 5
    ends = hosted.client.call_results(results.id).results
    assert [end.attempts for end in ends] == [1, 1, 2, 1, 1]
    [failure] = hosted.client.call_view(results.id, 2).failures
    assert failure.cause == "stalled"
    assert "no beat for" in failure.reason
    assert hosted.client.call_view(results.id, 3).failures == []


@pytest.mark.parametrize("victim", ["executor", "agent", "server"])
def test_each_result_is_there_once_whatever_is_killed(
    hosted: Cluster, tmp_path: Path, victim: str
) -> None:
    results = pages.note.map(range(2000), [str(tmp_path)] * 2000)
    first = [next(results) for _ in range(300)]
    host = hosted.hosts["pages"]
    if victim == "agent":
        host.kill_agent()
    elif victim == "server":
        hosted.controller.kill()
        hosted.controller.start()
    else:
        os.kill(host.executor_pids()[0], signal.SIGKILL)
    assert [*first, *results] == list(range(2000))
    view = hosted.client.call_set(results.id)
    assert (view.state, view.succeeded, view.failed) == ("ended", 2000, 0)
    if victim != "executor":  # executors went on, and told whichever came after
        assert {len(path.read_text()) for path in tmp_path.iterdir()} == {1}


def test_two_models_take_turns_in_one_slot(shared: Cluster, hosted: Cluster) -> None:
    shared.set_queue("narrow", executors_max=1)
    a, b = pages.with_a.options(queue="narrow"), pages.with_b.options(queue="narrow")
    turns = [task.submit().result(timeout=stretch(60)) for task in (a, a, b, a)]
    assert len({pid for pid, _, _ in turns}) == 1
    assert [(model, loads) for _, model, loads in turns] == [
        ("a", ["a"]),
        ("a", ["a"]),
        ("b", ["a", "b"]),
        ("a", ["a", "b", "a"]),
    ]


def test_a_running_call_is_cancelled(hosted: Cluster, tmp_path: Path) -> None:
    path = tmp_path / "running"
    handle = pages.stay.submit(str(path))
    wait_until(path.exists, 60)
    handle.cancel("wrong input")
    with pytest.raises(CallCancelled, match="wrong input"):
        handle.result(timeout=stretch(60))
    wait_until(path.with_suffix(".told").exists)
    assert path.with_suffix(".told").read_text() == "wrong input"
    shown = hosted.cli("calls", "show", handle.id).stdout
    assert b"wrong input" in shown


def test_calls_that_wait_for_calls_lend_their_slots(hosted: Cluster) -> None:
    """Twice as many as there are slots; the executors beside them take none, and go again (PLAN-7)."""
    place = hosted.client.place
    given = [(3, place.url, place.token or "")] * 4
    found = pages.sum_of_children.map(*zip(*given, strict=True))
    assert list(found) == [6] * 4
    wait_until(lambda: not [job for job in list_executors(hosted) if job.cpu_slots == 0])
    assert list(pages.double.map(range(50))) == [2 * n for n in range(50)]


def test_scripts_at_once_share_an_executor_whose_calls_submit_calls(
    shared: Cluster, hosted: Cluster
) -> None:
    """SETS-1: each script's calls are a set of their own, and an executor runs them in turns."""
    shared.set_queue("shared-executor", executors_max=1)
    scripts = [pages.hand_down.options(queue="shared-executor") for _ in range(3)]
    for _ in range(2):
        handles = [(script.submit(n), n) for n in range(4) for script in scripts]
        for handle, n in handles:
            child, _ = handle.result(timeout=stretch(60))
            assert child == 2 * n
    assert len({handle.set_id for handle, _ in handles}) == len(scripts)
    ran = {(handle.result()[1], handle.set_id) for handle, _ in handles}
    assert len({pid for pid, _ in ran}) < len(ran), "an executor ran calls of several scripts"
    wait_until(
        lambda: {hosted.client.call_set(handle.set_id).failed for handle, _ in handles} == {0}
    )


def list_executors(cluster: Cluster) -> list[JobSpec]:
    jobs = cluster.client.jobs(executors="only", states=["queued", "reserved", "running"])
    return [job.spec for job in jobs]


def test_large_values_go_by_reference(hosted: Cluster) -> None:
    text = "é" * 200_000
    assert pages.lengthen.submit(text, 3).result(timeout=stretch(60)) == text * 3


def test_many_values_just_under_a_reference_come_through(hosted: Cluster) -> None:
    """Together they are more than a frame, a request, an answer or a page of results may hold."""
    size = MAX_INLINE_BYTES - 64
    assert [len(text) for text in pages.lengthen.map(["x" * size] * 120, [1] * 120)] == [size] * 120


def test_what_does_not_fit_is_refused_at_submission(hosted: Cluster) -> None:
    with pytest.raises(ValidationError, match="argument 'n' of pages:double: must be a whole"):
        pages.double.submit("three")  # type: ignore[arg-type]  # wrong on purpose
    assert pages.double(4) == 8  # in place, as ever


def test_a_call_that_does_not_listen_is_ended_at_once_where_that_is_asked(
    hosted: Cluster, tmp_path: Path
) -> None:
    path = tmp_path / "deaf"
    results = pages.stubborn.map([*[""] * 50, str(path), *[""] * 40], errors="return")
    wait_until(path.exists, 60)
    patience = Patience(14)
    done = hosted.cli("calls", "cancel", f"{results.id}.50", "--hard")
    assert done.returncode == 0, done.stderr
    found = list(results)
    assert not patience.over, "it did not wait for the grace of 15 s"
    assert isinstance(found[50], CallCancelled)
    ends = hosted.client.call_results(results.id).results
    assert {(end.state, end.attempts) for end in ends if end.index != 50} == {(1, 1)}


def test_a_call_that_does_not_listen_is_ended_after_its_grace(
    hosted: Cluster, tmp_path: Path
) -> None:
    path = tmp_path / "deaf"
    hosted.client.set_config({"grace_seconds": 0.5})
    try:
        handle = pages.stubborn.submit(str(path))
        wait_until(path.exists, 60)
        handle.cancel()
        with pytest.raises(CallCancelled):
            handle.result(timeout=stretch(60))
    finally:
        hosted.client.set_config({}, unset=["grace_seconds"])


def test_an_idle_executor_gives_its_slot_to_a_job(shared: Cluster, hosted: Cluster) -> None:
    """Both slots are held by executors that wait for calls without an end."""
    shared.client.set_config({"executors_ahead": 2})
    try:
        wait_until(lambda: _count_executors(shared) == 2, 60)
        jobs = [shared.submit("true") for _ in range(2)]
        for job_id in jobs:
            shared.until(job_id, "succeeded", seconds=30)
    finally:
        shared.client.set_config({}, unset=["executors_ahead"])


def _count_executors(shared: Cluster) -> int:
    return len(list(shared.client.jobs(states=["running"], executors="only")))
