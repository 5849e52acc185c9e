"""The PostgreSQL store keeps webhooks as the conformance suite says."""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite("tests.store.conformance_webhooks")

from tests.store.conformance_webhooks import *  # noqa: E402, F403
from tests.store.test_postgres import dsn, rig, template  # noqa: E402

__all__ = ["dsn", "rig", "template"]
