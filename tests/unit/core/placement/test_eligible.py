"""Which hosts carry the labels that a job asks for."""

from __future__ import annotations

import pytest

from holdfast.core.placement.eligible import carries

HOST = {"rack": "b12", "zone": "east", "odd": "!"}


@pytest.mark.parametrize(
    ("wanted", "taken"),
    [
        ({}, True),
        ({"rack": "b12", "zone": "east"}, True),
        ({"rack": "b12", "zone": "west"}, False),
        ({"disk": "fast"}, False),
        ({"rack": "!b12"}, False),
        ({"rack": "!b13", "zone": "east"}, True),
        ({"disk": "!slow"}, True),  # it has none at all
        ({"rack": "!"}, True),  # not the empty value
        ({"odd": "!!"}, False),
    ],
)
def test_a_host_has_what_is_wanted_and_nothing_that_is_avoided(
    wanted: dict[str, str], taken: bool
) -> None:
    assert carries(HOST, wanted) is taken
