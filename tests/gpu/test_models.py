"""Calls of functions with models on one GPU: one is loaded at a time, a swap gives the memory back, an
executor whose context broke is replaced, and what other processes hold is no room."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.functions.connection import CONNECTION
from tests.gpu.conftest import GIB, ROOT, Gpu, Notes, task_environment
from tests.system.cluster import Cluster
from tests.waits import wait_until


@pytest.fixture(scope="module")
def share_gb(reader: object) -> float:
    """More than half of the card, so that two do not fit at once."""
    devices = reader.read()  # type: ignore[attr-defined]  # a fixture, typed as an object
    return round(0.55 * devices[0].memory_total_bytes / GIB, 1)


@pytest.fixture(scope="module")
def hosted(gpu_cluster: Cluster, torch_python: str, share_gb: float) -> Iterator[Cluster]:
    """A second host of the same machine, which has the GPU for calls; the first one serves none."""
    os.environ["MODEL_GB"] = str(share_gb)  # the app is imported here, too
    sys.path.insert(0, str(ROOT / "tests" / "gpu"))
    gpu_cluster.client.act_on_host("box", "drain")
    environment = {**task_environment(), "MODEL_GB": str(share_gb)}
    gpu_cluster.add_host(
        "calls", gpus="auto", cpu_slots=1, apps=["models_app"], environment=environment,
        app_path=str(ROOT / "tests" / "gpu"), app_python=torch_python,
    )  # fmt: skip
    CONNECTION.use(gpu_cluster.client)
    yield gpu_cluster
    CONNECTION.use(None)
    gpu_cluster.client.act_on_host("calls", "drain", hard=True)
    gpu_cluster.client.act_on_host("box", "undrain")


def test_two_models_of_more_than_half_the_card_take_turns(
    hosted: Cluster, share_gb: float, note: Notes
) -> None:
    import models_app

    turns = []
    for ask, value in ((models_app.ask_left, 1), (models_app.ask_left, 1), (models_app.ask_right, 2), (models_app.ask_left, 1)):  # fmt: skip
        began = time.monotonic()
        found = ask.submit(0).result(timeout=90)
        turns.append({**found, "took": round(time.monotonic() - began, 2)})
        assert found["value"] == value
        assert found["used"] < (share_gb + 4) * GIB, "one model is loaded at a time"
    note(turns=turns, models=hosted.client.host("calls").models)
    assert len({turn["pid"] for turn in turns}) == 1, "one process, which swaps its model"
    assert turns[1]["took"] < turns[2]["took"], "a loaded model is found warm"
    many = [*models_app.ask_left.map(range(200)), *models_app.ask_right.map(range(200))]
    assert len(many) == 400
    text = hosted.cli("hosts", "telemetry", "calls").stdout.decode()
    note(telemetry=text, metrics=read_metrics(hosted))


def read_metrics(cluster: Cluster) -> list[str]:
    """The batches of calls that found their model warm, or did not."""
    import httpx

    token = cluster.controller.token_file.read_text().strip()
    answer = httpx.get(
        f"{cluster.controller.url}/metrics", headers={"Authorization": f"Bearer {token}"}
    )
    return [
        line for line in answer.text.splitlines() if line.startswith("holdfast_call_batches_total")
    ]


def test_an_executor_whose_context_broke_is_replaced(
    hosted: Cluster, tmp_path: Path, note: Notes
) -> None:
    import models_app

    before = models_app.ask_left.submit(0).result(timeout=90)
    handle = models_app.break_once.submit(str(tmp_path / "broken"))
    after = handle.result(timeout=90)
    view = hosted.client.call_view(handle.set_id, handle.index)
    note(before=before, after=after, failures=[(f.cause, f.reason) for f in view.failures])
    assert after["value"] == 1
    assert after["pid"] != before["pid"], "a broken context is never used again"
    assert len(view.failures) == 1


def test_a_call_that_waits_in_the_driver_is_freed(
    hosted: Cluster, tmp_path: Path, note: Notes
) -> None:
    import models_app

    began = time.monotonic()
    handle = models_app.wait_for_ever.submit(str(tmp_path / "waited"))
    assert handle.result(timeout=90) == "passed"
    view = hosted.client.call_view(handle.set_id, handle.index)
    note(
        took=round(time.monotonic() - began, 2),
        failures=[(f.cause, f.reason) for f in view.failures],
    )
    assert [failure.cause for failure in view.failures] == ["stalled"]


def test_what_another_process_holds_is_no_room(
    hosted: Cluster, reader: object, torch_python: str, tmp_path: Path, note: Notes
) -> None:
    """FEED-4, ROOM-1: the model waits, `tasks why` says for what, and it is loaded when there is room."""
    import models_app

    gpu = Gpu(reader, torch_python)  # type: ignore[arg-type]  # a fixture, typed as an object
    wait_until(lambda: gpu.used_bytes() < 8 * GIB, 90, what="the idle model to be unloaded")
    stop = tmp_path / "stop"
    environment = {**os.environ, **task_environment()}
    words = gpu.program("work_until_told", stop, 0.5 * gpu.total_gb)
    other = subprocess.Popen(words, env=environment, stdout=subprocess.DEVNULL)
    try:
        wait_until(lambda: gpu.used_bytes() > 0.5 * gpu.total_gb * GIB, 60)
        time.sleep(6)  # rooms are read every five seconds
        handle = models_app.ask_right.submit(0)
        time.sleep(8)
        assert not handle.done(), "there is no room for it"
        note(why=hosted.cli("calls", "why", handle.id).stdout.decode())
    finally:
        stop.touch()
        other.wait(30)
    assert handle.result(timeout=60)["value"] == 2
