"""The ends of a job whose kernel runs: cancel, drain, kill -9 of agent and guardian. The GPU's memory is
free when the end is confirmed."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from tests.gpu.conftest import GIB, Gpu, Notes, told
from tests.system.cluster import Cluster
from tests.waits import wait_until


def start_spinning(gpu: Gpu, cluster: Cluster, queue: str) -> str:
    """A job that holds half the card in a kernel that never returns."""
    job = cluster.submit(
        *gpu.program("hang", "spin", 0.5 * gpu.total_gb, "always"), queue=queue, gpus=1
    )
    wait_until(
        lambda: any("hung_unix" in line for line in told(cluster.output(job))),
        60,
        what="the kernel",
    )
    time.sleep(1.0)
    return job


@pytest.mark.parametrize("how", ["cancel", "hard cancel", "drain"])
def test_memory_is_free_when_the_end_is_confirmed(
    gpu: Gpu, gpu_cluster: Cluster, queue: str, note: Notes, how: str
) -> None:
    before = gpu.used_bytes()
    job = start_spinning(gpu, gpu_cluster, queue)
    held, began = gpu.used_bytes(), time.monotonic()
    assert held > before + 0.4 * gpu.total_gb * GIB
    if how == "drain":
        gpu_cluster.client.act_on_host("box", "drain", hard=True)
        gpu_cluster.until(job, "queued", seconds=40)
    else:
        gpu_cluster.client.cancel(job, hard=how.startswith("hard"))
        gpu_cluster.until(job, "cancelled", seconds=40)
    used, took = gpu.used_bytes(), time.monotonic() - began
    after = gpu.wait_free(before)
    note(
        how=how,
        took=round(took, 2),
        held=held,
        used_when_confirmed=used,
        free_after=round(after, 2),
    )
    if how == "drain":
        gpu_cluster.client.cancel(job)
        gpu_cluster.until(job, "cancelled")
        gpu_cluster.client.act_on_host("box", "undrain")
    assert used <= before + GIB, "confirmed, and its memory is not free yet"


def test_a_job_that_makes_room_leaves_the_memory_free(
    gpu: Gpu, gpu_cluster: Cluster, queue: str, note: Notes
) -> None:
    """A preemptible job whose kernel never returns, and a more important one that takes its place."""
    words = gpu.program("hang", "spin", 0.5 * gpu.total_gb)
    job = gpu_cluster.submit(*words, queue=queue, gpus=1, preemptible=True)
    wait_until(
        lambda: any("hung_unix" in line for line in told(gpu_cluster.output(job))),
        60,
        what="the kernel",
    )
    urgent = gpu_cluster.submit(*gpu.program("look"), queue=queue, gpus=1, priority=90)
    gpu_cluster.until(urgent, "succeeded", seconds=60)
    gpu_cluster.until(job, "succeeded", seconds=60)  # it hangs at its first attempt alone
    first, second = gpu_cluster.client.attempts(job)
    (found, *_) = told(gpu_cluster.output(urgent))
    note(
        cause=first.cause,
        reason=first.reason,
        second=second.reason,
        free=found["free"],
        total=found["total"],
    )
    assert first.cause == "preempted"
    assert found["free"] > found["total"] - GIB, "the memory was free before it began"


def test_an_agent_that_is_killed_leaves_the_kernel_alone(
    gpu: Gpu, gpu_cluster: Cluster, queue: str, tmp_path: Path, note: Notes
) -> None:
    stop = tmp_path / "stop"
    job = gpu_cluster.submit(*gpu.program("work_until_told", stop, 4), queue=queue, gpus=1)
    wait_until(lambda: told(gpu_cluster.output(job)), 60, what="its first step")
    gpu_cluster.hosts["box"].kill_agent()
    time.sleep(3)
    stop.touch()
    gpu_cluster.until(job, "succeeded", seconds=40)
    (attempt,) = gpu_cluster.client.attempts(job)
    note(reason=attempt.reason, steps=told(gpu_cluster.output(job))[-1])


def test_a_guardian_that_is_killed_frees_the_gpu(
    gpu: Gpu, gpu_cluster: Cluster, queue: str, note: Notes
) -> None:
    """Its tasks die with it; the next guardian begins with a free card."""
    before = gpu.used_bytes()
    job = start_spinning(gpu, gpu_cluster, queue)
    host, began = gpu_cluster.hosts["box"], time.monotonic()
    host.kill_guardian()
    wait_until(lambda: not host.task_pids(job), 20, what="the task to be gone")
    gone = time.monotonic() - began
    free = gpu.wait_free(before)
    host.start()
    gpu_cluster.wait_host("box", seconds=40)
    first = gpu_cluster.until_attempt(job, 1, "ended", seconds=60)
    note(gone=round(gone, 2), free_after=round(free, 2), cause=first.cause, reason=first.reason)
    gpu_cluster.client.cancel(job, hard=True)
    gpu_cluster.until(job, "cancelled", seconds=40)
    gpu.wait_free(before)


def test_training_killed_in_the_middle_ends_with_the_same_loss(
    gpu: Gpu, gpu_cluster: Cluster, queue: str, tmp_path: Path, note: Notes
) -> None:
    """DistributedDataParallel over NCCL; kill -9 half way; the last checkpoint; every digit the same."""
    losses = []
    for name, kills in (("whole", 0), ("killed", 1)):
        state = tmp_path / name
        state.mkdir()
        job = gpu_cluster.submit(
            *gpu.program("train", state, 40, 0.1), queue=queue, gpus=1,
            env={"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}, retry={"max_retries": 2, "retry_delay": 0},
        )  # fmt: skip
        if kills:
            wait_until(lambda: (gpu_cluster.client.job(job).step or 0) > 15, 60, what="step 15")  # noqa: B023  awaited in its round
            os.kill(told(gpu_cluster.output(job))[0]["pid"], signal.SIGKILL)
        gpu_cluster.until(job, "succeeded", seconds=90)
        lines = told(gpu_cluster.output(job, attempt=kills + 1))
        assert not kills or lines[0]["first"] > 10, "it goes on from its checkpoint"
        losses.append(lines[-1]["loss"])
        note(run=name, lines=lines, attempts=[a.reason for a in gpu_cluster.client.attempts(job)])
    assert losses[0] == losses[1]
