"""What runtimes print, read: progress, errors, what must not be shown; and the locks of pulls."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from holdfast.agent.containers.images import (
    ImageLock,
    PullOutcome,
    clean_words,
    describe_progress,
    is_engine_away,
    is_missing,
    qualify,
    read_last_words,
    try_take_slot,
)
from holdfast.agent.containers.plan import RunnerStatus
from holdfast.agent.containers.tasks import add_container_facts
from holdfast.agent.tasks.task import AgentTask
from holdfast.core.facts import TaskFacts
from holdfast.core.ids import TaskKey
from holdfast.wire.agent import LaunchOrder
from holdfast.wire.guardian import TaskEnded

REFUSED = """Trying to pull 127.0.0.1:5999/x:y...
time="2026-11-21T09:50:20Z" level=warning msg="Failed, retrying in 1s ... (1/3). Error: initializing source docker://127.0.0.1:5999/x:y"
Error: initializing source docker://127.0.0.1:5999/x:y: pinging container registry 127.0.0.1:5999: connect: connection refused
"""
DENIED = "Error response from daemon: pull access denied for x, repository does not exist or may require 'docker login'"
PODMAN = """Trying to pull quay.io/a/b:c...
Getting image source signatures
Copying blob sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef
Copying blob sha256:1123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef
"""
DOCKER = """v1: Pulling from library/x
0123456789ab: Pulling fs layer
ba9876543210: Already exists
cccccccccccc: Pulling fs layer
0123456789ab: Download complete
0123456789ab: Pull complete
"""


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ""),
        ("Trying to pull x...\n", ""),
        (PODMAN, "2 layers, copying"),
        (
            PODMAN + "Copying config sha256:ff\nWriting manifest to image destination\n",
            "2 layers, all of them copied",
        ),
        (DOCKER, "layer 2 of 3 done"),
        (REFUSED, "try 2"),
    ],
)
def test_progress(text: str, words: str) -> None:
    assert describe_progress(text) == words


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (REFUSED, "initializing source docker://127.0.0.1:5999/x:y: pinging container registry 127.0.0.1:5999: connect: connection refused"),
        (f"Using default tag: latest\n{DENIED}\n", DENIED),
        ("something\nhappened\n", "something; happened"),
        ("", "it said nothing"),
    ],
)  # fmt: skip
def test_last_words(text: str, words: str) -> None:
    assert read_last_words(text) == words


def test_words_hold_no_credentials_and_have_an_end() -> None:
    text = clean_words(
        "https://me:pass@reg.test/v2 Bearer abcdefgh.ijkl x token=abcdefghijk\n\x1b[1m" + "y" * 5000
    )
    assert "pass" not in text
    assert "abcdefgh" not in text
    assert "\x1b" not in text
    assert "reg.test/v2" in text
    assert len(text) < 1600


def test_an_image_that_is_not_here_is_told_from_a_runtime_that_fails() -> None:
    assert is_missing("Error: inspecting object: x: image not known")
    assert is_missing("[]\nError response from daemon: No such image: x:latest")
    assert not is_missing(
        "Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon "
        "running?"
    )
    assert not is_missing("Error: mount /var/lib/containers/storage/overlay: permission denied")


def test_an_engine_that_is_away_is_told_from_one_that_refuses() -> None:
    assert is_engine_away(
        "Cannot connect to the Docker daemon at unix:///d.sock. Is the docker daemon running?"
    )
    assert is_engine_away(
        "failed to connect to the docker API at unix:///d.sock; check if the path is correct and "
        "if the daemon is running"
    )
    assert not is_engine_away(
        "permission denied while trying to connect to the Docker daemon socket at unix:///d.sock"
    )
    assert not is_engine_away(
        "Error response from daemon: dial tcp 127.0.0.1:1: connect: connection refused"
    )


def test_a_short_name_is_docker_hub_s_where_podman_knows_no_other() -> None:
    said = 'Error: short-name "x/y:z" did not resolve to an alias and no unqualified-search registries are defined'
    assert qualify("x/y:z", said) == "docker.io/x/y:z"
    assert qualify("y", said) == "docker.io/library/y"
    assert qualify("y", "Error: manifest unknown") is None


def test_a_lock_is_one_s_at_a_time_and_hands_the_outcome_on(tmp_path: Path) -> None:
    """PULL-1."""
    first, second, other = (ImageLock(str(tmp_path), name) for name in ("a", "a", "b"))
    assert first.try_take()
    assert other.try_take()
    assert not second.try_take()
    assert second.read_outcome(0.0) is None
    first.note_outcome(PullOutcome(at=5.0, error="a long error, " * 50))
    first.note_outcome(PullOutcome(at=6.0, error="gone"))
    first.close()
    assert second.try_take()
    assert second.read_outcome(since=5.5) == PullOutcome(at=6.0, error="gone")
    assert second.read_outcome(since=6.5) is None, "an old outcome says nothing of now"
    second.close()
    other.close()


def test_so_many_pulls_at_once_and_no_more(tmp_path: Path) -> None:
    taken = [try_take_slot(str(tmp_path), 2) for _ in range(3)]
    assert taken[2] is None
    assert taken[0] is not None
    assert taken[1] is not None
    os.close(taken[0])
    again = try_take_slot(str(tmp_path), 2)
    assert again is not None
    os.close(again)
    os.close(taken[1])


KEY = TaskKey("j", 0, 1)


def facts_of(
    status: RunnerStatus, ended: TaskEnded, *, unkillable: bool = False, **fields: object
) -> TaskFacts:
    order = LaunchOrder(
        key=KEY,
        attempt=1,
        name="j",
        queue="q",
        project="p",
        argv=[],
        image="i",
        secrets={"K": "hush-hush"},
        memory_bytes=64,
    )
    task = AgentTask(KEY, Path("/nowhere"), order, 0.0)
    plain = TaskFacts(
        exit_code=ended.exit_code, signal=ended.signal, stopped=ended.stopped, **fields
    )  # type: ignore[arg-type]  # as the test says
    return add_container_facts(plain, ended, status, task, unkillable=unkillable)


def test_the_runner_s_own_end_is_no_task_s() -> None:
    ran = RunnerStatus(
        phase="ended",
        exit_code=137,
        oom=True,
        runtime_seconds=3.0,
        max_memory_bytes=60,
        removed=True,
    )
    found = facts_of(ran, TaskEnded(key=KEY, exit_code=137))
    assert (
        found.exit_code,
        found.oom,
        found.runtime_seconds,
        found.max_memory_bytes,
        found.memory_limit_bytes,
    ) == (137, True, 3.0, 60, 64)
    found = facts_of(
        RunnerStatus(phase="ended", pull_error="hush-hush is no password"),
        TaskEnded(key=KEY, exit_code=125),
    )
    assert (found.exit_code, found.pull_error) == (None, "*** is no password")
    found = facts_of(
        RunnerStatus(phase="ended", lost="the engine of hush-hush went", removed=True),
        TaskEnded(key=KEY, exit_code=125),
    )
    assert (found.exit_code, found.lost, found.runtime_error) == (
        None,
        "the engine of *** went",
        None,
    )
    found = facts_of(
        RunnerStatus(phase="ended", stopped=True), TaskEnded(key=KEY, exit_code=143, stopped=True)
    )
    assert (found.stopped, found.pull_error, found.runtime_error) == (True, None, None)
    found = facts_of(RunnerStatus(phase="running", pid=4), TaskEnded(key=KEY, exit_code=1))
    assert (found.exit_code, found.runtime_error) == (
        None,
        "the container's runner ended by itself with exit code 1",
    )
    assert facts_of(
        RunnerStatus(phase="running"), TaskEnded(key=KEY, signal=9, stopped=True), unkillable=True
    ).unkillable
