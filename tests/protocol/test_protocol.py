"""The spine's promises under chaos: the real store and decisions, simulated hosts, time and
network.

`HOLDFAST_HYPOTHESIS=long` runs many more and longer examples. A failure prints the steps and a
`@reproduce_failure` line; with `HOLDFAST_HYPOTHESIS_SEED=n` a run is repeated exactly.
"""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.protocol.machine import Protocol

LONG = os.environ.get("HOLDFAST_HYPOTHESIS") == "long"
SEED = int(os.environ.get("HOLDFAST_HYPOTHESIS_SEED", "0"))
PROFILE = settings(
    max_examples=5000 if LONG else 75,
    stateful_step_count=60 if LONG else 40,
    deadline=None,
    print_blob=True,
    suppress_health_check=list(HealthCheck),
    database=None,
)


@pytest.mark.slow
@pytest.mark.timeout(7200 if LONG else 1800)
def test_the_spine_keeps_its_promises() -> None:
    run_state_machine_as_test(seed(SEED)(Protocol), settings=PROFILE)
