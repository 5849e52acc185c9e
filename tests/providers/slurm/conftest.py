"""The rig of a real Slurm."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.providers.slurm.rig import SlurmRig
from tests.system.slurm.cluster import Cluster as SlurmCluster


@pytest.fixture
def rig(tmp_path: Path, slurm: SlurmCluster) -> SlurmRig:
    return SlurmRig(tmp_path, slurm)
