"""Fixtures of the supervisor's tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from holdfast.supervisor import Context
from tests.supervisor.rig import Managers, local_context


@pytest.fixture
def managers() -> Iterator[Managers]:
    made = Managers()
    yield made
    made.close()


@pytest.fixture
def ctx(managers: Managers) -> Iterator[Context]:
    """Closed before the managers are, so that they say goodbye."""
    made = local_context()
    yield made
    made.shutdown()
