"""A rig for each provider that this machine can run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.providers.kubernetes.rig import Kubernetes, KubernetesRig
from tests.providers.rig import CommandRig, LocalRig, Rig
from tests.providers.runpod.fake import FakeRunpod, RunpodRig, serve
from tests.providers.slurm.rig import SlurmRig
from tests.providers.sshd import MISSING, SshRig, serve_ssh
from tests.system.slurm.cluster import Cluster

KINDS = ("local", "command", "ssh", "runpod", "slurm", "kubernetes")


@pytest.fixture
def local_rig(tmp_path: Path) -> Rig:
    return LocalRig(tmp_path)


@pytest.fixture
def command_rig(tmp_path: Path) -> Rig:
    return CommandRig(tmp_path)


@pytest.fixture
def ssh_rig(tmp_path: Path) -> Iterator[Rig]:
    if MISSING:
        pytest.skip("there is no sshd; `make tools` brings one")
    with serve_ssh(tmp_path / "sshd") as server:
        yield SshRig(tmp_path, server)


@pytest.fixture
def runpod_rig(tmp_path: Path) -> Iterator[Rig]:
    fake = FakeRunpod()
    with serve(fake) as url:
        yield RunpodRig(tmp_path, fake, url)


@pytest.fixture
def slurm_rig(tmp_path: Path, slurm: Cluster) -> Rig:
    return SlurmRig(tmp_path, slurm)


@pytest.fixture
def kubernetes_rig(tmp_path: Path, kubernetes: Kubernetes) -> Rig:
    return KubernetesRig(tmp_path, kubernetes)


@pytest.fixture(params=KINDS)
def rig(request: pytest.FixtureRequest) -> Rig:
    found: Rig = request.getfixturevalue(f"{request.param}_rig")
    return found
