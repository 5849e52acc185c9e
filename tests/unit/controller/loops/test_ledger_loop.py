"""How often the leader closes minutes of the ledger."""

import pytest

from holdfast.controller.loops.ledger.ledger import find_pause


@pytest.mark.parametrize(
    ("took", "pause"), [(0.0, 10.0), (0.4, 10.0), (3.0, 57.0), (12.0, 228.0), (90.0, 600.0)]
)
def test_minutes_are_closed_in_a_twentieth_of_the_time(took: float, pause: float) -> None:
    """A large fleet's minutes come later, more at once, and never more than ten minutes late."""
    assert find_pause(took) == pytest.approx(pause)
