"""The rig of a real Kubernetes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.providers.kubernetes.rig import Kubernetes, KubernetesRig


@pytest.fixture
def rig(tmp_path: Path, kubernetes: Kubernetes) -> KubernetesRig:
    return KubernetesRig(tmp_path, kubernetes)
