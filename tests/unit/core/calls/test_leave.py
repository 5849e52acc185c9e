"""When an executor gives its slot to another family: LEAVE-1…2."""

from typing import Any

import pytest

from holdfast.core.calls.leave import WantedSlot, list_claims, yields_when_busy, yields_when_idle


def slot(**fields: Any) -> WantedSlot:
    plain: dict[str, Any] = {
        "family": "b",
        "app": "films",
        "queue": "cpu",
        "gpus": 0,
        "waited_seconds": 5.0,
        "alone": True,
    }
    return WantedSlot(**{**plain, **fields})


@pytest.mark.parametrize(
    ("fields", "claims"),
    [
        ({}, True),
        ({"family": "a"}, False),
        ({"gpus": 1}, False),
        ({"app": "elsewhere"}, False),
        ({"queue": "video"}, False),
    ],
)
def test_only_such_a_slot_is_claimed(fields: dict[str, Any], claims: bool) -> None:
    found = list_claims([slot(**fields)], "a", 0, {"mytasks", "films"}, {"cpu"})
    assert yields_when_idle(found) == claims


def test_an_executor_that_is_being_placed_is_no_reason_to_leave() -> None:
    assert not yields_when_idle([slot(waited_seconds=0.5)])


def test_a_busy_executor_leaves_late_and_never_the_last_of_its_family() -> None:
    late = [slot(waited_seconds=31.0)]
    assert yields_when_busy(late, running=2)
    assert not yields_when_busy(late, running=1)
    assert not yields_when_busy([slot()], running=2)
    assert not yields_when_busy([slot(waited_seconds=31.0, alone=False)], running=2)
    assert not yields_when_busy([], running=2)
