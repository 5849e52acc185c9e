"""Container jobs end to end: the whole of Holdfast around a real container."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.agent.containers.plan import read_status
from tests.system.cluster import Cluster
from tests.system.containers.conftest import Registry
from tests.system.containers.engines import Engine
from tests.system.proxy import Proxy
from tests.waits import is_alive, wait_until

pytestmark = pytest.mark.heavy


@pytest.fixture
def registry(tmp_path: Path, engine: Engine) -> Iterator[Registry]:
    made = Registry(tmp_path)
    made.start()
    yield made
    made.stop()


def lane(cluster: Cluster, engine: Engine, name: str, **settings: object) -> str:
    """A queue and a host of this test alone."""
    cluster.set_queue(name, **settings)
    cluster.add_host(name, queues=[name], environment=engine.environment)
    return name


def test_a_wedged_container_is_run_again_to_its_end(
    cluster: Cluster, engine: Engine, image: str
) -> None:
    queue = lane(cluster, engine, "wedged", stall_timeout_seconds=1.5)
    job = cluster.submit("wedge-once", image=image, runtime=engine.kind, queue=queue)
    cluster.until(job, "succeeded", seconds=60)
    first, second = cluster.client.attempts(job)
    assert (first.outcome, first.cause, first.exit_code, first.charged_to) == (
        "requeued",
        "stalled",
        76,
        "watchdog",
    )
    assert (second.outcome, second.number) == ("succeeded", 2)
    wait_until(lambda: cluster.output(job, attempt=2) == b"whole\n", what="its output")


def test_a_missing_tag_is_retried_as_the_policy_says(
    cluster: Cluster, engine: Engine, image: str, registry: Registry
) -> None:
    """Twice in vain; then somebody pushes the tag."""
    queue = lane(cluster, engine, "tagless")
    late = f"127.0.0.1:{registry.port}/late:v1"
    job = cluster.submit(
        "exit",
        "0",
        image=late,
        runtime=engine.kind,
        queue=queue,
        retry={"max_retries": 3, "retry_delay": 1.0},
    )
    cluster.until_attempt(job, 1, "ended", seconds=40)
    engine.push(image, late)
    assert cluster.until(job, "succeeded", seconds=60).attempts > 1
    first = cluster.client.attempts(job)[0]
    assert (first.cause, first.charged_to) == ("image_pull_failure", "retries")
    assert "manifest unknown" in first.reason or "name unknown" in first.reason, first.reason
    engine.forget(late)


def test_why_says_that_it_pulls_and_a_cancel_ends_that(
    cluster: Cluster, engine: Engine, image: str, registry: Registry
) -> None:
    queue = lane(cluster, engine, "pulling")
    engine.push(image, f"127.0.0.1:{registry.port}/held:v1")
    with Proxy(registry.port) as proxy:
        proxy.black_hole = True
        held = f"127.0.0.1:{proxy.port}/held:v1"
        job = cluster.submit("exit", "0", image=held, runtime=engine.kind, queue=queue)
        wait_until(
            lambda: cluster.output(job, "stderr") == f"holdfast: pulling {held}\n".encode(),
            30,
            what="its pull",
        )
        assert cluster.client.job(job).state == "reserved"
        assert f"pulls its image {held}" in cluster.client.why(job).summary
        cluster.client.cancel(job)
        cluster.until(job, "cancelled", seconds=30)


def test_a_shell_s_own_variables_stay_out_of_an_image(
    cluster: Cluster, engine: Engine, image: str
) -> None:
    """`run` brings the shell's PATH along for a plain job; inside an image that would name folders
    of another machine."""
    queue = lane(cluster, engine, "typed")
    done = cluster.cli(
        "run",
        "--queue",
        queue,
        "--image",
        image,
        "--runtime",
        engine.kind,
        "--env",
        "MINE=1",
        "--",
        "show",
    )
    assert done.returncode == 0, done.stderr.decode()
    text = done.stdout.decode()
    assert "env MINE=1\n" in text
    assert f"cwd {cluster.folder}\n" in text, "the folder it was typed in"
    (path,) = [line for line in text.splitlines() if line.startswith("env PATH=")]
    assert path != f"env PATH={os.environ['PATH']}"
    assert "env VIRTUAL_ENV=" not in text


def test_an_image_that_is_nowhere_names_the_host_s_lack(cluster: Cluster, engine: Engine) -> None:
    queue = lane(cluster, engine, "never")
    job = cluster.submit(
        "exit", "0", image="localhost/nowhere:v1", pull="never", runtime=engine.kind, queue=queue
    )
    ended = cluster.until(job, "failed", seconds=30)
    assert ended.cause == "image_pull_failure"
    assert "localhost/nowhere:v1 is not on this host" in ended.reason


def test_a_container_over_its_memory_fails_with_the_evidence(
    cluster: Cluster, engine: Engine, image: str, limits_memory: None
) -> None:
    queue = lane(cluster, engine, "greedy")
    job = cluster.submit(
        "eat", "on cue", image=image, runtime=engine.kind, queue=queue, memory_bytes=48 << 20
    )
    host = cluster.hosts["greedy"]
    folder = host.state / "tasks" / f"{job}.0.1"
    # The engine forgets what a container held: its runner must have looked once before it ends.
    wait_until(lambda: (found := read_status(folder)) and found.max_memory_bytes, 60)
    (name,) = engine.containers(host.mark)
    engine.run("kill", "--signal", "USR1", name)
    ended = cluster.until(job, "failed", seconds=60)
    (attempt,) = cluster.client.attempts(job)
    assert (ended.cause, attempt.cause, attempt.exit_code) == ("oom_killed", "oom_killed", 137)
    assert attempt.rule == "oom-counter", attempt.reason
    (member,) = attempt.members
    assert member.facts is not None
    assert member.facts.oom
    assert 0 < int(member.evidence["max_memory_bytes"] or 0) <= 48 << 20


def test_a_killed_guardian_s_container_runs_again_and_the_next_incarnation_tells(
    cluster: Cluster, engine: Engine, image: str
) -> None:
    queue = lane(cluster, engine, "orphaned")
    job = cluster.submit("wedge-once", image=image, runtime=engine.kind, queue=queue)
    wait_until(lambda: cluster.client.job(job).step == 3, 30, what="its beats")
    host = cluster.hosts["orphaned"]
    pids = host.task_pids(job)
    assert pids
    host.kill_guardian()
    wait_until(lambda: not [pid for pid in pids if is_alive(pid)], 30, what="all of it to be gone")
    host.start()
    cluster.until(job, "succeeded", seconds=60)
    first, second = cluster.client.attempts(job)
    assert (first.outcome, first.cause, first.charged_to) == (
        "requeued",
        "agent_transient",
        "infra",
    )
    assert (second.outcome, second.number) == ("succeeded", 2)
    assert engine.containers(host.mark) == []
