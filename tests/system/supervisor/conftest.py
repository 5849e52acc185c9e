"""Fixtures of the supervisor's tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from holdfast.supervisor import Context
from tests.system.supervisor.rig import Managers, local_context


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


@pytest.fixture
def patient(managers: Managers) -> Iterator[Context]:
    """One that does not give up peers which never send a heartbeat."""
    made = local_context(heartbeat=30.0)
    yield made
    made.shutdown(1.0)
