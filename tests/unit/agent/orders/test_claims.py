"""Kept places: what is reported of them, how long they are kept, and ports that stay free until
they are used."""

from __future__ import annotations

import socket
import subprocess
import sys

from holdfast.agent.orders.claims import (
    KEPT_SECONDS,
    LOWEST_PORT,
    PORT_TRIES,
    Claims,
    PortChooser,
    read_quiet_ports,
)
from holdfast.core.ids import TaskKey
from holdfast.wire.agent import ClaimOrder, TaskReport

JOB = "j1"


def order(rank: int = 0, epoch: int = 1) -> ClaimOrder:
    return ClaimOrder(key=TaskKey(JOB, rank, epoch), attempt=1)


def ports(claims: Claims, now: float = 0.0) -> list[int]:
    return [report.port for report in claims.reports(now)]


def can_listen(port: int) -> bool:
    """As a task would, in a process of its own and without any option on the socket."""
    words = f"import socket; s = socket.socket(); s.bind(('', {port})); s.listen()"
    return (
        subprocess.run(
            [sys.executable, "-S", "-c", words], capture_output=True, check=False
        ).returncode
        == 0
    )


def test_a_place_is_told_again_until_it_is_dropped() -> None:
    claims = Claims()
    assert claims.keep(order(1), 100.0, 0.0)
    assert not claims.keep(order(1), 100.0, 0.0), "the order repeats, the place is the same"
    expected = [TaskReport(key=order(1).key, state="claimed", port=0)]
    assert claims.reports(1.0) == claims.reports(2.0) == expected
    assert claims.drop(order(1).key)
    assert not claims.drop(order(1).key)
    assert claims.reports(3.0) == []


def test_only_the_first_rank_has_a_port_and_it_stays_the_same() -> None:
    claims = Claims()
    for rank in range(3):
        claims.keep(order(rank), 100.0, 0.0)
    first, *others = ports(claims)
    assert first > 1023
    assert others == [0, 0]
    claims.keep(order(0), 200.0, 1.0)
    assert ports(claims)[0] == first


def test_a_place_ends_with_its_lease_and_a_renewal_extends_it() -> None:
    claims = Claims()
    claims.keep(order(0), 10.0, 0.0)
    claims.keep(order(1), 10.0, 0.0)
    assert claims.extend(order(0).key, 20.0)
    assert not claims.extend(order(5).key, 20.0)
    claims.extend(order(0).key, 5.0)  # an older answer that came late takes nothing back
    assert [report.key.rank for report in claims.reports(15.0)] == [0]
    port = ports(claims)[0]
    assert claims.reports(20.0) == []
    assert can_listen(port), "the port goes with the place"


def test_a_port_is_nobody_elses_until_its_task_starts() -> None:
    claims = Claims()
    claims.keep(order(0), 100.0, 0.0)
    (port,) = ports(claims)
    assert not can_listen(port)
    claims.drop(order(0).key)
    assert can_listen(port)


def test_a_port_that_was_given_is_not_given_again_for_a_while() -> None:
    """PORT-1. Chance always says the same, and only time makes it free."""
    low, high = read_quiet_ports()
    assert low == LOWEST_PORT < high
    free = next(port for port in range(low, high) if can_listen(port))
    chooser = PortChooser(chance=lambda low, high: free)
    assert chooser.find(0.0) == free
    other = chooser.find(1.0)
    assert other not in (0, free)
    assert chooser.find(KEPT_SECONDS - 1) != free
    assert chooser.find(KEPT_SECONDS) == free


def test_ports_are_not_those_of_outgoing_connections() -> None:
    """PORT-2, and a port on which somebody listens is passed over."""
    low, high = read_quiet_ports()
    chooser = PortChooser()
    assert all(low <= chooser.find(0.0) <= high for _ in range(20))
    with socket.create_server(("", 0)) as busy:
        taken = busy.getsockname()[1]
        asked: list[int] = []

        def always_taken(low: int, high: int) -> int:
            asked.append(taken)
            return taken

        assert PortChooser(chance=always_taken).find(0.0) not in (0, taken)
        assert len(asked) == PORT_TRIES
