"""The causes of real failures of CUDA programs, in the driver's and torch's own words, and the Xids that
the kernel's log holds meanwhile."""

from __future__ import annotations

import os

import pytest

from holdfast.agent.probes.kernel_log import KernelLog
from tests.gpu.conftest import Gpu, Notes
from tests.system.cluster import Cluster


def read_xids() -> list[tuple[int, str]]:
    """The Xids in the kernel's log, none where it may not be read."""
    try:
        log = KernelLog()
    except OSError:
        return []
    try:
        return [(xid.code, xid.line) for xid in log.read().xids]
    finally:
        log.close()


@pytest.mark.parametrize(
    ("program", "cause", "rule", "words"),
    [
        ("run_out_of_memory", "oom_killed", "log-cuda-oom", "the GPU's memory ran out"),
        ("read_out_of_bounds", "nonzero_exit", "log-cuda-fault", "an illegal memory access"),
        ("assert_on_the_device", "nonzero_exit", "log-cuda-fault", "device-side assert triggered"),
    ],
)
def test_a_failure_has_its_cause(
    gpu: Gpu,
    gpu_cluster: Cluster,
    queue: str,
    note: Notes,
    program: str,
    cause: str,
    rule: str,
    words: str,
) -> None:
    before, used = read_xids(), gpu.used_bytes()
    job = gpu_cluster.submit(*gpu.program(program), queue=queue, gpus=1)
    gpu_cluster.until(job, "failed", seconds=60)
    attempt = gpu_cluster.client.attempts(job)[0]
    note(
        cause=attempt.cause, rule=attempt.rule, reason=attempt.reason, xids=read_xids()[len(before) :],
        stderr=gpu_cluster.output(job, "stderr")[-1500:].decode(errors="replace"),
    )  # fmt: skip
    assert (attempt.cause, attempt.rule) == (cause, rule)
    assert words in attempt.reason
    host = gpu_cluster.client.host("box")
    assert host.state == "active", "a program's own fault is no reason to suspect the host"
    gpu.wait_free(used)


def test_a_fault_that_only_the_kernel_tells_of_is_named(
    gpu: Gpu, gpu_cluster: Cluster, queue: str, note: Notes
) -> None:
    """A program that faults and says nothing: the Xid, and whose fault it is, stand in the reason."""
    if os.geteuid():
        pytest.skip("only root may read /dev/kmsg")
    job = gpu_cluster.submit(*gpu.program("fault_without_a_word"), queue=queue, gpus=1)
    gpu_cluster.until(job, "failed", seconds=60)
    attempt = gpu_cluster.client.attempts(job)[0]
    note(cause=attempt.cause, rule=attempt.rule, reason=attempt.reason)
    assert (attempt.cause, attempt.rule) == ("nonzero_exit", "gpu-xid-own")
    assert "Xid 31" in attempt.reason
    assert gpu_cluster.client.host("box").state == "active"


def test_the_kernel_log_can_be_read(note: Notes) -> None:
    if os.geteuid():
        pytest.skip("only root may read /dev/kmsg")
    log = KernelLog()
    found = log.read()
    log.close()
    note(sequence=found.sequence, xids=[(x.code, x.pci, x.line) for x in found.xids])
    assert found.sequence > 0
