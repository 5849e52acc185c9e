"""`holdfast up --pool`: no host of its own, and a local pool that grows with the queue and ends with it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.system.up.up_rig import Rig, wait_for

pytestmark = pytest.mark.slow


@pytest.fixture
def rig(tmp_path: Path, migrated_cluster: Path) -> Iterator[Rig]:
    rig = Rig(tmp_path, "--port", "0", "--pool", cluster=migrated_cluster)
    yield rig
    rig.close()


def read(rig: Rig, *words: str) -> Any:
    return json.loads(rig.run(*words, "--json").stdout)


def test_a_pool_grows_with_the_queue_and_ends_with_up(rig: Rig) -> None:
    rig.start()
    assert read(rig, "hosts") == [], "it has no host before there is work"
    (pool,) = read(rig, "pools")
    assert (pool["name"], pool["spec"].get("min", 0), pool["spec"]["max"]) == ("local", 0, 2)
    done = rig.run("run", "--", "sh", "-c", "echo hello from $HOLDFAST_HOST_NAME")
    assert done.returncode == 0, f"{done.stderr!r} {rig.say()}"
    (host,) = read(rig, "hosts")
    assert done.stdout.decode() == f"hello from {host['name']}\n", "its task knows it by this name"
    assert (host["pool"], host["state"], host["slots"]["cpu"]["total"]) == ("local", "active", 1)
    machines = list((rig.data / "machines").glob("*/*/process"))
    pids = [int(p.read_text().split()[0]) for p in machines]
    assert len(pids) == 1
    rig.run("pools", "scale", "local", "--max", "5")
    assert rig.stop() == 0
    assert "stopping: controller, hosts of local pools, database" in rig.say()
    wait_for("its host is gone", lambda: not any(os.path.exists(f"/proc/{p}") for p in pids))
    rig.start()
    (pool,) = read(rig, "pools")
    assert pool["spec"]["max"] == 5, "a pool that is there already is left as it is"
    assert rig.stop() == 0


def test_the_host_of_an_up_without_a_pool_is_of_no_pool(
    tmp_path: Path, migrated_cluster: Path
) -> None:
    rig = Rig(tmp_path, cluster=migrated_cluster)
    try:
        rig.start()
        (host,) = read(rig, "hosts")
        assert (host["pool"], host["state"]) == ("", "active")
        (tmp_path / "pool.toml").write_text(
            '[pool.local]\nprovider = "local"\npoll = "0.5s"\n[[pool.local.offers]]\nname = "one"\n'
        )
        (pool,) = read(rig, "pools", "create", "-f", "pool.toml")
        assert pool["hosts"] == {}, "the host is no host of a pool that happens to be named local"
        assert rig.run("pools", "run", "--once").returncode == 0
        assert [h["state"] for h in read(rig, "hosts")] == ["active"]
        assert rig.stop() == 0
    finally:
        rig.close()


def test_what_goes_with_no_pool_is_refused_with_it(tmp_path: Path) -> None:
    done = Rig(tmp_path).run("up", "--pool", "--name", "box")
    assert done.returncode == 2
    assert b"--name" in done.stderr
