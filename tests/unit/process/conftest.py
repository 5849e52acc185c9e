"""Programs are started in three ways that must not differ (STARTER-1)."""

import os
import shutil

import pytest

from holdfast.process import spawn as spawning
from holdfast.process.starter import SWITCH, Launch, find_starter


@pytest.fixture(params=["starter", "apart", "fork"])
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
    elif request.param == "apart":
        monkeypatch.setattr(spawning, "Launch", lambda *given, **_: Launch(*given, apart=True))
    return str(request.param)
