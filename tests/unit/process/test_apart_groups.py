"""A process's counters are its own group's, never those of the whole machine."""

from __future__ import annotations

import os
import subprocess

from holdfast.process.groups import find_apart_groups


def test_a_process_that_has_ended_has_no_group() -> None:
    """The kernel shows it at the root, whose counters are the machine's."""
    with subprocess.Popen(["true"]) as ended:
        os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
        assert find_apart_groups([ended.pid]) == {ended.pid: []}
    assert find_apart_groups([ended.pid]) == {ended.pid: []}


def test_a_process_in_a_group_that_is_ours_too_has_none_of_its_own() -> None:
    assert find_apart_groups([os.getpid()]) == {os.getpid(): []}
