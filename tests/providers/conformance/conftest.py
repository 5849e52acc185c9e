"""A rig for each provider that this machine can run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.providers.rig import CommandRig, LocalRig, Rig

KINDS = ("local", "command")


@pytest.fixture
def local_rig(tmp_path: Path) -> Rig:
    return LocalRig(tmp_path)


@pytest.fixture
def command_rig(tmp_path: Path) -> Rig:
    return CommandRig(tmp_path)


@pytest.fixture(params=KINDS)
def rig(request: pytest.FixtureRequest) -> Rig:
    found: Rig = request.getfixturevalue(f"{request.param}_rig")
    return found
