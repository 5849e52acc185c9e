"""What strains a host, from its kernel's counters of two looks."""

from __future__ import annotations

import pytest

from holdfast.agent.watch.strain import HostStrain, Reader, describe_strain


@pytest.mark.parametrize(
    ("before", "now", "says"),
    [
        ({}, {"throttles": 90.0, "net_errors": 7.0, "segments": 1e6, "resent": 9e5}, ""),
        ({"throttles": 5.0}, {"throttles": 8.0}, "its processor was throttled by heat 3 times"),
        ({"net_errors": 1.0}, {"net_errors": 3.0}, "its network interfaces counted 2 errors"),
        (
            {"segments": 0.0, "resent": 0.0},
            {"segments": 2000.0, "resent": 100.0},
            "5 % of its TCP segments are sent again",
        ),
        ({"segments": 0.0, "resent": 0.0}, {"segments": 100.0, "resent": 50.0}, ""),
        ({}, {"cpu": 40.0}, "processes wait for a processor 40 % of the time"),
        ({}, {"memory": 3.0, "io": 2.0}, ""),
        ({"throttles": 9.0}, {}, ""),
    ],
)
def test_only_what_grew_or_is_high_is_said(
    before: dict[str, float], now: dict[str, float], says: str
) -> None:
    assert describe_strain(before, now) == says


def test_a_look_compares_with_the_look_before() -> None:
    class Counted(Reader):
        count = 0.0

        def read(self) -> dict[str, float]:
            self.count += 2.0
            return {"throttles": self.count}

    strain = HostStrain(Counted())
    strain.look()
    assert strain.sentence == ""
    strain.look()
    assert strain.sentence == "its processor was throttled by heat 2 times"


def test_this_machine_can_be_read() -> None:
    assert Reader().read()["segments"] >= 0.0
