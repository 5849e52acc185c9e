"""Runs whose nodes call functions, by real executors."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.client.workflows.build import Workflow
from tests.system.cluster import Cluster
from tests.system.workflows.steps import add, count, square

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[3]


def test_a_restart_of_a_map_runs_only_the_calls_that_failed(
    shared: Cluster, tmp_path: Path
) -> None:
    shared.add_host("steps", cpu_slots=2, apps=["tests"], app_path=str(ROOT))
    marker = tmp_path / "mended"
    wf = Workflow("squares", out_dir=str(tmp_path))
    numbers = wf.add(count, 6)
    squares = wf.map(square, numbers.out, marker=str(marker))
    total = wf.add(add, squares.out)
    run = wf.submit(shared.client)
    view = run.wait(90)
    assert (view.state, view.failed_node) == ("failed", "square")
    assert "1 of 6 calls failed; call 3: " in view.reason
    assert "three is out of order" in view.reason
    why = shared.client.why_node(run.id, "add")
    assert "node square did not succeed" in why.summary
    marker.touch()
    run.restart()
    view = run.wait(90)
    assert view.state == "succeeded", view.reason
    assert run.result(numbers) == [0, 1, 2, 3, 4, 5]
    assert run.result(squares) == [0, 1, 4, 9, 16, 25]
    assert run.result(total) == 55
    home = tmp_path / run.id / "square"
    runs = [len((home / str(n) / "runs").read_text().splitlines()) for n in range(6)]
    assert runs == [1, 1, 1, 2, 1, 1]  # and each in a folder of its own
