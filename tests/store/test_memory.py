"""The model passes the conformance suite."""

from __future__ import annotations

import pytest

from tests.model.store import MemoryStore

# Each store runs these suites as they are (F403).
from tests.store.conformance.admission import *  # noqa: F403
from tests.store.conformance.drains import *  # noqa: F403
from tests.store.conformance.events import *  # noqa: F403
from tests.store.conformance.hosts import *  # noqa: F403
from tests.store.conformance.jobs import *  # noqa: F403
from tests.store.conformance.leases import *  # noqa: F403
from tests.store.conformance.members import *  # noqa: F403
from tests.store.conformance.settings import *  # noqa: F403
from tests.store.conformance.takes import *  # noqa: F403
from tests.store.rig import START, Rig


@pytest.fixture
def rig() -> Rig:
    return Rig(MemoryStore(clock=lambda: START))
