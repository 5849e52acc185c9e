"""`holdfast up` in memory: each of its tests has a database of its own."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def tmp_path(memory_path: Path) -> Path:
    """The folder that `up` is started in."""
    return memory_path
