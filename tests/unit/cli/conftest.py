"""The stub controller as a fixture."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.unit.cli.stub import Stub, serve_stub


@pytest.fixture
def stub() -> Iterator[Stub]:
    """A stub controller."""
    with serve_stub() as made:
        yield made
