"""What tells ranks apart on a real GPU: waits measured by events of its streams, checksums of bits, the
burn-in, and the words for a clock that is held down."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from pathlib import Path

from holdfast.wire.beat import Beat, decode_beat
from tests.gpu.conftest import Gpu, Notes, task_environment
from tests.waits import run_patiently

STEPS = 40
_BURN = """
from holdfast.agent.health.measure import MeasureOrder, measure_devices
import msgspec
found = measure_devices(MeasureOrder(folder="/tmp", multiply=True, burn_seconds=10.0))
print(msgspec.json.encode(found).decode())
"""
_DDP = """
import os, time, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from holdfast.integrations.torch import checksum, tell_waits
from holdfast.work import beat
dist.init_process_group("nccl")
torch.manual_seed(1)
layers = [torch.nn.Linear(2048, 2048) for _ in range(6)]
model = DistributedDataParallel(torch.nn.Sequential(*layers).cuda(), device_ids=[0])
tell_waits(model)
batch = torch.randn(4096, 2048, device="cuda")
for step in range({steps}):
    model(batch).square().mean().backward()
    torch.cuda.synchronize()
    beat(step)
    time.sleep(0.012)
first, again = checksum(model.parameters()), checksum(model.parameters())
with torch.no_grad():
    next(model.parameters())[3, 5] += 1e-6
beat({steps}, checksum=first)
beat({steps} + 1, checksum=again)
beat({steps} + 2, checksum=checksum(model.parameters()))
os._exit(0)
"""


def test_a_burn_in_finds_the_same_bits_each_time(gpu: Gpu, note: Notes) -> None:
    environment = {**os.environ, **task_environment()}
    done = run_patiently(
        [gpu.python, "-c", _BURN], seconds=90, env=environment, stdout=subprocess.PIPE
    )
    (found, *_) = json.loads(done.stdout)["devices"]
    note(burn_rounds=found["burn_rounds"], tflops=found["matmul_tflops"])
    assert found["burn_rounds"] > 100
    assert found["burn_wrong"] == 0


def test_a_steps_wait_over_nccl_is_told_and_one_wrong_bit_changes_the_checksum(
    gpu: Gpu, tmp_path: Path, note: Notes
) -> None:
    path = str(tmp_path / "beats")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as agent:
        agent.bind(path)
        agent.settimeout(0.5)
        environment = {
            **os.environ,
            **task_environment(),
            "HOLDFAST_TASK": "0123456789abcdefghjk:0:1",
            "HOLDFAST_BEAT_SOCKET": path,
            "RANK": "0",
            "WORLD_SIZE": "1",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": "29513",
        }
        beats: list[Beat] = []
        with subprocess.Popen(
            [gpu.python, "-c", _DDP.replace("{steps}", str(STEPS))], env=environment
        ) as process:
            while True:
                try:
                    beats.append(decode_beat(agent.recv(4096)))
                except TimeoutError:
                    if process.poll() is not None:
                        break
    assert process.returncode == 0
    waits = [beat.waited for beat in beats if beat.waited is not None]
    note(waited_seconds=waits[-1], beats=len(beats))
    assert waits == sorted(waits)
    assert 0.0 < waits[-1] < 0.05 * STEPS
    sums = [beat.checksum for beat in beats if beat.checksum is not None]
    assert sums[0] == sums[1] != sums[2]


def test_a_device_that_does_nothing_is_under_no_strain(gpu: Gpu) -> None:
    assert "temperature" not in gpu.read().strain
