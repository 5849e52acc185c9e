"""A run of 200 nodes while its controllers and its agents are killed: each effect is there once."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from holdfast.client.flow.build import Workflow
from holdfast.errors import HoldfastError
from tests.system.cluster import Cluster

pytestmark = pytest.mark.slow

NODES, WIDTH = 200, 20
# The file is written whole under its name, so a second attempt has no second effect.
WORK = (
    "echo $HOLDFAST_JOB_ID $HOLDFAST_ATTEMPT >> $HOLDFAST_OUT_DIR/attempts; "
    "echo $HOLDFAST_NODE > $HOLDFAST_OUT_DIR/.part.$$; "
    "mv $HOLDFAST_OUT_DIR/.part.$$ $HOLDFAST_OUT_DIR/effect"
)


def test_each_node_has_its_effect_once_through_kills(cluster: Cluster, tmp_path: Path) -> None:
    for name in ("one", "two"):
        cluster.add_host(name, cpu_slots=6)
    second = cluster.add_controller()
    rng = random.Random(20261122)
    wf = Workflow("chaos", out_dir=str(tmp_path))
    above: list[str] = []
    for number in range(NODES):
        layer = number // WIDTH
        parents = (
            [f"n{(layer - 1) * WIDTH + rng.randrange(WIDTH)}" for _ in range(2)] if layer else []
        )
        wf.job(f"n{number}", shell=WORK, after=sorted(set(parents)), retry={"max_retries": 5})
        above.append(f"n{number}")
    run = wf.submit(cluster.client_of(second))
    controllers, kills = [cluster.controllers[0], second], 0
    until = time.monotonic() + 240
    while time.monotonic() < until:
        time.sleep(rng.uniform(0.4, 1.2))
        if kills < 8:
            kills += 1
            if kills % 2:
                victim = controllers[kills // 2 % 2]
                victim.kill()
                victim.start()
            else:
                cluster.hosts["one" if kills % 4 else "two"].kill_agent()
        try:
            if cluster.client_of(second).workflow(run.id).state.terminal:
                break
        except HoldfastError:
            continue
    view = cluster.client_of(second).wait_workflow(run.id, 120)
    assert view.state == "succeeded", view.reason
    assert view.counts == {"succeeded": NODES}
    home = tmp_path / run.id
    for name in above:
        assert (home / name / "effect").read_text() == f"{name}\n"
        jobs = {line.split()[0] for line in (home / name / "attempts").read_text().splitlines()}
        assert len(jobs) == 1, (
            f"{name} ran as {jobs}"
        )  # a start that was repeated found its own job
    submitted = cluster.client_of(second).jobs(labels={"workflow/run": run.id})
    assert len(list(submitted)) == NODES
