"""What `why` says of pools."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from holdfast.controller.why.circumstances import Circumstances
from holdfast.controller.why.pools import explain_pools
from holdfast.core.fleet.instances import Offer
from holdfast.core.fleet.pools import PoolSpec
from holdfast.core.fleet.records import PoolRecord
from tests.unit.cli.stub import job_record

NOW = datetime(2026, 5, 4, 12, tzinfo=UTC)
SPEC = PoolSpec(name="a100", provider="local", offers=(Offer(name="one"),))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({}, []),
        ({"blocked": "pool a100 at its max"}, ["waiting for capacity: pool a100 at its max"]),
        (
            {"paused_at": NOW, "paused_reason": "a bill", "blocked": "an older word"},
            ["waiting for capacity: pool a100 is paused: a bill"],
        ),
        ({"paused_at": NOW, "deleted_at": NOW}, ["pool a100 is being deleted"]),
    ],
)
def test_what_holds_a_pool_back(changes: dict[str, Any], says: list[str]) -> None:
    pool = PoolRecord(name="a100", spec=SPEC, created_at=NOW, **changes)
    job = job_record(state="queued")
    found = Circumstances(job=job, queue=None, tasks=(), hosts=(), place=1, now=NOW, pools=(pool,))
    assert [line.message for line in explain_pools(found)] == says
