"""IDLE-1: what a host manager tells its agent when it has nothing to run, over a real socket."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.settings.resolve import Effective
from holdfast.core.settings.watch import WatchSettings, watch_settings
from holdfast.core.watchdogs.sections import IDLE_SECTION
from holdfast.supervisor.host.idle_word import IdleWord
from holdfast.wire.beat import decode_beat


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[socket.socket]:
    """The agent's end."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as made:
        made.bind(str(tmp_path / "beat.sock"))
        made.setblocking(False)
        yield made


def said(agent: socket.socket) -> list[str | None]:
    found = []
    while True:
        try:
            found.append(decode_beat(agent.recv(4096)).section)
        except BlockingIOError:
            return found


def environment(agent: socket.socket) -> dict[str, str]:
    return {"HOLDFAST_TASK": "j1:1:3", "HOLDFAST_BEAT_SOCKET": str(agent.getsockname())}


def test_it_is_said_once_when_the_last_process_has_ended(agent: socket.socket) -> None:
    word = IdleWord(environment(agent))
    for busy in (False, False, True, True):
        word.look(busy=busy)
    assert said(agent) == []  # what never ran did not stop
    for busy in (False, False, True, False):
        word.look(busy=busy)
    assert said(agent) == [IDLE_SECTION, IDLE_SECTION]
    word.close()


def test_it_waits_for_an_agent_that_is_away(agent: socket.socket, tmp_path: Path) -> None:
    away = tmp_path / "beat.sock"
    word = IdleWord(environment(agent))
    away.rename(tmp_path / "elsewhere")
    for busy in (True, False, False):
        word.look(busy=busy)
    (tmp_path / "elsewhere").rename(away)
    word.look(busy=False)
    word.look(busy=False)
    assert said(agent) == [IDLE_SECTION]
    away.rename(tmp_path / "elsewhere")
    for busy in (True, False, True):
        word.look(busy=busy)
    (tmp_path / "elsewhere").rename(away)
    word.look(busy=True)
    assert said(agent) == []  # it is busy again: the word would be wrong now
    word.close()


def test_elsewhere_nothing_is_said() -> None:
    word = IdleWord({})
    word.look(busy=True)
    word.look(busy=False)
    word.close()


@given(st.sampled_from(["auto", "on", "off"]), st.booleans())
def test_idle_devices_of_a_supervised_job_are_its_scripts_business(
    word: str, supervised: bool
) -> None:
    """A spare host waits for as long as it takes; only where a queue says "on" are its devices
    watched."""
    usual = WatchSettings()
    every = {
        name: Effective(name, getattr(usual, name), "default")
        for name in WatchSettings.__struct_fields__
    }
    every["health_watch"] = Effective("health_watch", word, "queue")
    found = watch_settings(every, supervised=supervised)
    assert found.health_watch == ("off" if supervised and word == "auto" else word)
    assert found.stall_watch
