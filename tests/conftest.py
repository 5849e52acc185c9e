"""What every test package may use: a scratch PostgreSQL (see tests/store/pg_fixture.py), and
examples without a stop-watch."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# The suites that both stores pass are imported by many; their asserts say what they saw only where
# pytest knows of them before.
pytest.register_assert_rewrite("tests.store")

from tests.store.pg_fixture import pg_database, pg_dsn, pg_server  # noqa: E402

__all__ = ["pg_database", "pg_dsn", "pg_server"]

# A property holds or it does not; how long an example takes says more about the machine than about
# the code.
settings.register_profile("holdfast", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("holdfast")


# Most tests start programs of their own. Where byte code may not be written beside the sources,
# each of them would compile all that it imports anew, which is most of a start.
if os.environ.pop("PYTHONDONTWRITEBYTECODE", ""):
    os.environ.setdefault(
        "PYTHONPYCACHEPREFIX", str(Path(__file__).parents[1] / ".pytest_cache" / "byte-code")
    )


@pytest.fixture(scope="session", autouse=True)
def state_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Parts that are started without a folder of their own keep to the tests' own, not to the home
    of who runs them."""
    folder, before = tmp_path_factory.mktemp("state"), os.environ.get("XDG_STATE_HOME")
    os.environ["XDG_STATE_HOME"] = str(folder)
    yield folder
    if before is None:
        del os.environ["XDG_STATE_HOME"]
    else:
        os.environ["XDG_STATE_HOME"] = before
