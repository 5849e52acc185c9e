"""A port is chosen after a look, because another program of the host may listen there."""

from __future__ import annotations

import socket
from contextlib import ExitStack

import pytest

from holdfast.supervisor.host.ports import answer_port
from holdfast.wire.bus.messages import FindPort, PortFound


def find_range(length: int) -> range:
    """Find neighbouring ports that are free."""
    for first in range(20_000, 30_000, length):
        with ExitStack() as bound:
            try:
                for port in range(first, first + length):
                    bound.enter_context(socket.create_server(("", port)))
            except OSError:
                continue
            return range(first, first + length)
    raise AssertionError("no free ports are here")


@pytest.mark.parametrize("address", ["127.0.0.1", ""])
def test_only_a_free_port_is_chosen(address: str) -> None:
    ports = find_range(4)
    with ExitStack() as bound:
        for port in ports[1:]:
            bound.enter_context(socket.create_server((address, port)))
        order = FindPort(7, ports[0], ports[-1])
        assert {answer_port(order) for _ in range(10)} == {PortFound(7, ports[0])}
        bound.enter_context(socket.create_server((address, ports[0])))
        assert answer_port(order) == PortFound(7, 0)


def test_starts_choose_different_ports() -> None:
    """Two runs that share a machine may choose before either has bound its port."""
    order = FindPort(7, 29_500, 30_499)
    assert len({answer_port(order).port for _ in range(20)}) > 1
