"""The clusters of the end-to-end tests, for gangs."""

from __future__ import annotations

from tests.system.conftest import cluster, proxied, shared

__all__ = ["cluster", "proxied", "shared"]
