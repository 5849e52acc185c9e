"""What the record of events lives through."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from holdfast.supervisor.rosters.events import Event, EventLog
from tests.waits import wait_until


def test_a_full_disk_is_told_once_and_costs_no_listener(caplog: pytest.LogCaptureFixture) -> None:
    """EVENT-1."""
    heard: list[str] = []
    with caplog.at_level(logging.WARNING, "holdfast.supervisor"):
        log = EventLog(Path("/dev/full"))
        log.listen(lambda event: heard.append(event.kind))
        for kind in ("a", "b", "c"):
            log.report_event(kind, host="h")
        wait_until(lambda: heard == ["a", "b", "c"], what="the listener to hear all three")
        log.close()
    assert [r.getMessage() for r in caplog.records] == [
        "the file of events cannot be written: [Errno 28] No space left on device"
    ]


def test_what_was_said_before_the_close_is_in_the_file(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "events")
    heard: list[Event] = []
    log.listen(heard.append)
    for number in range(100):
        log.report_event("came", number=number)
    log.close()
    assert len((tmp_path / "events").read_text().splitlines()) == len(heard) == log.count == 100
