"""The reason of a host's state comes before what a part of it cannot do."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from holdfast.cli.operate.hosts import hosts_table
from holdfast.wire.api import HostView
from tests.unit.cli.stub import host_record

LACKS = [{"part": "containers", "reason": "podman is not here", "runtimes": ["podman"]}]


def show(**fields: Any) -> str:
    return hosts_table([HostView(**msgspec.structs.asdict(host_record(**fields)))])


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"state": "quarantined", "reason": "GPU 3 fails", "faults": LACKS},
         "GPU 3 fails; no containers: podman is not here"),
        ({"state": "active", "reason": "2 checks passed", "faults": LACKS}, "no containers: podman is not here"),
        ({"state": "active", "reason": "2 checks passed"}, "-"),
        ({"state": "spawning", "reason": "1 host is needed", "provider_says": "PENDING (Resources)"},
         "its provider says: PENDING (Resources)"),
    ],
)  # fmt: skip
def test_the_reason_of_a_state_is_said_first(fields: dict[str, Any], says: str) -> None:
    assert show(**fields).split("\n", 1)[1].rstrip().endswith(f"  {says}")
