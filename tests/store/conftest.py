"""What several tests of the stores stand on."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from holdfast.store.postgres.store import PostgresStore
from tests.store.cuts import CutCalls
from tests.store.rig import Rig


@pytest.fixture
async def rig(pg_emptied: str) -> AsyncIterator[Rig]:
    """The store on PostgreSQL; the model has a fixture of its own. Methods that no test before has
    called are called again afterwards and cut."""
    store = PostgresStore(pg_emptied)
    await store.open()
    calls = CutCalls(store)
    yield Rig(store)
    await calls.cut_each()
    await store.close()


@pytest.fixture
async def rigs(pg_emptied: str) -> AsyncIterator[tuple[Rig, Rig]]:
    """Two controllers on one database."""
    stores = [PostgresStore(pg_emptied, max_connections=4) for _ in range(2)]
    for store in stores:
        await store.open()
    yield Rig(stores[0]), Rig(stores[1])
    for store in stores:
        await store.close()
