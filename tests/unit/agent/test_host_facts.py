"""What a host tells of itself."""

from __future__ import annotations

import socket

import pytest

from holdfast.agent import host_facts
from holdfast.agent.host_facts import find_address


def test_the_address_is_of_the_family_by_which_the_controller_is_reached(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert find_address("http://127.0.0.1:7878") == "127.0.0.1"
    if socket.has_dualstack_ipv6():
        assert find_address("http://[::1]:7878") == "::1"
    assert not caplog.records

    def no_name(*_: object, **__: object) -> object:
        raise OSError("no such name")

    monkeypatch.setattr(host_facts.socket, "getaddrinfo", no_name)
    assert find_address("https://nowhere.invalid") == "127.0.0.1"
    assert "--advertise" in caplog.text
