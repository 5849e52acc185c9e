"""What the controller notes about a call that it took reaches the user."""

from __future__ import annotations

import pytest

from holdfast.client.transport import tell_note, warn
from holdfast.errors import HoldfastWarning


def test_a_note_is_a_warning_and_its_absence_is_none() -> None:
    with pytest.warns(HoldfastWarning, match="waits until more hosts join"):
        tell_note({"holdfast-note": "it waits until more hosts join"}, warn)
    heard: list[str] = []
    tell_note({}, heard.append)
    assert heard == []
