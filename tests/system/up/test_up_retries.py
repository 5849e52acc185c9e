"""Retries on a whole `holdfast up`: what a user types, and what a killed controller does to a retry
that waits."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.system.up.up_rig import Rig, wait_for

pytestmark = pytest.mark.slow

FETCH = """#!/bin/sh
n=$(cat tries 2>/dev/null || echo 0); n=$((n + 1)); echo $n > tries
[ $n -le 2 ] && echo "the queue is full" >&2 && exit 1
echo fetched
"""


@pytest.fixture
def rig(tmp_path: Path, migrated_cluster: Path) -> Iterator[Rig]:
    made = Rig(tmp_path, cluster=migrated_cluster)
    (tmp_path / "fetch.sh").write_text(FETCH)
    (tmp_path / "fetch.sh").chmod(0o755)
    try:
        yield made.start()
        made.stop()
    finally:
        made.close()


def ask(rig: Rig, *words: str) -> Any:
    done = rig.run(*words, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def until(
    rig: Rig, job_id: str, what: str, check: Callable[[dict[str, Any]], bool]
) -> dict[str, Any]:
    found: dict[str, Any] = {}
    with rig.client() as client:

        def look() -> bool:
            found.update(msgspec.to_builtins(client.job(job_id)))
            return check(found)

        wait_for(what, look, 90)
    return found


def test_run_follows_a_job_through_its_retries(rig: Rig) -> None:
    done = rig.run("run", "--max-retries", "3", "--retry-delay", "100ms", "--", "./fetch.sh")
    assert (done.returncode, done.stdout) == (0, b"fetched\n"), done.stderr
    assert done.stderr.count(b"the queue is full\n") == 2
    assert b"retry 2 of 3 in 0.1 s" in done.stderr
    (job,) = ask(rig, "jobs", "--min-retries", "2")
    chain = ask(rig, "attempts", job["id"])
    assert [(a["number"], a["parent"], a["retry_count"]) for a in chain] == [
        (1, None, 0),
        (2, 1, 1),
        (3, 2, 2),
    ]
    assert (
        rig.run("logs", job["id"], "--attempt", "1", "--stream", "stderr").stderr
        == b"the queue is full\n"
    )
    spent = rig.run("run", "--max-retries", "1", "--retry-delay", "0s", "--", "false")
    assert spent.returncode == 1
    assert b"its one retry is spent" in spent.stderr


@pytest.mark.parametrize("killed", ["controller", "everything"])
def test_a_retry_that_waits_outlives_whoever_decided_it(rig: Rig, killed: str) -> None:
    """kill -9 between the failure and the dispatch: the retry still happens, once."""
    job_id = (
        rig.run("submit", "--max-retries", "3", "--retry-delay", "6s", "--", "./fetch.sh")
        .stdout.decode()
        .strip()
    )
    waiting = until(rig, job_id, "it backs off", lambda job: job["wait_cause"] == "back_off")
    assert waiting["retry_state"]["attempt"] == 1
    if killed == "controller":
        pid = rig.part("controller")
        os.kill(pid, signal.SIGKILL)
        wait_for("the controller is back", lambda: rig.part("controller") not in (0, pid))
    else:
        rig.kill_everything()
        rig.start()
    done = until(rig, job_id, "it has ended", lambda job: job["state"] in ("succeeded", "failed"))
    assert (done["state"], done["attempts"]) == ("succeeded", 3)
    kinds = Counter(event["kind"] for event in ask(rig, "show", job_id, "--events"))
    assert (kinds["job.retry_scheduled"], kinds["job.retry_dispatched"], kinds["job.reserved"]) == (
        2,
        2,
        3,
    )
    second = ask(rig, "attempts", job_id)[1]
    assert second["reserved_at"] >= waiting["retry_at"], "and not before its time"


def test_the_kill_switch_outlives_a_restart(rig: Rig) -> None:
    assert ask(rig, "retries", "hold", "--reason", "the registry is down")["enabled"] is False
    job_id = (
        rig.run("submit", "--max-retries", "3", "--retry-delay", "0s", "--", "./fetch.sh")
        .stdout.decode()
        .strip()
    )
    until(rig, job_id, "it is held", lambda job: job["wait_cause"] == "retries_held")
    pid = rig.part("controller")
    os.kill(pid, signal.SIGKILL)
    wait_for("the controller is back", lambda: rig.part("controller") not in (0, pid))
    why = ask(rig, "why", job_id)
    assert "the cluster holds all retries: the registry is down" in why["summary"]
    assert ask(rig, "show", job_id)["attempts"] == 1
    wait_for("the release is taken", lambda: rig.run("retries", "release").returncode == 0)
    assert (
        until(rig, job_id, "it succeeded", lambda job: job["state"] == "succeeded")["attempts"] == 3
    )


def test_over_a_hard_quota_is_exit_code_seven(rig: Rig) -> None:
    assert rig.run("projects", "set", "vision", "quota=hard", "quota_jobs=1").returncode == 0
    assert rig.run("submit", "--project", "vision", "--", "sleep", "60").returncode == 0
    refused = rig.run("run", "--project", "vision", "--", "true")
    assert refused.returncode == 7
    assert b"quota_jobs" in refused.stderr
