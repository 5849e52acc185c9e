"""`holdfast up` and `holdfast up --pool` on a machine with a GPU, and the health checks of its host."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.gpu.conftest import GIB, QUICK, ROOT, Gpu, Notes, add_gpu_host, task_environment, told
from tests.system.cluster import Cluster
from tests.system.up.up_rig import Rig
from tests.waits import wait_until


@pytest.mark.parametrize("more", [(), ("--pool",)])
def test_up_offers_the_gpu(
    gpu: Gpu, tmp_path: Path, migrated_cluster: Path, note: Notes, more: tuple[str, ...]
) -> None:
    rig = Rig(tmp_path, "--gpus", "auto", "--port", "0", *more, cluster=migrated_cluster)
    try:
        began = time.monotonic()
        rig.start()
        ready = time.monotonic() - began
        done = rig.run("run", "--gpus", "1", "--", "nvidia-smi", "-L", seconds=90)
        first = time.monotonic() - began
        assert done.returncode == 0, done.stderr + rig.say().encode()
        assert gpu.read().uuid in done.stdout.decode()
        (host,) = json.loads(rig.run("hosts", "--json").stdout)
        note(
            ready=round(ready, 2),
            first_job=round(first, 2),
            gpus=host["gpus"],
            said=rig.say()[-800:],
        )
        assert host["gpus"][0]["memory_bytes"] > GIB
        name = host["name"]

        def look() -> Any:
            shown = json.loads(rig.run("hosts", "telemetry", name, "--json").stdout)
            return shown["latest"]

        found = wait_until(look, 40, what="telemetry")
        note(telemetry=found, text=rig.run("hosts", "telemetry", name).stdout.decode())
        if more:  # a host of a pool is checked before it serves

            def find_check() -> Any:
                checks = json.loads(rig.run("hosts", "checks", name, "--json").stdout)
                return next((check for check in checks if check["kind"] == "preflight"), None)

            check = wait_until(find_check, 60, what="the check before it serves")
            note(check=check, checks=rig.run("hosts", "checks", name).stdout.decode())
            assert check["verdict"] == "ok", check
            (device,) = check["measured"]["devices"][:1]
            assert check["measured"]["driver"]
            assert device["model"] == gpu.read().model
            assert device["ecc_errors"] is not None or gpu.read(deep=True).ecc_errors is None
        assert rig.stop() == 0, rig.say()
    finally:
        rig.close()


def test_a_check_beside_a_task_that_has_all_the_memory_blames_no_host(
    gpu: Gpu, cluster: Cluster, tmp_path: Path, note: Notes
) -> None:
    cluster.client.set_config({"health_check_seconds": 3})
    stop = tmp_path / "stop"
    add_gpu_host(cluster, "full")
    gib = gpu.total_gb - 1.6  # what a CUDA context takes, and a little
    job = cluster.submit(*gpu.program("work_until_told", stop, round(gib, 1)), gpus=1)
    wait_until(lambda: told(cluster.output(job)), 60, what="its memory to be taken")
    seen = {check.number for check in cluster.client.host_checks("full")}

    def find_checks() -> Any:
        new = [c for c in cluster.client.host_checks("full") if c.number not in seen]
        return new if len(new) > 2 else None

    checks = wait_until(find_checks, 60, what="checks beside it")
    note(used=gpu.used_bytes(), checks=[(c.kind, c.verdict, c.message) for c in checks])
    assert {check.verdict for check in checks} <= {"ok", "unknown", "warn"}
    assert cluster.client.host("full").state == "active"
    stop.touch()
    cluster.until(job, "succeeded", seconds=30)


def test_a_hang_is_found_where_the_driver_names_other_pids(
    gpu: Gpu, tmp_path: Path, migrated_cluster: Path, monkeypatch: pytest.MonkeyPatch, note: Notes
) -> None:
    """An agent in a pid namespace of its own, as in a container: the readings of the leased GPU are the
    task's."""
    if os.geteuid():
        pytest.skip("only root may make a pid namespace here")
    monkeypatch.setenv("PYTHONPATH", task_environment()["PYTHONPATH"])
    apart = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
    rig = Rig(tmp_path, "--gpus", "auto", "--port", "0", cluster=migrated_cluster, prefix=apart)
    try:
        rig.start()
        client = rig.client()
        client.set_config({**QUICK, "stall_timeout_seconds": 3})
        job = client.submit(argv=gpu.program("hang", "wait", 4), gpus=1).id
        wait_until(lambda: client.job(job).state.terminal, 90, what="the job to end")
        attempts = client.attempts(job)
        note(attempts=[(a.cause, a.outcome, a.reason) for a in attempts])
        for found in client.forensics(job, attempt=1):
            note(gpus=found.sections["gpus"], stacks=found.sections["python stacks"][:600])
        assert [(a.cause, a.outcome) for a in attempts] == [
            ("stalled", "requeued"),
            (None, "succeeded"),
        ]
        (inner,) = psutil.Process(rig.process.pid).children()  # type: ignore[union-attr]  # started above
        inner.send_signal(signal.SIGINT)
        inner.wait(30)
    finally:
        rig.close()


def test_a_start_after_a_check_of_the_host(gpu: Gpu, tmp_path: Path, note: Notes) -> None:
    """The policy script measures the GPU, finds it fit, and starts its command there."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples/policies/health_checked_start.py"), "--hosts", "1", "--spares", "0",
         "--gpus", "1", "--local", "--", "nvidia-smi", "-L"],
        cwd=tmp_path, env={**os.environ, **task_environment()}, capture_output=True, text=True, timeout=150, check=False,
    )  # fmt: skip
    logs = {str(p.relative_to(tmp_path)): p.read_text()[-2000:] for p in tmp_path.rglob("*.txt")}
    note(output=(done.stdout + done.stderr)[-3000:], logs=logs)
    assert done.returncode == 0, done.stderr


def test_a_run_for_ever_goes_on_after_a_rank_was_killed(
    gpu: Gpu, tmp_path: Path, note: Notes
) -> None:
    """`train_forever.py` with a rank over NCCL that kills itself half way."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples/policies/train_forever.py"), "--hosts", "1", "--gpus", "1", "--local",
         "--", *gpu.program("train", tmp_path, 20, 0.05, 10)],
        cwd=tmp_path, env={**os.environ, **task_environment(), "CUBLAS_WORKSPACE_CONFIG": ":4096:8"},
        capture_output=True, text=True, timeout=90, check=False,
    )  # fmt: skip
    logs = {str(p.relative_to(tmp_path)): p.read_text()[-1500:] for p in tmp_path.rglob("*.txt")}
    note(output=(done.stdout + done.stderr)[-2500:], logs=logs)
    assert done.returncode == 0, done.stderr
    assert "done after 1 restarts" in done.stderr
