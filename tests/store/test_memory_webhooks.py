"""The memory store keeps webhooks as the conformance suite says."""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite("tests.store.conformance_webhooks")

from tests.store.conformance_webhooks import *  # noqa: E402, F403
from tests.store.test_memory import rig  # noqa: E402

__all__ = ["rig"]
