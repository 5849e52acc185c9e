"""A controller for machines that are to join one, and a Slurm whose jobs are machines."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.providers.kubernetes.rig import Kubernetes, serve_kubernetes
from tests.providers.kubernetes.rig import find_missing as find_missing_kubernetes
from tests.providers.slurm.rig import serve_slurm
from tests.system.conftest import cluster
from tests.system.slurm.cluster import Cluster as SlurmCluster
from tests.system.slurm.cluster import find_missing

__all__ = ["cluster"]


@pytest.fixture(scope="session")
def slurm_daemons(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    """Only where it was asked for: a machine that has Slurm may be a node of a real cluster."""
    if not os.environ.get("HOLDFAST_TESTS_NEED_SLURM"):
        pytest.skip("starts a Slurm cluster on this machine: `make slurm` does that")
    assert not (missing := find_missing()), f"{', '.join(missing)} not installed"
    with serve_slurm(tmp_path_factory.mktemp("slurm")) as made:
        yield made


@pytest.fixture
def slurm(slurm_daemons: SlurmCluster) -> Iterator[SlurmCluster]:
    """All nodes idle, before and after."""
    yield slurm_daemons
    slurm_daemons.restore()


@pytest.fixture(scope="session")
def kubernetes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kubernetes]:
    """Only where its programs are named: they are not in any package."""
    if not os.environ.get("HOLDFAST_KUBERNETES_BIN"):
        pytest.skip("HOLDFAST_KUBERNETES_BIN names no programs: `make kubernetes` says more")
    assert not (missing := find_missing_kubernetes()), f"{', '.join(missing)} missing"
    with serve_kubernetes(tmp_path_factory.mktemp("kubernetes")) as made:
        yield made
