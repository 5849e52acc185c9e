"""What every store must do for `store.events`."""

from __future__ import annotations

import pytest

from holdfast.errors import ValidationError
from tests.store.rig import Rig


async def test_events_page_resume_and_tail(rig: Rig) -> None:
    ids = [await rig.submit() for _ in range(7)]
    everything = await rig.store.events.read_events(None)
    assert [e.job_id for e in everything] == ids
    assert [e.id for e in everything] == sorted(e.id for e in everything)
    assert await rig.events() == everything
    assert await rig.store.events.read_events(None, tail=3) == everything[-3:]
    assert await rig.store.events.read_events(everything[2].id, limit=2) == everything[3:5]
    assert await rig.store.events.read_events(None, job_id=ids[4]) == [everything[4]]
    assert await rig.store.events.read_events(None, kinds=["job.cancelled"]) == []
    assert await rig.store.events.read_events(everything[-1].id) == []
    for rotten in ("what", "1", "zz-1", "-1-2", "f" * 40 + "-1"):
        with pytest.raises(ValidationError):
            await rig.store.events.read_events(rotten)
