"""The memory store passes the conformance suite."""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite(
    "tests.store.conformance",
    "tests.store.conformance_gangs",
    "tests.store.conformance_members",
    "tests.store.conformance_quotas",
    "tests.store.conformance_reads",
    "tests.store.conformance_retries",
)

from holdfast.store.memory import MemoryStore  # noqa: E402
from tests.store.conformance import *  # noqa: E402, F403
from tests.store.conformance_gangs import *  # noqa: E402, F403
from tests.store.conformance_members import *  # noqa: E402, F403
from tests.store.conformance_quotas import *  # noqa: E402, F403
from tests.store.conformance_reads import *  # noqa: E402, F403
from tests.store.conformance_retries import *  # noqa: E402, F403
from tests.store.rig import START, Rig  # noqa: E402


@pytest.fixture
def rig() -> Rig:
    return Rig(MemoryStore(clock=lambda: START))
