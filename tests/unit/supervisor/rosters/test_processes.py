"""Handles of processes: what the bus says before, between and after what the script asks."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import HoldfastError
from holdfast.supervisor import HostLost, ProcessEnded
from holdfast.supervisor.rosters.groups import GroupSpec, Process, ProcessGroup
from holdfast.supervisor.rosters.hosts import Demand, Host

SAID: dict[str, Callable[[Process], None]] = {
    "started": lambda process: process.start(41),
    "started again": lambda process: process.start(42),
    "ended": lambda process: process.set_returncode(3),
    "ended again": lambda process: process.set_returncode(4),
    "lost": lambda process: process.fail(HostLost("n1", "silent")),
}
ASKED: dict[str, Callable[[Process], Any]] = {
    "pid": Process.pid,
    "returncode": Process.returncode,
    "message": Process.recv,
}


def make_process() -> Process:
    host = Host(1, Demand())
    spec = GroupSpec(args=["true"], processes_per_host=1)
    return ProcessGroup(None, 1, [host], spec)[0]  # type: ignore[arg-type]  # nothing is ordered


def describe(process: Process) -> dict[str, Any]:
    """What a caller finds that asks now."""
    found: dict[str, Any] = {"over": process.over, "exit_code": process.exit_code}
    for name, ask in ASKED.items():
        future = ask(process)
        error = future.exception() if future.done() else None
        found[name] = str(error) if error else future.result() if future.done() else "pending"
    return found


@given(said=st.permutations(list(SAID)), asked_at=st.integers(0, len(SAID)))
def test_it_does_not_matter_when_the_script_asks(said: list[str], asked_at: int) -> None:
    """A handle that was asked early, and one that is asked only now, say the same."""
    early, late = make_process(), make_process()
    futures: list[Any] = []
    for at, word in enumerate(said):
        if at == asked_at:
            futures = [ask(early) for ask in ASKED.values()]
        SAID[word](early)
        SAID[word](late)
    assert describe(early) == describe(late)
    assert all(future.done() for future in futures), "a future that was asked early is left behind"
    assert early.pid() is early.pid()
    assert early.returncode() is early.returncode()


def test_the_first_end_stands_and_a_pid_outlives_the_loss() -> None:
    process = make_process()
    process.start(41)
    process.set_returncode(3)
    process.fail(HostLost("n1", "silent"))
    assert (process.pid().result(0), process.returncode().result(0)) == (41, 3)
    with pytest.raises(ProcessEnded, match=r"p0 on host .* ended with 3"):
        process.recv().result(0)


def test_threads_that_ask_at_once_get_one_future() -> None:
    process = make_process()
    gate = threading.Barrier(8)
    found: list[Any] = []

    def ask() -> None:
        gate.wait()
        found.append((process.pid(), process.returncode(), process.inbox))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    error: HoldfastError = HostLost("n1", "silent")
    process.fail(error)
    for thread in threads:
        thread.join()
    assert len(set(found)) == 1
    assert found[0][0].exception(0) is error
    assert found[0][1].exception(0) is error
