"""A job whose place another one takes: it is told, saves, goes at once, and goes on where it was
(EVICT-1, UNSAVED-1, UNSAVED-2), over real processes and every death in between."""

from __future__ import annotations

import sys
from itertools import pairwise
from pathlib import Path

import pytest

from tests.system.checkpoints.conftest import write_script
from tests.system.cluster import Cluster
from tests.waits import wait_until

WORKS = """
    import os, sys, time
    import holdfast

    folder = sys.argv[1]
    step, attempt = holdfast.checkpoint.step() or 0, os.environ["HOLDFAST_ATTEMPT"]

    def save():
        told = holdfast.stopping()
        print("told", told.cause, 40 < told.seconds_left <= 60, flush=True)
        while os.path.exists(folder + "/wait"):
            time.sleep(0.01)
        holdfast.checkpoint.save(b"state", step=step)

    holdfast.on_drain(save)
    with open(folder + "/steps", "a", buffering=1) as steps:
        while step < 30 or not os.path.exists(folder + "/end"):
            time.sleep(0.02)
            step += 1
            steps.write(f"{attempt} {step}\\n")
            holdfast.beat(step)
    """


def read_steps(folder: Path) -> dict[int, list[int]]:
    """Attempt → the steps that it did."""
    found: dict[int, list[int]] = {}
    for line in (folder / "steps").read_text().splitlines():
        attempt, step = line.split()
        found.setdefault(int(attempt), []).append(int(step))
    return found


def begin(cluster: Cluster, name: str, script: str, **fields: object) -> tuple[str, str, Path]:
    """A host of one slot and a preemptible job that works there; the job, its queue and folder."""
    queue = cluster.set_queue(name, preempt_min_run_seconds=0)
    cluster.add_host(name, queues=[name], cpu_slots=1)
    folder = cluster.folder / f"{name}-work"
    folder.mkdir()
    path = write_script(cluster.folder, name, script)
    fields = {"queue": queue, "priority": 10, "preemptible": True, **fields}
    job = cluster.submit(sys.executable, path, str(folder), **fields)
    return job, queue, folder


def work_on(cluster: Cluster, folder: Path, attempt: int) -> None:
    """Wait until an attempt has done some steps."""
    wait_until(
        lambda: (folder / "steps").exists() and len(read_steps(folder).get(attempt, ())) > 5,
        what=f"attempt {attempt} to do some steps",
    )


def test_a_job_that_is_told_in_time_loses_at_most_one_step_to_each_preemption(
    shared: Cluster,
) -> None:
    """And it goes as soon as it has saved, long before its notice of a minute is over."""
    job, queue, folder = begin(shared, "told", WORKS)
    for attempt in (1, 2):
        work_on(shared, folder, attempt)
        winner = shared.submit("true", queue=queue, priority=90)
        shared.until(winner, "succeeded", seconds=30)
        work_on(shared, folder, attempt + 1)
    (folder / "end").touch()
    shared.until(job, "succeeded", seconds=30)
    done = read_steps(folder)
    assert sorted(done) == [1, 2, 3]
    for before, after in pairwise(done.values()):
        assert before == list(range(before[0], before[-1] + 1))
        assert before[-1] <= after[0] <= before[-1] + 1, "a step is done again, or none"
    attempts = shared.client.attempts(job)
    assert [(a.cause, a.charged_to) for a in attempts[:2]] == [("preempted", "nothing")] * 2
    assert shared.output(job, attempt=1) == b"told preempted True\n"
    assert "it loses least: " in attempts[0].reason
    assert "since its attempt began" in attempts[0].reason
    (begun, _) = [e for e in shared.client.events(job_id=job) if e.kind == "job.draining"]
    assert begun.data["notice_seconds"] == 60.0


def test_a_notice_outlives_the_deaths_of_agent_and_controller(cluster: Cluster) -> None:
    """EVICT-1: it is on record, the guardian keeps the time, and what was saved is handed on."""
    job, queue, folder = begin(cluster, "deaths", WORKS)
    work_on(cluster, folder, 1)
    (folder / "wait").touch()
    winner = cluster.submit("true", queue=queue, priority=90)
    wait_until(lambda: cluster.output(job, attempt=1), what="the job to be told")
    cluster.hosts["deaths"].kill_agent()
    cluster.controller.kill()
    cluster.controller.start()
    assert cluster.client.job(job).drain_notice_seconds == 60.0
    cluster.wait_host("deaths")
    (folder / "wait").unlink()
    cluster.until(winner, "succeeded", seconds=60)
    (folder / "end").touch()
    cluster.until(job, "succeeded", seconds=60)
    done = read_steps(folder)
    assert done[1][-1] <= done[2][0] <= done[1][-1] + 1
    (first, _) = cluster.client.attempts(job)
    assert (first.cause, first.charged_to) == ("preempted", "nothing")


@pytest.mark.parametrize("ends", ["itself", "never"])
def test_a_job_that_ignores_the_word_is_killed_after_its_notice_and_no_sooner(
    shared: Cluster, ends: str
) -> None:
    """The preemptor waits for as long as the notice at most, and no longer than the job takes. An
    exit with 0 is no success then, because programs that save and go end so."""
    script = """
        import os, signal, sys, time
        signal.signal(signal.SIGTERM, lambda *_: open(sys.argv[1] + "/told", "w").close())
        open(sys.argv[1] + "/steps", "w").close()
        while not os.path.exists(sys.argv[1] + "/end"):
            time.sleep(0.02)
        """
    notice = 60.0 if ends == "itself" else 1.5
    job, queue, folder = begin(shared, f"uses-{ends}", script, notice=notice, grace=0.2)
    wait_until(lambda: (folder / "steps").exists(), what="the job to begin")
    winner = shared.submit("true", queue=queue, priority=90)
    drain = shared.until(job, "draining").drain_since
    assert drain is not None
    if ends == "itself":
        wait_until(lambda: (folder / "told").exists(), what="the word to arrive")
        (folder / "end").touch()
    began = shared.until(winner, "succeeded", seconds=30).started_at
    assert began is not None
    waited = (began - drain).total_seconds()
    assert waited < 50 if ends == "itself" else waited >= 1.5
    (folder / "end").touch()
    assert shared.until(job, "succeeded", seconds=30).attempts == 2


def test_a_job_that_does_not_go_on_from_what_it_saves_is_found_out(shared: Cluster) -> None:
    """UNSAVED-2: its host sees that its second attempt begins below the step that the first saved."""
    script = """
        import os, sys, time
        import holdfast
        for step in range(100, 130) if os.environ["HOLDFAST_ATTEMPT"] == "1" else range(5, 9):
            holdfast.beat(step)
        if os.environ["HOLDFAST_ATTEMPT"] == "1":
            holdfast.checkpoint.save(b"never read", step=step)
            sys.exit(3)
        while not os.path.exists(sys.argv[1] + "/end"):
            time.sleep(0.02)
        """
    retry = {"max_retries": 1, "retry_delay": 0.0}
    job, _, folder = begin(shared, "liar", script, retry=retry)

    def find() -> list[str]:
        events = shared.client.events(job_id=job)
        return [event.message for event in events if event.kind == "task.checkpoint_unused"]

    wait_until(find, what="the event about the checkpoint that is not used")
    (message,) = find()
    assert "rank 0 began at step 5, below the step 129 of the checkpoint" in message
    (folder / "end").touch()
    shared.until(job, "succeeded", seconds=30)
