"""A controller for machines that are to join one."""

from __future__ import annotations

from tests.system.conftest import cluster

__all__ = ["cluster"]
