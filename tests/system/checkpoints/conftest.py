"""Real S3 buckets, scripts that save, and the blobs that are left."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.system.checkpoints import ceph
from tests.system.cluster import Cluster


@pytest.fixture(scope="session")
def real_s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ceph.Gateway]:
    """Ceph's object gateway, started once."""
    if ceph.missing():
        assert not ceph.wanted(), f"not installed: {ceph.missing()}"
        pytest.skip(
            f"not installed: {', '.join(ceph.missing())} (tests/system/checkpoints/install.sh)"
        )
    gateway = ceph.start_gateway(tmp_path_factory.mktemp("ceph"))
    yield gateway
    gateway.stop()


@pytest.fixture
def ceph_address(real_s3: ceph.Gateway, monkeypatch: pytest.MonkeyPatch) -> str:
    """A bucket of this test's own, and the environment that leads to it."""
    use_s3(monkeypatch, real_s3.environment)
    return f"s3://{real_s3.make_bucket()}/holdfast"


def use_s3(monkeypatch: pytest.MonkeyPatch, variables: Mapping[str, str]) -> None:
    """Set the variables an S3 is found by, and no others of its kind."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)


def write_script(folder: Path, name: str, text: str) -> str:
    """Write a job's script; its path."""
    path = folder / f"{name}.py"
    path.write_text(textwrap.dedent(text))
    return str(path)


def blobs_of(cluster: Cluster, job_id: str = "") -> list[Path]:
    """The blobs there are (of one job); what is being written is none."""
    folder = cluster.folder / "blobs"
    return sorted(
        p
        for p in folder.glob(f"{job_id or '*'}/*")
        if p.is_file() and not p.parent.name.startswith(".")
    )
