"""A host that is not needed any more is taken from under a gang: the whole gang goes, saves, and
goes on elsewhere."""

from __future__ import annotations

import json
import re
import sys
import time
from pathlib import Path

import pytest

from tests.system.cluster import Cluster
from tests.system.gangs.journal import check_one_at_a_time, read_journal
from tests.system.gangs.rig import SECONDS
from tests.waits import is_alive, wait_until

pytestmark = pytest.mark.slow

SCRIPT = """
import os, sys, time
from pathlib import Path
sys.path.insert(0, {root!r})
import holdfast
from tests.system.gangs.journal import Journal

journal = Journal(Path(sys.argv[1]))
step = holdfast.checkpoint.step() or 0
print(f"rank {{journal.rank}} of attempt {{journal.attempt}} began at step {{step}}", flush=True)

def save():
    journal.write(f"saved-{{step}}")
    holdfast.checkpoint.save(str(step).encode(), step=step)

holdfast.on_drain(save)
journal.write("start")
while not os.path.exists(sys.argv[2]):
    step += 1
    journal.write(f"step-{{step}}")
    holdfast.beat(step)
    time.sleep(0.02)
journal.write("end")
"""
RANKS = 6


def test_a_gang_leaves_a_host_that_is_scaled_down_and_goes_on_elsewhere(cluster: Cluster) -> None:
    for n in range(3):
        cluster.add_host(f"host{n}", cpu_slots=3)
    script = cluster.folder / "train.py"
    script.write_text(SCRIPT.format(root=str(Path(__file__).resolve().parents[3])))
    journal, go = cluster.folder / "journal", cluster.folder / "go"
    job = cluster.submit(
        sys.executable,
        str(script),
        str(journal),
        str(go),
        tasks=RANKS,
        cpus=1,
        placement="spread",
        grace_seconds=15,
        retry={"max_retries": 0},
    )
    cluster.until(job, "running", seconds=SECONDS)
    wait_until(
        lambda: (
            {n.rank for n in read_journal(journal, job) if n.word == "step-10"} == {*range(RANKS)}
        ),
        SECONDS,
        what="ten steps of every rank",
    )
    where = {task.rank: task.host_name for task in cluster.client.tasks(job)}
    assert set(where.values()) == {"host0", "host1", "host2"}
    pids = {line.pid for line in read_journal(journal, job)}
    asked_at = time.clock_gettime(time.CLOCK_BOOTTIME)

    done = cluster.cli("hosts", "drain", "host1", "--scale-down", "--reason", "the night is quiet")
    assert (done.returncode, done.stdout) == (0, b"host1  draining  the night is quiet\n"), (
        done.stderr
    )
    cluster.until_attempt(job, 2, seconds=SECONDS)

    # Together: every rank was told, saved what it had, and is gone.
    saved = {
        n.rank: int(n.word.removeprefix("saved-"))
        for n in read_journal(journal, job)
        if "saved" in n.word
    }
    assert sorted(saved) == [*range(RANKS)]
    assert not any(is_alive(pid) for pid in pids)
    first, _ = cluster.client.attempts(job)
    assert [m.state for m in first.members] == ["preempted"] * RANKS
    sentence = "host host1 is scaled down: the night is quiet"
    assert (first.cause, first.charged_to, first.outcome, first.trigger_rank) == (
        "scaled_down",
        "nothing",
        "requeued",
        None,
    )
    assert first.exit_code != 79, "it is no operator's stop"
    assert sentence in first.reason

    # Elsewhere, each rank from its own checkpoint.
    wait_until(
        lambda: cluster.output(job, attempt=2).count(b"began at") == RANKS,
        SECONDS,
        what="the ranks to begin",
    )
    began = dict(
        re.findall(
            r"rank (\d+) of attempt 2 began at step (\d+)", cluster.output(job, attempt=2).decode()
        )
    )
    assert {int(rank): int(step) for rank, step in began.items()} == saved
    assert {task.host_name for task in cluster.client.tasks(job)} == {"host0", "host2"}
    found = cluster.client.job(job)
    assert (
        found.retries_charged,
        found.infra_charged,
        found.watchdog_charged,
        found.rank_charges,
    ) == (0, 0, 0, {})

    # It is told where people look.
    (draining,) = [e for e in cluster.client.events(job_id=job) if e.kind == "job.draining"]
    assert (draining.message, draining.data["cause"]) == (sentence, "scaled_down")
    shown = cluster.cli("show", job, "--attempt", "1").stdout.decode()
    assert sentence in " ".join(shown.split()), shown
    (line,) = [
        n
        for n in cluster.controller.lines()
        if n.get("job") == job and "drain started" in n["message"]
    ]
    assert (line["cause"], line["moved"]) == ("scaled_down", RANKS)

    # The host is empty and takes no more work, so its tenant may give it back.
    small = cluster.submit("true", tasks=4, cpus=1)
    wait_until(
        lambda: b"room for 0 now" in cluster.cli("why", small).stdout,
        SECONDS,
        what="why to say what it waits for",
    )
    assert json.loads(cluster.cli("hosts", "--json").stdout)[1]["slots"]["cpu"]["busy"] == 0
    assert cluster.client.job(small).state == "queued"
    assert asked_at < min(line.at for line in read_journal(journal, job) if line.attempt == 2)
    go.touch()
    cluster.until(job, "succeeded", seconds=SECONDS)
    check_one_at_a_time(journal, job)
    cluster.until(small, "succeeded", seconds=SECONDS)
    assert {m.host for m in cluster.client.attempts(small)[0].members} <= {"host0", "host2"}
    assert cluster.client.host("host1").running == 0
