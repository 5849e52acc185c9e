"""The spine's promises under chaos, on the store that ships: the same machine as in memory, whose
steps are conversations with a server here, so that a run of it is a walk that takes every rule once.

A walk that fails is named by its number. `make soak` takes many more, and
`HOLDFAST_HYPOTHESIS=long` also the machine's own runs.
"""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import run_state_machine_as_test

from tests.protocol.drives import MakeDrive, drive_postgres
from tests.protocol.machine import Protocol
from tests.store.pg_fixture import PgServer

LONG = os.environ.get("HOLDFAST_HYPOTHESIS") == "long"
# The transcript of a run that fails tells its story; to shrink it would take hours here.
PROFILE = settings(
    max_examples=50,
    stateful_step_count=40,
    deadline=None,
    database=None,
    phases=[Phase.generate],
    print_blob=True,
    suppress_health_check=list(HealthCheck),
    report_multiple_bugs=False,
)


def make_machine(make: MakeDrive) -> type[Protocol]:
    """Return the machine whose worlds have such a store."""
    return type("Protocol", (Protocol,), {"drive": (make,)})


def walk(machine: type[Protocol], number: int, walks: int = 1) -> None:
    """Take every rule once, in an order and with words that follow from the number; a rule that
    needs what is not there is passed over."""
    state = machine.setup_state()

    # The first example of a run is the simplest one, which says little.
    @seed(number)
    @settings(PROFILE, max_examples=walks + 1)
    @given(data=st.data())
    def take(data: st.DataObject) -> None:
        one, (begin,) = machine(), state.initializers
        try:
            for rule in [begin, *data.draw(st.permutations(state.rules))]:
                if all(met(one) for met in rule.preconditions):
                    words = data.draw(st.fixed_dictionaries(rule.arguments_strategies))
                    rule.function(one, **words)
        finally:
            one.teardown()

    take()


@pytest.mark.slow
@pytest.mark.parametrize("number", range(4))
def test_the_shipping_store_keeps_the_spines_promises(number: int, pg_server: PgServer) -> None:
    walk(make_machine(drive_postgres(pg_server)), number)


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("number", range(100, 120))
def test_the_shipping_store_keeps_the_spines_promises_for_long(
    number: int, pg_server: PgServer
) -> None:
    walk(make_machine(drive_postgres(pg_server)), number, walks=10)


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.skipif(not LONG, reason="hours; HOLDFAST_HYPOTHESIS=long runs it")
@pytest.mark.parametrize("number", range(20) if LONG else range(1))
def test_the_shipping_store_survives_the_chaos(number: int, pg_server: PgServer) -> None:
    machine = make_machine(drive_postgres(pg_server))
    run_state_machine_as_test(seed(number)(machine), settings=PROFILE)
