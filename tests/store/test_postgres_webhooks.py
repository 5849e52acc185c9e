"""The PostgreSQL store keeps webhooks as the conformance suite says."""

from __future__ import annotations

from tests.store.conformance_webhooks import *  # noqa: F403
from tests.store.test_postgres import dsn, rig, template

__all__ = ["dsn", "rig", "template"]
