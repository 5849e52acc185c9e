"""The order to launch: it is on its way when the script has its group."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from holdfast.supervisor.line.bus import FleetLine
from holdfast.supervisor.line.session_fleet import Rules
from holdfast.supervisor.rosters import process_table
from holdfast.supervisor.rosters.events import EventLog
from holdfast.supervisor.rosters.groups import GroupSpec
from holdfast.supervisor.rosters.hosts import Demand, Host
from holdfast.supervisor.rosters.process_table import ProcessTable


class LateBus:
    """Runs each call in a thread of its own, after a moment."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def call(self, function: Any, *arguments: Any) -> None:
        threading.Timer(self.seconds, function, arguments).start()


class DeafBus:
    """Runs no call."""

    def call(self, function: Any, *arguments: Any) -> None:
        pass


def create(bus: Any) -> tuple[ProcessTable, list[Host]]:
    crew = ProcessTable(FleetLine("run", 1, Rules()), EventLog(None), 1)
    crew.bus = bus
    hosts = [Host(number, Demand()) for number in range(3)]
    crew.create_group(7, hosts, GroupSpec(args=["true"], processes_per_host=2))
    return crew, hosts


def test_a_group_is_ordered_before_the_script_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a script that computes keeps the interpreter, and its processes start late."""
    monkeypatch.setattr(process_table, "_HAND_OVER_SECONDS", 60.0)
    crew, hosts = create(LateBus(0.05))
    assert crew.running == 6
    assert all(7 in host.parts for host in hosts)


def test_a_bus_that_is_busy_holds_the_script_up_for_a_moment_only() -> None:
    began = time.monotonic()
    crew, _ = create(DeafBus())
    assert 7 in crew.groups
    assert time.monotonic() - began < 10, "a script waits for a bus that does not answer"
