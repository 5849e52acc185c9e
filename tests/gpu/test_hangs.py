"""Kernels that never return, and processes that wait in the driver: found, ended, memory free, again."""

from __future__ import annotations

from typing import Any

import pytest

from tests.gpu.conftest import GIB, Gpu, Notes, told
from tests.system.cluster import Cluster


def tell_hang(cluster: Cluster, job: str, note: Notes, gpu: Gpu) -> None:
    """Note when it hung, was found, was gone and ran again, and the memory the next attempt found."""
    first, second = cluster.client.attempts(job)[:2]
    one, two = (told(cluster.output(job, attempt=number)) for number in (1, 2))
    hung = next(line["hung_unix"] for line in one if "hung_unix" in line)
    assert first.ended_at is not None
    assert second.started_at is not None
    events = [
        (e.kind, round(e.at.timestamp() - hung, 2)) for e in cluster.client.events(job_id=job)
    ]
    note(
        cause=first.cause, reason=first.reason, after_hang=round(first.ended_at.timestamp() - hung, 2),
        again=round((second.started_at - first.ended_at).total_seconds(), 2), events=events,
    )  # fmt: skip
    for found in cluster.client.forensics(job, attempt=1):
        note(forensics={title: text[-1500:] for title, text in found.sections.items()})
    if "free" in two[0]:
        assert two[0]["free"] >= one[0]["free"] - GIB, "the memory is free before the next attempt"


@pytest.mark.parametrize(
    ("how", "settings", "cause"),
    [
        ("wait", {"stall_timeout_seconds": 3}, "stalled"),
        ("spin", {"stall_timeout_seconds": 3, "silence_limit_seconds": 12}, "stalled"),
    ],
)
def test_a_hang_after_some_beats_is_ended_and_run_again(
    gpu: Gpu,
    gpu_cluster: Cluster,
    queue: str,
    note: Notes,
    how: str,
    settings: dict[str, Any],
    cause: str,
) -> None:
    """An idle GPU beside a process in the driver is a stall; a kernel that spins looks busy, and ends
    at the silence limit (STALL-3)."""
    gpu_cluster.set_queue(queue, **settings)
    before = gpu.used_bytes()
    job = gpu_cluster.submit(*gpu.program("hang", how, 0.4 * gpu.total_gb), queue=queue, gpus=1)
    gpu_cluster.until(job, "succeeded", seconds=90)
    tell_hang(gpu_cluster, job, note, gpu)
    first, second = gpu_cluster.client.attempts(job)
    assert (first.cause, first.outcome, first.exit_code) == (cause, "requeued", 76)
    assert (second.outcome, second.number) == ("succeeded", 2)
    sections = gpu_cluster.client.forensics(job, attempt=1)[0].sections
    assert "hang" in sections["python stacks"], sections
    assert "synchronize" in sections["python stacks"], sections
    note(free_after=round(gpu.wait_free(before), 2))


def test_a_hang_before_any_beat_is_found_by_the_health_watchdog(
    gpu: Gpu, gpu_cluster: Cluster, queue: str, note: Notes
) -> None:
    gpu_cluster.set_queue(queue, health_window_seconds=5, health_load_grace_seconds=8)
    job = gpu_cluster.submit(*gpu.program("hang_without_a_beat", "wait"), queue=queue, gpus=1)
    gpu_cluster.until(job, "succeeded", seconds=90)
    tell_hang(gpu_cluster, job, note, gpu)
    first, _ = gpu_cluster.client.attempts(job)
    assert (first.cause, first.outcome) == ("gpu_wedged", "requeued")


def test_a_job_that_always_hangs_fails_at_its_cap(
    gpu: Gpu, gpu_cluster: Cluster, queue: str, note: Notes
) -> None:
    gpu_cluster.set_queue(queue, stall_timeout_seconds=2)
    before = gpu.used_bytes()
    words = gpu.program("hang", "wait", 1, "always")
    job = gpu_cluster.submit(*words, queue=queue, gpus=1, watchdog_cap=1)
    ended = gpu_cluster.until(job, "failed", seconds=90)
    assert (ended.cause, ended.attempts) == ("stalled", 2)
    note(reason=ended.reason, free_after=round(gpu.wait_free(before), 2))


# ---- never kill


def test_a_long_load_without_a_beat_is_left_alone(
    gpu: Gpu, gpu_cluster: Cluster, queue: str, note: Notes
) -> None:
    """Three quarters of the card in small pieces, for several windows, and no beat."""
    gpu_cluster.set_queue(
        queue, health_window_seconds=5, health_load_grace_seconds=1, stall_timeout_seconds=4
    )
    gib = int(0.75 * gpu.total_gb)
    job = gpu_cluster.submit(*gpu.program("load", gib, 25), queue=queue, gpus=1)
    gpu_cluster.until(job, "succeeded", seconds=100)
    (attempt,) = gpu_cluster.client.attempts(job)
    (found,) = told(gpu_cluster.output(job))
    note(found=found, cause=attempt.cause)
    assert found["right"]
    assert found["loaded"] == gib * GIB


@pytest.mark.parametrize(("busy", "pause"), [(20, 180), (200, 800)])
def test_a_slow_job_that_works_is_left_alone(
    gpu: Gpu, gpu_cluster: Cluster, queue: str, note: Notes, busy: int, pause: int
) -> None:
    """A GPU that works a tenth or a fifth of the time, for several windows after the last beat."""
    gpu_cluster.set_queue(
        queue, stall_timeout_seconds=3, health_window_seconds=4, health_load_grace_seconds=1
    )
    job = gpu_cluster.submit(*gpu.program("work_slowly", 18, busy, pause), queue=queue, gpus=1)
    gpu_cluster.until(job, "succeeded", seconds=90)
    assert len(gpu_cluster.client.attempts(job)) == 1
    note(
        log=[line["message"] for line in read_journal(gpu_cluster) if "stalled" in line["message"]][
            -3:
        ]
    )


def test_a_section_on_the_cpu_is_left_alone(
    gpu: Gpu, gpu_cluster: Cluster, queue: str, note: Notes
) -> None:
    """CPU time proves nothing beside an idle GPU, because a wait for the driver spins a core as well
    (SIGNAL-3); a section says that it is work."""
    gpu_cluster.set_queue(
        queue, stall_timeout_seconds=3, health_window_seconds=4, health_load_grace_seconds=1
    )
    job = gpu_cluster.submit(*gpu.program("prepare_on_the_cpu", 15), queue=queue, gpus=1)
    gpu_cluster.until(job, "succeeded", seconds=90)
    assert len(gpu_cluster.client.attempts(job)) == 1


def read_journal(cluster: Cluster) -> list[dict[str, Any]]:
    """What the host's agent wrote."""
    import json

    found = []
    for line in cluster.hosts["box"].log().splitlines():
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return [line for line in found if "message" in line]
