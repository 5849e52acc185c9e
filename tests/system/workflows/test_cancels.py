"""A cancel of a run while a call is deaf, a model loads, jobs run and a question is parked."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from holdfast.client.workflows.build import Workflow
from tests.system.cluster import Cluster
from tests.waits import wait_until

pytestmark = pytest.mark.slow

APP = """
import time
from pathlib import Path

import holdfast

HERE = Path(__file__).parent

def stay(name: str) -> None:
    (HERE / name).touch()
    while (HERE / name).exists():
        time.sleep(0.02)

@holdfast.task(retry={"max_retries": 5, "retry_delay": 0})
def be_deaf(n: int) -> int:
    with (HERE / "began").open("a") as began:
        began.write(f"{n}\\n")
    if n == 20:
        stay("deaf")
    return n

@holdfast.task
def pass_by(n: int) -> int:
    return n

@holdfast.model("slow-to-load", time_limit=600)
def slow() -> str:
    stay("loading")
    return "loaded"

@holdfast.task(model=slow)
def use() -> None:
    (HERE / "used").touch()

@holdfast.task
def listen() -> None:
    ctx = holdfast.context()
    (HERE / "listening").touch()
    while not ctx.cancelled:
        time.sleep(0.02)
    (HERE / "heard").write_text(ctx.cancel_reason)
    raise InterruptedError
"""
DEAF_JOB = (
    "import pathlib, signal, sys, time\n"
    "signal.signal(signal.SIGTERM, lambda *_: None)\n"
    "pathlib.Path(sys.argv[1]).touch()\n"
    "time.sleep(3600)\n"
)


@pytest.mark.parametrize("how", ["soft", "hard", "soft_then_hard"])
def test_a_cancel_ends_whatever_runs_and_nothing_begins_after_it(
    shared: Cluster, tmp_path: Path, how: str
) -> None:
    """FLOW-5, CALLSET-2."""
    hard, app = how != "soft", f"cancel_{how}"
    (tmp_path / f"{app}.py").write_text(APP)
    queue = f"q-{app}".replace("_", "-")
    narrow = f"n-{app}".replace("_", "-")
    client = shared.client
    shared.set_queue(queue, grace_seconds=600)  # what hears does so in time on any machine
    shared.set_queue(narrow, executors_max=1, grace_seconds=600 if hard else 1)
    shared.add_host(app, queues=[queue, narrow], cpu_slots=5, apps=[app], app_path=str(tmp_path))
    wf = Workflow("ended")
    deaf = wf.map(f"{app}:be_deaf", list(range(60)), item_name="n", options={"queue": narrow})
    for name in ("use", "listen"):
        wf.add(
            f"{app}:{name}",
            options={"queue": queue, "model": "slow-to-load" if name == "use" else None},
        )
    job = wf.job("job", argv=[sys.executable, "-c", DEAF_JOB, str(tmp_path / "job")], queue=narrow)
    asked = wf.ask("go on?", timeout="off")
    wf.add(f"{app}:use", name="after", after=[deaf, job, asked], options={"queue": queue})
    run = wf.submit(client)
    for name in ("deaf", "loading", "listening", "job"):
        wait_until((tmp_path / name).exists, 60, what=name)
    wait_until(lambda: run.node("ask").state == "started", 30, what="the question")
    # Calls of another set wait behind the deaf one, in the hand of its executor.
    others = Workflow("others")
    passing = others.map(
        f"{app}:pass_by", list(range(30)), item_name="n", options={"queue": narrow}
    )
    other = others.submit(client)

    began = time.monotonic()
    assert run.cancel("wrong input", hard=how == "hard").state == "cancelling"
    if how == "soft_then_hard":
        wait_until((tmp_path / "heard").exists, 30, what="the soft one was heard")
        run.cancel("wrong input", hard=True)
    wait_until(lambda: run.node("be_deaf").state == "cancelled", 60, what="the deaf call's end")
    wait_until(lambda: run.node("job").state == "cancelled", 60, what="the deaf job's end")
    wait_until(
        lambda: run.node("listen").state == "cancelled", 60, what="the end of the one that hears"
    )
    if not hard:
        assert (tmp_path / "heard").read_text().endswith(": wrong input")
        assert run.refresh().state == "cancelling"  # its model loads
        (tmp_path / "loading").unlink()
    view = run.wait(60)
    assert time.monotonic() - began < 300
    assert (view.state, view.reason) == ("cancelled", "wrong input")
    assert {node.name: node.state.value for node in run.nodes()} == dict.fromkeys(
        ("be_deaf", "use", "listen", "job", "ask", "after"), "cancelled"
    )
    assert not (tmp_path / "used").exists()
    assert client.job(str(run.node("job").ref)).state == "cancelled"
    for name in ("be_deaf", "use", "listen"):
        assert client.call_set(str(run.node(name).ref)).state == "ended"
    ended = client.call_results(str(run.node("be_deaf").ref)).results
    calls = (tmp_path / "began").read_text().splitlines()
    assert len(calls) == len(set(calls)) < 60  # each once
    assert {end.reason for end in ended if end.state == 3} == {
        f"run {run.id} of workflow ended: wrong input"
    }

    assert other.wait(60).state == "succeeded"
    ends = client.call_results(str(other.node(passing).ref)).results
    assert {(end.state, end.attempts) for end in ends} == {(1, 1)}, "they are not charged"
