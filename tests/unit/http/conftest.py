"""The stub controller of the CLI's tests."""

from __future__ import annotations

from tests.unit.cli.conftest import stub

__all__ = ["stub"]
