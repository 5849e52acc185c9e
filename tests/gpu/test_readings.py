"""What the driver really says, and what Holdfast makes of it: hosts, telemetry, one task's share."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
from pathlib import Path

from holdfast.agent.probes import Probed
from holdfast.agent.probes.nvidia import NvidiaReader
from holdfast.agent.probes.real import RealProbe
from holdfast.agent.probes.worker_client import ProbeWorker
from holdfast.core.ids import TaskKey
from tests.gpu.conftest import GIB, Gpu, Notes, told
from tests.system.cluster import Cluster
from tests.waits import wait_until


def test_the_host_has_the_gpu_and_a_task_sees_its_own(
    gpu: Gpu, gpu_cluster: Cluster, queue: str, note: Notes
) -> None:
    host = gpu_cluster.client.host("box")
    device = gpu.read(deep=True)
    assert next((g.index, g.uuid, g.model) for g in host.gpus) == (0, device.uuid, device.model)
    assert host.gpus[0].memory_bytes == device.memory_total_bytes > GIB
    assert host.slots["gpu"] == {"total": len(host.gpus), "busy": 0}
    words = 'nvidia-smi -L; echo "$CUDA_VISIBLE_DEVICES $CUDA_DEVICE_ORDER"'
    done = gpu_cluster.cli("run", "--queue", queue, "--gpus", "1", "--", "sh", "-c", words)
    assert done.returncode == 0, done.stderr
    assert device.uuid in done.stdout.decode()
    assert done.stdout.decode().splitlines()[-1] == "0 PCI_BUS_ID"
    code = "import torch; print(torch.cuda.is_available(), torch.cuda.device_count())"
    without = gpu_cluster.cli("run", "--queue", queue, "--", gpu.python, "-c", code)
    assert without.stdout.split() == [b"False", b"0"], "a task without a GPU sees none (ENV-3)"
    note(
        model=device.model, memory=device.memory_total_bytes, pci=device.pci, ecc=device.ecc_errors
    )
    note(hosts=gpu_cluster.cli("hosts").stdout.decode())


def test_the_driver_counts_memory_errors_and_heat(gpu: Gpu) -> None:
    device = gpu.read(deep=True)
    assert re.fullmatch(r"[0-9A-Fa-f]{8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.0", device.pci)
    assert device.ecc_errors is None or device.ecc_errors >= 0
    assert device.temperature_celsius is not None
    assert 10 < device.temperature_celsius < 110
    assert device.utilisation_percent is not None
    assert device.processes == []
    assert not device.lost


def test_readings_of_one_process(
    gpu: Gpu, reader: NvidiaReader, tmp_path: Path, note: Notes
) -> None:
    """Utilisation and memory of a busy process are its own, and another's are another's."""
    stop = tmp_path / "stop"
    environment = {
        **os.environ,
        "PYTHONPATH": f"{Path(__file__).parents[2]}/src:{os.environ.get('PYTHONPATH', '')}",
    }
    process = subprocess.Popen(
        gpu.program("work_until_told", stop, 8), env=environment, stdout=subprocess.PIPE
    )
    try:
        wait_until(lambda: gpu.read().processes, 60, what="the process on the device")
        wait_until(lambda: gpu.used_bytes() > 8 * GIB, 60, what="its memory")

        async def sample() -> list[tuple[object, ...]]:
            probe = RealProbe(ProbeWorker(), guardian_pid=os.getpid())
            key, other = TaskKey("job", 0, 1), TaskKey("other", 0, 1)
            found = []
            try:
                await probe.find_gpus()
                for _ in range(6):
                    await asyncio.sleep(1.0)
                    seen = await probe.sample(
                        [Probed(key, process.pid, (0,)), Probed(other, os.getppid(), (0,))]
                    )
                    reading = seen[key].reading.gpus[0]
                    found.append(
                        (
                            reading.utilisation_percent,
                            reading.memory_bytes,
                            reading.box_wide,
                            seen[key].owns_whole_box,
                        )
                    )
                note(pids_are_ours=probe.pids_are_ours)
            finally:
                await probe.close()
            return found

        found = asyncio.run(sample())
        device = gpu.read()
        note(samples=found, device=json.loads(json.dumps(device, default=str)))
        assert max(percent or 0 for percent, *_ in found) > 50
        assert all((memory or 0) >= 8 * GIB for _, memory, *_ in found)
    finally:
        stop.touch()
        process.wait(30)
    assert told(process.stdout.read() if process.stdout else b"")


def test_telemetry_of_a_working_job(
    gpu: Gpu, gpu_cluster: Cluster, queue: str, tmp_path: Path, note: Notes
) -> None:
    """Memory and utilisation reach the controller, a second job waits, and `why` says for what."""
    stop = tmp_path / "stop"
    job = gpu_cluster.submit(*gpu.program("work_until_told", stop, 6), queue=queue, gpus=1)
    gpu_cluster.until(job, "running", seconds=30)
    waiting = gpu_cluster.submit("true", queue=queue, gpus=len(gpu_cluster.client.host("box").gpus))
    why = wait_until(lambda: gpu_cluster.client.why(waiting), 10)
    note(why=str(why))

    def look() -> object:
        latest = gpu_cluster.client.host_telemetry("box").latest
        found = latest.gpus[0] if latest is not None else None
        busy = found is not None and (found.memory_used_bytes or 0) > 6 * GIB
        return found if busy and (found.utilisation_percent or 0) > 30 else None  # type: ignore[union-attr]  # a busy GPU was read

    found = wait_until(look, 50, what="telemetry of the busy GPU")
    note(telemetry=str(found), shown=gpu_cluster.cli("hosts", "telemetry", "box").stdout.decode())
    assert gpu_cluster.client.job(waiting).state == "queued"
    stop.touch()
    gpu_cluster.until(job, "succeeded", seconds=30)
    gpu_cluster.until(waiting, "succeeded", seconds=30)
