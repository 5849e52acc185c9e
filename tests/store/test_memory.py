"""The memory store passes the conformance suite."""

from __future__ import annotations

import pytest

from holdfast.store.memory.store import MemoryStore

# Each store runs these suites as they are (F403).
from tests.store.conformance.admission import *  # noqa: F403
from tests.store.conformance.arrays import *  # noqa: F403
from tests.store.conformance.call_checkpoints import *  # noqa: F403
from tests.store.conformance.calls import *  # noqa: F403
from tests.store.conformance.dependencies import *  # noqa: F403
from tests.store.conformance.drains import *  # noqa: F403
from tests.store.conformance.events import *  # noqa: F403
from tests.store.conformance.fleet import *  # noqa: F403
from tests.store.conformance.health import *  # noqa: F403
from tests.store.conformance.history import *  # noqa: F403
from tests.store.conformance.hosts import *  # noqa: F403
from tests.store.conformance.jobs import *  # noqa: F403
from tests.store.conformance.leadership import *  # noqa: F403
from tests.store.conformance.leases import *  # noqa: F403
from tests.store.conformance.logs import *  # noqa: F403
from tests.store.conformance.members import *  # noqa: F403
from tests.store.conformance.schedules import *  # noqa: F403
from tests.store.conformance.settings import *  # noqa: F403
from tests.store.conformance.store import *  # noqa: F403
from tests.store.conformance.takes import *  # noqa: F403
from tests.store.conformance.telemetry import *  # noqa: F403
from tests.store.conformance.tokens import *  # noqa: F403
from tests.store.conformance.webhooks import *  # noqa: F403
from tests.store.conformance.workflows import *  # noqa: F403
from tests.store.rig import START, Rig


@pytest.fixture
def rig() -> Rig:
    return Rig(MemoryStore(clock=lambda: START))
