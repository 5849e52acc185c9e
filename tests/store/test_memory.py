"""The memory store passes the conformance suite."""

from __future__ import annotations

import pytest

from holdfast.store.memory.store import MemoryStore
from tests.store.conformance import *  # noqa: F403
from tests.store.conformance_gangs import *  # noqa: F403
from tests.store.conformance_members import *  # noqa: F403
from tests.store.conformance_quotas import *  # noqa: F403
from tests.store.conformance_reads import *  # noqa: F403
from tests.store.conformance_retries import *  # noqa: F403
from tests.store.rig import START, Rig


@pytest.fixture
def rig() -> Rig:
    return Rig(MemoryStore(clock=lambda: START))
