"""Runs of workflows whose nodes are jobs, with real processes and a real database."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from holdfast.client.workflows.build import Workflow, WorkflowRun
from holdfast.errors import Conflict, ValidationError
from tests.system.cluster import Cluster
from tests.waits import wait_until

pytestmark = pytest.mark.slow

WRITE = (
    "import json, os, pathlib; out = pathlib.Path(os.environ['HOLDFAST_OUT_DIR'])\n"
    "with open(out / 'runs.txt', 'a') as file: file.write('once\\n')\n"
    "(out / 'inputs.json').write_text(os.environ.get('HOLDFAST_INPUTS', ''))\n"
)
FAIL_UNTIL = "import os, sys; sys.exit(not os.path.exists(sys.argv[1]))"
WAIT_FOR = "import os, sys, time\nwhile not os.path.exists(sys.argv[1]): time.sleep(0.05)"


def python(code: str, *words: object) -> list[str]:
    return [sys.executable, "-c", code, *map(str, words)]


@pytest.fixture(scope="module")
def flow(shared: Cluster) -> Cluster:
    shared.add_host("flow", cpu_slots=4)
    return shared


def states(run: WorkflowRun) -> dict[str, str]:
    return {node.name: node.state.value for node in run.nodes()}


def test_a_diamond_runs_in_order_each_node_in_its_folder(flow: Cluster, tmp_path: Path) -> None:
    wf = Workflow("diamond", out_dir=str(tmp_path))
    top = wf.job("top", argv=python(WRITE))
    left = wf.job("left", argv=python(WRITE), inputs={"from": top.out["exit_code"]})
    right = wf.job("right", argv=python(WRITE), after=[top])
    bottom = wf.job("bottom", argv=python(WRITE), inputs={"both": [left.out, right.out]})
    run = wf.submit(flow.client)
    view = run.wait(60)
    assert view.state == "succeeded", view.reason
    assert view.counts == {"succeeded": 4}
    home = tmp_path / run.id
    for name in ("top", "left", "right", "bottom"):
        assert (home / name / "runs.txt").read_text() == "once\n"
    assert json.loads((home / "left" / "inputs.json").read_text()) == {"from": 0}
    both = json.loads((home / "bottom" / "inputs.json").read_text())["both"]
    assert [part["exit_code"] for part in both] == [0, 0]
    nodes = {node.name: node for node in run.nodes()}
    began = {name: node.started_at for name, node in nodes.items()}
    assert began["top"] < began["left"] <= began["bottom"]  # type: ignore[operator]  # all have begun
    job = flow.client.job(str(nodes["left"].ref))
    assert job.labels == {"workflow/run": run.id, "workflow/node": "left"}
    assert run.result(bottom)["job"] == nodes["bottom"].ref


def test_a_failed_node_names_itself_and_a_restart_goes_on_from_it(
    flow: Cluster, tmp_path: Path
) -> None:
    marker = tmp_path / "mended"
    wf = Workflow("mended", out_dir=str(tmp_path))
    first = wf.job("first", argv=python(WRITE))
    broken = wf.job("broken", argv=python(FAIL_UNTIL, marker), after=[first])
    wf.job("last", argv=python(WRITE), after=[broken])
    run = wf.submit(flow.client)
    view = run.wait(60)
    assert (view.state, view.failed_node) == ("failed", "broken")
    assert states(run) == {"first": "succeeded", "broken": "failed", "last": "cancelled"}
    assert "broken" in flow.client.why_node(run.id, "last").lines[0].message
    marker.touch()
    run.restart()
    assert run.wait(60).state == "succeeded"
    assert (tmp_path / run.id / "first" / "runs.txt").read_text() == "once\n"
    node = run.node("broken")
    assert len(flow.client.attempts(str(node.ref))) == 2  # the same job, another attempt


def test_a_cancel_ends_what_runs_and_what_waits(flow: Cluster, tmp_path: Path) -> None:
    wf = Workflow("long")
    long = wf.job("long", argv=python(WAIT_FOR, tmp_path / "never"))
    wf.job("after", argv=["true"], after=[long])
    run = wf.submit(flow.client)
    wait_until(lambda: run.node("long").state == "started", 10, what="its job")
    flow.until(str(run.node("long").ref), "running")
    why = flow.client.why_node(run.id, "after")
    assert why.summary == "it waits for 1 node: long (started)"
    run.cancel("enough")
    view = run.wait(60)
    assert (view.state, view.reason) == ("cancelled", "enough")
    assert states(run) == {"long": "cancelled", "after": "cancelled"}


def test_a_question_parks_the_run_until_a_person_answers(flow: Cluster, tmp_path: Path) -> None:
    wf = Workflow("asks", out_dir=str(tmp_path))
    approve = wf.ask("publish it?", ["yes", "no"], timeout="10m")
    wf.job("publish", argv=python(WRITE), inputs={"answer": approve.out})
    run = wf.submit(flow.client)
    wait_until(lambda: run.node("ask").state == "started", 10, what="the question")
    assert "answer" in flow.client.why_node(run.id, "ask").lines[0].hint
    with pytest.raises(ValidationError, match="yes, no"):
        run.answer("ask", "perhaps")
    run.answer(approve, "yes")
    assert run.wait(60).state == "succeeded"
    inputs = tmp_path / run.id / "publish" / "inputs.json"
    assert json.loads(inputs.read_text()) == {"answer": "yes"}
    with pytest.raises(Conflict):
        run.answer(approve, "no")


def test_a_question_that_is_not_answered_fails_its_node(flow: Cluster) -> None:
    wf = Workflow("silence")
    wf.ask("anyone?", timeout=0.5)
    run = wf.submit(flow.client)
    view = run.wait(30)
    assert view.state == "failed"
    assert view.reason == "node ask failed: no answer came within 0.5 s"


def test_a_node_is_skipped_and_what_refers_to_it_gets_null(flow: Cluster, tmp_path: Path) -> None:
    wf = Workflow("skips", out_dir=str(tmp_path))
    first = wf.job("first", argv=["true"])
    skipped = wf.job("skipped", argv=["false"], skip_if=first.out["job"])
    wf.job("last", argv=python(WRITE), inputs={"it": skipped.out})
    run = wf.submit(flow.client)
    assert run.wait(60).state == "succeeded"
    assert states(run)["skipped"] == "skipped"
    inputs = tmp_path / run.id / "last" / "inputs.json"
    assert json.loads(inputs.read_text()) == {"it": None}


def test_a_reference_that_leads_nowhere_fails_its_node_with_a_sentence(flow: Cluster) -> None:
    wf = Workflow("nowhere")
    first = wf.job("first", argv=["true"])
    wf.job("second", argv=["true"], inputs={"it": first.out["frames"][0]})
    run = wf.submit(flow.client)
    view = run.wait(60)
    assert view.reason == (
        "node second failed: the result of node first has no ['frames']: it is an object with the "
        "keys attempts, exit_code, job there"
    )


def test_a_workflow_that_cannot_be_is_refused(flow: Cluster) -> None:
    wf = Workflow("circle")
    wf.job("a", argv=["true"], after=["b"])
    wf.job("b", argv=["true"], after=["a"])
    with pytest.raises(ValidationError, match="in a circle: "):
        wf.submit(flow.client)
    wf = Workflow("lost")
    wf.job("a", argv=["true"], queue="nowhere")
    with pytest.raises(ValidationError, match="node a: there is no queue 'nowhere'"):
        wf.submit(flow.client)


def test_a_killed_controller_goes_on_where_it_was(flow: Cluster, tmp_path: Path) -> None:
    wf = Workflow("killed", out_dir=str(tmp_path))
    gate = tmp_path / "go"
    above = wf.job("gate", argv=python(WAIT_FOR, gate))
    for number in range(6):
        above = wf.job(f"n{number}", argv=python(WRITE), after=[above])
    run = wf.submit(flow.client)
    wait_until(lambda: states(run)["gate"] == "started", 20, what="the gate")
    gate.touch()
    wait_until(lambda: states(run)["n0"] == "succeeded", 30, what="the first node")
    flow.controller.kill()
    flow.controller.start()
    assert run.wait(90).state == "succeeded"
    for number in range(6):
        assert (tmp_path / run.id / f"n{number}" / "runs.txt").read_text() == "once\n"
