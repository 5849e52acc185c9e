"""Programs are started in two ways that must not differ (STARTER-1)."""

import os
import shutil

import pytest

from holdfast.process import spawn as spawning
from holdfast.process.starter import SWITCH, find_starter


@pytest.fixture(params=["starter", "fork"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The way of all starts of a test, and of the Pythons that it starts."""
    if request.param == "fork":
        monkeypatch.setattr(spawning, "find_starter", lambda: None)
        monkeypatch.setenv(SWITCH, "off")
    elif find_starter() is None:
        reason = "the package was built without the native starter"
        if os.environ.get("HOLDFAST_TESTS_NEED_STARTER") and shutil.which("cc"):
            pytest.fail(reason)
        pytest.skip(reason)
    return str(request.param)
