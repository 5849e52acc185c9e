"""The tags of the lines inside a host: an agent and a guardian of two versions meet in an upgrade."""

from __future__ import annotations

from typing import get_args

import msgspec

from holdfast.wire import guardian
from holdfast.wire.bus import local as bus_local


def list_tags(union: object) -> list[object]:
    return [msgspec.inspect.type_info(kind).tag for kind in get_args(union)]  # type: ignore[attr-defined]  # all members are structs


def test_the_guardians_line_keeps_its_tags() -> None:
    assert list_tags(guardian.Request) == ["hello", "alive", "launch", "extend", "stop", "ack"]
    assert list_tags(guardian.Answer) == ["ended", "started", "snapshot", "stopping", "unread"]
    assert msgspec.msgpack.decode(guardian.encode(guardian.AgentAlive())) == {"t": "alive"}


def test_the_wardens_line_keeps_its_tags() -> None:
    assert list_tags(bus_local.WardenRequest) == [1, 2, 3, 4]
    assert list_tags(bus_local.WardenAnswer) == [1, 2, 3, 4, 5]
    assert list_tags(bus_local.FromProcess) == [1, 2]
