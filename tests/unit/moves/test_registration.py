"""Whose name is whose, and which host is meant by a name."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.records import HostRecord
from holdfast.core.states import HostState
from holdfast.errors import Conflict, NotFound
from holdfast.moves.registration import Namesake, check_name, check_takeover, pick_host
from holdfast.wire.agent import HostFacts

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def host(silent: float | None = 0.0, **changes: Any) -> HostRecord:
    fields: dict[str, Any] = {
        "id": "h1", "name": "box", "pool": "", "state": HostState.ACTIVE, "reason": "", "queues": (), "labels": {}, "cpu_slots": 1,
        "memory_bytes": 0, "gpus": (), "address": "", "version": "", "probe": "real", "registered_at": NOW, "incarnation": "i",
        "heartbeat_at": None if silent is None else NOW - timedelta(seconds=silent), **changes,
    }  # fmt: skip
    return HostRecord(**fields)


@pytest.mark.parametrize(
    ("found", "refused"),
    [
        (host(0.0), True),
        (host(14.9), True),
        (host(15.1), False),
        (host(3600.0, running=1), True),
        (host(3600.0, busy_cpu_slots=1), True),
        (host(0.0, state=HostState.TERMINATED), False),
        (host(0.0, state=HostState.DRAINING), True),
        (host(None), False),
    ],
)
def test_a_machine_takes_over_a_silent_or_ended_host_of_its_name_alone(
    found: HostRecord, refused: bool
) -> None:
    """NAME-2."""
    if not refused:
        return check_takeover(found, NOW, 15.0)
    with pytest.raises(Conflict, match="box") as caught:
        check_takeover(found, NOW, 15.0)
    assert caught.value.code == "host_name_taken"
    return None


OTHERS = st.lists(st.builds(Namesake, id=st.text(), name=st.just("box")), max_size=3)


@given(st.sampled_from([None, "box", "other"]), OTHERS)
def test_no_host_takes_the_name_of_another(before: str | None, others: list[Namesake]) -> None:
    """NAME-1: not when it joins, nor by registering anew under its key."""
    facts = HostFacts(name="box")
    if others and before != "box":
        with pytest.raises(Conflict, match="another host called box"):
            check_name(before, facts, None, others)
    else:
        check_name(before, facts, None, others)


@pytest.mark.parametrize(
    ("found", "picked"),
    [
        ([("h1", False)], "h1"),
        ([("h1", False), ("h2", True)], "h1"),
        ([("h2", True), ("h1", True)], "h2"),
        ([("box", False), ("h1", False)], "box"),  # its id
    ],
)
def test_a_name_means_the_one_host_in_use(found: list[tuple[str, bool]], picked: str) -> None:
    assert pick_host("box", found) == picked


def test_a_name_of_two_hosts_means_neither() -> None:
    with pytest.raises(Conflict, match="2 hosts are called box: h1, h2; name one by its id"):
        pick_host("box", [("h1", False), ("h2", False), ("h3", True)])
    with pytest.raises(NotFound):
        pick_host("box", [])
