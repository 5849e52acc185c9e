"""Sessions in real containers: the command runs inside, and is the guardian's."""

from __future__ import annotations

import pytest

from holdfast.process.groups import read_memory_limit
from tests.system.cluster import Cluster
from tests.system.containers.engines import Engine
from tests.waits import wait_until

pytestmark = pytest.mark.heavy


def test_a_command_runs_inside_of_the_container_and_ends_with_its_session(
    cluster: Cluster, engine: Engine, image: str
) -> None:
    """INSIDE-1: also its control group has the limit of the job."""
    cluster.set_queue("box")
    cluster.add_host("box", queues=["box"], environment=engine.environment)
    job = cluster.submit(
        "plain",
        image=image,
        runtime=engine.kind,
        queue="box",
        env={"COLOUR": "blue"},
        memory_bytes=200 << 20,
    )
    cluster.until(job, "running", seconds=60)
    wait_until(lambda: b"up" in cluster.output(job), 30)
    with cluster.client.open_session(job, ["/inside", "show", "a word"]) as session:
        said = b"".join(data for _, data in session).decode().splitlines()
    assert "arg a word" in said
    assert "env COLOUR=blue" in said
    assert not [line for line in said if line.startswith("env HOLDFAST_BEAT_SOCKET=")]
    lasting = cluster.client.open_session(job, ["/inside", "deaf"])
    assert lasting.read(30) == ("stdout", b"up\n")
    host = cluster.host_of(job)
    inside = host.marked_pids(f"session {lasting.id}")
    assert inside
    if (cluster.folder / "box" / "groups.folder").read_text():
        assert {read_memory_limit(pid) for pid in inside} == {200 << 20}
    lasting.close()
    wait_until(lambda: not host.marked_pids(f"session {lasting.id}"), 20)
    cluster.client.cancel(job, hard=True)
    cluster.until(job, "cancelled")
