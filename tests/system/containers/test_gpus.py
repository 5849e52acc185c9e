"""GPUs for podman, by a description (CDI) that stands for NVIDIA's: no test here has a GPU.
docker's way is in test_engine.py."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast.core.causes import Cause
from holdfast.core.endings.classify import classify
from holdfast.core.gpus import Gpu
from tests.system.agent.conftest import Host
from tests.system.containers.conftest import BoxController
from tests.system.containers.engines import Podman

MakeHost = Callable[..., Host]
pytestmark = pytest.mark.heavy
SECONDS = 40.0
GPUS = [Gpu(index=index, vendor="nvidia", model="a stand-in") for index in range(4)]
FOLDERS = (Path("/etc/cdi"), Path("/var/run/cdi"))


@pytest.fixture(scope="session")
def engine(podman: Podman) -> Podman:
    return podman


@pytest.fixture
def describe() -> Iterator[Callable[[], None]]:
    """Describes devices 0 to 2 of the host, as `nvidia-ctk cdi generate` would. podman looks in two
    fixed folders alone."""
    if os.getuid() != 0 or any(folder.exists() and any(folder.iterdir()) for folder in FOLDERS):
        pytest.skip(
            "/var/run/cdi cannot be written, or this machine's devices are described already"
        )
    file = FOLDERS[1] / "nvidia-stand-in.json"
    made = not file.parent.exists()

    def write() -> None:
        file.parent.mkdir(exist_ok=True)
        devices = [
            {"name": str(n), "containerEdits": {"env": [f"STAND_IN_{n}=here"]}} for n in range(3)
        ]
        file.write_text(
            json.dumps({"cdiVersion": "0.3.0", "kind": "nvidia.com/gpu", "devices": devices})
        )

    yield write
    file.unlink(missing_ok=True)
    if made and file.parent.exists():
        file.parent.rmdir()


def test_podman_is_given_the_task_s_devices_and_says_which_is_missing(
    controller: BoxController, make_host: MakeHost, image: str, describe: Callable[[], None]
) -> None:
    """Without a description nothing is started, and neither failure is one that costs no budget:
    there is no loop."""
    host = make_host(gpus=GPUS).start()
    bare = controller.launch("show", job="bare", image=image, gpus=[1])
    facts = controller.wait_end(bare, SECONDS)
    assert "nvidia-ctk cdi generate" in (facts.start_error or "")
    assert classify(facts).cause is Cause.NONZERO_EXIT
    describe()
    key = controller.launch("show", job="some", image=image, gpus=[2, 0], visible_gpus=[2, 0])
    facts = controller.wait_end(key, SECONDS)
    assert facts.exit_code == 0, facts
    controller.wait_logs(key)
    lines = controller.log_of(key).decode().splitlines()
    assert sorted(line for line in lines if "STAND_IN" in line) == [
        "env STAND_IN_0=here",
        "env STAND_IN_2=here",
    ]
    assert "env CUDA_VISIBLE_DEVICES=1,0" in lines, (
        "counted from 0 inside, in the order of the ranks"
    )
    gone = controller.launch("show", job="gone", image=image, gpus=[3])
    facts = controller.wait_end(gone, SECONDS)
    assert "unresolvable CDI devices nvidia.com/gpu=3" in (facts.runtime_error or "")
    assert classify(facts).cause is Cause.NONZERO_EXIT
    assert not host.said("Traceback")
