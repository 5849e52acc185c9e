"""The times of a schedule as its route makes them."""

from __future__ import annotations

from datetime import datetime, timedelta

from tests.unit.controller.conftest import Served


async def test_the_first_time_is_a_whole_interval_after_the_instant_it_counts_from(
    served: Served,
) -> None:
    """TIME-1: else the time of the row's own instant comes some milliseconds later, and is a second one."""
    put = {"job": {"argv": ["true"]}, "every_seconds": 10, "catch_up": "all"}
    made = (await served.call("PUT", "/v1/schedules/poll", json=put)).json()
    next_at, anchor = (datetime.fromisoformat(made[name]) for name in ("next_at", "anchor"))
    assert next_at - anchor == timedelta(seconds=10)
