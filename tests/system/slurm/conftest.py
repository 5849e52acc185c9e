"""One Slurm for all tests of a session, handed to each test clean."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system.slurm.cluster import PATIENCE, Cluster, find_missing
from tests.waits import Patience


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Only where it was asked for: a machine that has Slurm may be a node of a real cluster."""
    if not os.environ.get("HOLDFAST_TESTS_NEED_SLURM"):
        pytest.skip("starts a Slurm cluster on this machine: `make slurm` does that")
    missing = find_missing()
    assert not missing, (
        f"{', '.join(missing)} not installed (`make tools` does it, as root and with apt-get)"
    )
    made = Cluster(tmp_path_factory.mktemp("slurm"))
    try:
        made.start()
        yield made
    finally:
        made.end()


@pytest.fixture
def slurm(cluster: Cluster) -> Iterator[Cluster]:
    """All nodes idle, and nothing left behind by the test."""
    yield cluster
    cluster.restore()
    patience = Patience(PATIENCE)
    while left := cluster.describe_processes():
        assert not patience.over, f"left behind: {left}"
        time.sleep(0.1)


@pytest.fixture
def examples(tmp_path: Path) -> Path:
    """The shipped scripts in a folder that a user has copied them to."""
    folder = tmp_path / "slurm"
    folder.mkdir()
    for script in (Path(__file__).parents[3] / "examples" / "slurm").iterdir():
        if script.is_file():
            (folder / script.name).write_bytes(script.read_bytes())
    return folder
