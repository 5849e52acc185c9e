"""A container's peak memory is its own group's, never that of the whole machine."""

from __future__ import annotations

import os
import subprocess

from holdfast.agent.containers.runner import find_peak_file


def test_a_process_that_has_ended_has_the_peak_of_no_group() -> None:
    """The kernel shows it at the root, whose peak is the machine's."""
    with subprocess.Popen(["true"]) as ended:
        os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
        assert find_peak_file(ended.pid) is None
    assert find_peak_file(ended.pid) is None


def test_a_process_in_a_group_that_is_ours_too_has_no_peak_of_its_own() -> None:
    assert find_peak_file(os.getpid()) is None
