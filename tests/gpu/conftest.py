"""One GPU, a Python with torch, and a cluster whose one host has the GPU. Without them every test here
is skipped, and says what is missing; `make gpu` brings torch."""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from holdfast.agent.probes.devices import Device
from holdfast.agent.probes.nvidia import NvidiaReader
from tests.store.pg_fixture import PgServer
from tests.system.cluster import FAST, Cluster, Host
from tests.system.conftest import cluster, make_cluster
from tests.system.supervisor.conftest import ctx, managers
from tests.waits import wait_until

__all__ = ["cluster", "ctx", "managers"]

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = ROOT / "tests" / "gpu" / "programs.py"
MIB, GIB = 1 << 20, 1 << 30
# What the driver keeps for itself differs from reading to reading.
SLACK_BYTES = 600 * MIB
QUICK = {
    **FAST,
    "stall_sample_interval_seconds": 0.5,
    "health_sample_interval_seconds": 0.5,
    "grace_seconds": 2.0,
    "preempt_min_run_seconds": 0.0,
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A real GPU's start, and the import of torch, take their time."""
    for item in items:
        if item.path.parent == Path(__file__).parent:
            item.add_marker(pytest.mark.slow)
            item.add_marker(pytest.mark.timeout(100))


def find_python() -> str:
    """The Python that has torch, "" where there is none."""
    named = os.environ.get("HOLDFAST_TEST_TORCH", str(ROOT / ".venv-torch" / "bin" / "python"))
    return named if Path(named).exists() else ""


@pytest.fixture(scope="session")
def reader() -> NvidiaReader:
    """Reads the GPU as the agent's probe does; skips where there is none."""
    pynvml = pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed")
    try:
        made = NvidiaReader(pynvml)
    except pynvml.NVMLError as error:
        pytest.skip(f"no NVIDIA GPU answers here ({error}); run `make gpu` on a machine with one")
    if not made.read():
        pytest.skip("the NVIDIA driver lists no GPU; run `make gpu` on a machine with one")
    return made


@pytest.fixture(scope="session")
def torch_python(reader: NvidiaReader) -> str:
    """The Python that has torch for CUDA; skips where there is none."""
    python = find_python()
    if not python:
        pytest.skip("HOLDFAST_TEST_TORCH names no python that has torch; `make gpu` brings one")
    code = "import torch; torch.zeros(1, device='cuda'); print(torch.__version__)"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"torch does not see the GPU: {done.stderr.strip()[-300:]}")
    return python


class Gpu:
    """The first GPU, as NVML and its driver's tools tell of it, and programs that use it."""

    def __init__(self, reader: NvidiaReader, python: str) -> None:
        self._reader = reader
        self.python = python

    def read(self, *, deep: bool = False) -> Device:
        """As the agent's probe reads it."""
        return self._reader.read(deep)[0]

    @property
    def total_gb(self) -> float:
        return self.read().memory_total_bytes / (1 << 30)

    def used_bytes(self) -> int:
        """Memory in use."""
        return self.read().memory_used_bytes or 0

    def wait_free(self, before: int, seconds: float = 10.0) -> float:
        """Wait until no more is used than before; after how many seconds."""
        began = time.monotonic()
        wait_until(
            lambda: self.used_bytes() <= before + SLACK_BYTES, seconds, what="the memory to be free"
        )
        return time.monotonic() - began

    def program(self, *words: object) -> list[str]:
        """The argv of one of `programs`."""
        return [self.python, str(PROGRAMS), *map(str, words)]


@pytest.fixture
def gpu(reader: NvidiaReader, torch_python: str) -> Gpu:
    """The GPU; nothing of an earlier test may be on it."""
    found = Gpu(reader, torch_python)
    wait_until(lambda: not found.read().processes, 20, what="the GPU to be idle")
    return found


def task_environment() -> dict[str, str]:
    """What the programs import: Holdfast from here, beside what their Python has."""
    path = [str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")]
    return {"PYTHONPATH": os.pathsep.join(filter(None, path))}


@pytest.fixture(scope="session")
def gpu_cluster(
    tmp_path_factory: pytest.TempPathFactory, pg_server: PgServer, torch_python: str
) -> Iterator[Cluster]:
    """A controller and one host, which asks the drivers for its GPUs."""
    with ExitStack() as stack:
        cluster = make_cluster(stack, tmp_path_factory.mktemp("gpu"), pg_server)
        cluster.client.set_config(QUICK)
        add_gpu_host(cluster, "box")
        yield cluster


def add_gpu_host(cluster: Cluster, name: str, **options: Any) -> Host:
    """A host with the GPUs of this machine."""
    wanted: dict[str, Any] = {"gpus": "auto", "cpu_slots": 2, **options}
    return cluster.add_host(name, environment=task_environment(), **wanted)


@pytest.fixture
def queue(gpu_cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[str]:
    """A queue of this test alone, by its name; `set_queue` of the cluster gives it settings. What a
    failed test leaves in it is ended, because the next one needs the GPU."""
    name = re.sub(r"[^a-z0-9]+", "-", request.node.name.lower()).strip("-")[-60:].strip("-")
    yield gpu_cluster.set_queue(name)
    for job in gpu_cluster.client.jobs():
        if job.queue == name and not job.state.terminal:
            gpu_cluster.client.cancel(job.id, hard=True)


def told(text: bytes | str) -> list[dict[str, Any]]:
    """What a program told, line by line."""
    words = text.decode(errors="replace") if isinstance(text, bytes) else text
    return [json.loads(line[4:]) for line in words.splitlines() if line.startswith("TOLD")]


# ---- figures


class Notes:
    """Figures of a test, printed at the end of the run, and kept where HOLDFAST_GPU_NOTES says."""

    lines: list[str] = []  # noqa: RUF012  one list for the run

    def __init__(self, test: str) -> None:
        self._test = test
        self._began = time.monotonic()

    def __call__(self, **found: object) -> None:
        line = json.dumps(
            {"test": self._test, "at": round(time.monotonic() - self._began, 2), **found},
            default=str,
        )
        self.lines.append(line)
        if where := os.environ.get("HOLDFAST_GPU_NOTES"):
            with open(where, "a") as file:
                file.write(line + "\n")


@pytest.fixture
def note(request: pytest.FixtureRequest) -> Notes:
    """Keeps figures of this test."""
    return Notes(request.node.name)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print the figures."""
    if Notes.lines:
        terminalreporter.section("what was seen on the GPU")
        for line in Notes.lines:
            terminalreporter.write_line(line[:600])


__all__ += ["GIB", "MIB", "Gpu", "Notes", "add_gpu_host", "told"]
