"""Caches, mounts and copies in real containers."""

from __future__ import annotations

import pytest

from tests.system.cluster import Cluster
from tests.system.containers.engines import Engine
from tests.waits import wait_until

pytestmark = pytest.mark.heavy


def test_a_copy_sees_the_containers_files_and_caches_and_mounts_are_bound_in(
    cluster: Cluster, engine: Engine, image: str
) -> None:
    data = cluster.folder / "offered"
    data.mkdir()
    (data / "words").write_text("words\n")
    cluster.set_queue("data")
    mounts = {"ds": {"path": str(data)}}
    cluster.add_host("data", queues=["data"], environment=engine.environment, mounts=mounts)
    job = cluster.submit(
        "plain", image=image, runtime=engine.kind, queue="data",
        caches=["hf:/cache"], mounts=["ds:/data"],
    )  # fmt: skip
    wait_until(lambda: cluster.output(job) == b"up\n", 60)
    here = cluster.folder / f"here-{engine.kind}"
    here.mkdir()

    def cp(*words: str) -> bytes:
        done = cluster.cli("cp", *words)
        assert done.returncode == 0, done.stderr
        return done.stdout

    cp(f"{job}:/data/words", str(here / "words"))
    assert (here / "words").read_text() == "words\n"
    (here / "made").write_text("made")
    cp(str(here / "made"), f"{job}:/cache/")
    (kept,) = (cluster.folder / "data" / "caches").glob("default/hf/files/made")
    assert kept.read_text() == "made"
    refused = cluster.cli("cp", str(here / "made"), f"{job}:/data/")
    assert refused.returncode != 0
    assert b"Read-only file system" in refused.stderr
    cp(str(here / "made"), f"{job}:")  # into the folder of its program, the container's own
    assert not (cluster.folder / "data" / "work" / job / "made").exists()
    cp(f"{job}:/made", str(here / "back"))
    assert (here / "back").read_text() == "made"
    outside = cluster.cli("cp", f"{job}:{cluster.folder}/data.join", str(here))
    assert outside.returncode != 0, "it read a file of the host"
    cluster.client.cancel(job, hard=True)
    cluster.until(job, "cancelled", seconds=60)
