"""Fixtures and settings for all tests: a scratch PostgreSQL (tests/store/pg_fixture.py), and
hypothesis without a deadline, with `HOLDFAST_HYPOTHESIS=long` for a long time."""

from __future__ import annotations

import gc
import importlib.util
import os
import signal
import sys
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# pytest must know of the suites that both stores pass before they are imported, or their asserts
# do not say what they saw.
pytest.register_assert_rewrite("tests.store")

from tests.memory import memory_home, memory_path  # noqa: E402  after the registration
from tests.order import order_items  # noqa: E402  after the registration
from tests.store.pg_fixture import (  # noqa: E402  after the registration
    make_store,
    migrated_cluster,
    pg_database,
    pg_dsn,
    pg_emptied,
    pg_migrated,
    pg_server,
    pg_template,
    told_rig,
)

__all__ = [
    "make_store",
    "memory_home",
    "memory_path",
    "migrated_cluster",
    "pg_database",
    "pg_dsn",
    "pg_emptied",
    "pg_migrated",
    "pg_server",
    "pg_template",
    "told_rig",
]

# A property holds or it does not; how long an example takes says more about the machine than about
# the code.
settings.register_profile(
    "holdfast", deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("long", settings.get_profile("holdfast"), max_examples=1000)
settings.load_profile("long" if os.environ.get("HOLDFAST_HYPOTHESIS") == "long" else "holdfast")


# Most tests start programs of their own. Where byte code may not be written beside the sources,
# each of them would compile all that it imports anew, which is most of a start; and pytest would
# rewrite the asserts of every test file anew in every worker, which is most of a collection.
if os.environ.pop("PYTHONDONTWRITEBYTECODE", ""):
    os.environ.setdefault(
        "PYTHONPYCACHEPREFIX", str(Path(__file__).parents[1] / ".pytest_cache" / "byte-code")
    )
    sys.pycache_prefix, sys.dont_write_bytecode = os.environ["PYTHONPYCACHEPREFIX"], False


# A shell in the background, `nohup` and many CI runners let their children ignore these signals,
# and a program that a test starts would inherit that. A handler is inherited by no program.
for number in (signal.SIGINT, signal.SIGHUP):
    if signal.getsignal(number) == signal.SIG_IGN:
        signal.signal(number, lambda *_: None)

# The HTTP library of many tests asks for this one at each call, and where it is not installed each
# time looks through every folder there is.
if importlib.util.find_spec("sniffio") is None:
    sys.modules["sniffio"] = None  # type: ignore[assignment]  # an import of it fails then


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Look for no garbage while tests are collected, nor later among what was: it lives to the
    end."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Order tests where several workers share them."""
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    if workers > 1:
        items[:] = order_items(items, workers)


@pytest.fixture(scope="session", autouse=True)
def state_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Give parts that are started without a folder the tests' own, instead of the home of the user
    that runs them."""
    folder, before = tmp_path_factory.mktemp("state"), os.environ.get("XDG_STATE_HOME")
    os.environ["XDG_STATE_HOME"] = str(folder)
    yield folder
    if before is None:
        del os.environ["XDG_STATE_HOME"]
    else:
        os.environ["XDG_STATE_HOME"] = before
