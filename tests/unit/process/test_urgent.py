"""URGENT-1. Whether it helps is seen in tests/system/agent/test_guardian_shortages.py."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from holdfast.process.urgent import urgent

TELL = "import os; print(os.sched_getscheduler(0), os.getpriority(os.PRIO_PROCESS, 0))"
UNPRIVILEGED = f"""
import os
from holdfast.process.urgent import urgent
os.setuid(65534)
with urgent():
    {TELL}
"""


def is_urgent() -> bool:
    return bool(os.sched_getscheduler(0) & ~os.SCHED_RESET_ON_FORK == os.SCHED_RR)


def goes_first(told: str) -> bool:
    scheduler, nice = map(int, told.split())
    return scheduler != os.SCHED_OTHER or nice < 0


def run(code: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become a real-time thread")
def test_a_thread_goes_first_for_a_while_and_what_it_starts_never_does() -> None:
    before = run(TELL)
    with urgent():
        assert is_urgent()
        assert not goes_first(run(TELL))
        with urgent():  # a sweep within a guardian
            assert is_urgent()
        assert is_urgent()
    assert not is_urgent()
    with pytest.raises(KeyError), urgent():
        raise KeyError
    assert not is_urgent()
    assert run(TELL) == before


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_where_it_is_not_allowed_nothing_changes() -> None:
    assert run(UNPRIVILEGED) == run(TELL)
