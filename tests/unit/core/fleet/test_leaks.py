"""Listings beside the record: nothing is lost, and nothing is ended that is not ours to end."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.fleet.faults import split_notice
from holdfast.core.fleet.instances import Machine, MachineState
from holdfast.core.fleet.leaks import (
    ALL_MISSING_SECONDS,
    ASKED_SECONDS,
    MISSES,
    MISSING_SECONDS,
    Findings,
    read_listing,
)
from holdfast.core.fleet.snapshot import FleetHost
from holdfast.core.states import InstanceState
from tests.unit.core.fleet.fleets import host


def rental(number: int = 0, state: str = "made", **changes: Any) -> FleetHost:
    fields: dict[str, Any] = {
        "ref": f"m{number}",
        "asked_seconds": 999.0,
        "heartbeat_seconds": 999.0,
    }
    if state in ("asked", "intended"):
        fields["ref"] = None
    return host(number, instance=InstanceState(state), **{**fields, **changes})


def machine(number: int = 0, intent: str | None = None, **changes: Any) -> Machine:
    named = f"h{number}" if intent is None else intent
    return Machine(
        **{"ref": f"m{number}", "intent": named, "state": MachineState.RUNNING, **changes}
    )


def read(*rentals: FleetHost, machines: tuple[Machine, ...] = (), **sightings: int) -> Findings:
    return read_listing(rentals, machines, sightings)


def test_a_lost_answer_is_found_by_its_intent() -> None:
    """LEAK-1."""
    found = read(rental(0, "asked"), machines=(machine(0),))
    assert found.adopted == {"h0": "m0"}
    assert not found.reap


def test_one_that_is_wanted_no_more_is_adopted_too_so_that_it_can_be_ended() -> None:
    assert read(rental(0, "ending", ref=None), machines=(machine(0),)).adopted == {"h0": "m0"}


def test_a_place_that_could_not_be_looked_at_says_nothing_of_its_machines() -> None:
    """LEAK-4; and what is known of the others counts as ever."""
    away = machine(9, "", ref="away:", state=MachineState.UNKNOWN, reason="no route")
    long_gone = {"misses": 99, "missing_seconds": 9999.0}
    found = read(
        rental(0, ref="away:h0", **long_gone),
        rental(1, "asked", **long_gone),
        rental(2, "asked"),
        rental(3, ref="box:h3", **long_gone),
        machines=(away, machine(2)),
        **{"away:": 9},
    )
    assert found.unknown == ["no route"]
    assert (found.missing, found.missed, found.reap) == ([], [], {})
    assert (list(found.adopted), list(found.gone)) == (["h2"], ["h3"])


def test_a_second_machine_of_one_intent_is_ended_and_the_first_is_kept() -> None:
    found = read(rental(0), machines=(machine(0), machine(7, "h0")))
    assert list(found.reap) == ["m7"]
    assert list(found.seen) == ["h0"]
    twice = read(rental(0, "asked"), machines=(machine(3, "h0"), machine(1, "h0")))
    assert twice.adopted == {"h0": "m1"}
    assert list(twice.reap) == ["m3"]


def test_an_unknown_machine_is_ended_at_its_second_sighting() -> None:
    assert not read(machines=(machine(9),)).reap
    assert list(read(machines=(machine(9),), m9=1).reap) == ["m9"]
    over = rental(9, "gone")
    assert list(read(over, machines=(machine(9),), m9=1).reap) == ["m9"], "its intent is over"


def test_a_provider_that_says_gone_is_believed_at_once() -> None:
    """LEAK-2."""
    ended = machine(0, state=MachineState.GONE, reason="reclaimed")
    assert read(rental(0, heartbeat_seconds=1.0), machines=(ended,)).gone == {"h0": "reclaimed"}


def test_a_machine_that_will_not_serve_again_is_lost_and_still_paid_for() -> None:
    dead = machine(0, lost="node_failure", reason="the pod exited")
    found = read(rental(0), machines=(dead,))
    assert found.lost == {"h0": "the pod exited"}
    assert not found.gone, "its end is still to be asked for"
    early = machine(0, lost="unschedulable", state=MachineState.STARTING)
    assert not read(rental(0), machines=(early,)).lost, "it may still find a place"


def test_one_that_is_not_listed_is_believed_gone_late_and_never_while_it_calls() -> None:
    others = (rental(1), machine(1))
    long = {"misses": MISSES, "missing_seconds": MISSING_SECONDS + 1}
    assert read(rental(0), others[0], machines=(others[1],)).missing == ["h0"]
    assert list(read(rental(0, **long), others[0], machines=(others[1],)).gone) == ["h0"]
    calls = rental(0, heartbeat_seconds=1.0, **long)
    assert read(calls, others[0], machines=(others[1],)).missing == ["h0"]


def test_a_provider_that_suddenly_lists_nothing_is_doubted_longer() -> None:
    long = {"misses": MISSES, "missing_seconds": MISSING_SECONDS + 1}
    assert not read(rental(0, **long), rental(1, **long)).gone
    longer = {"misses": MISSES, "missing_seconds": ALL_MISSING_SECONDS + 1}
    assert len(read(rental(0, **longer), rental(1, **longer)).gone) == 2


def test_a_question_that_made_nothing_is_given_up_after_patience() -> None:
    assert read(rental(0, "asked", asked_seconds=1.0, misses=9)).missing == ["h0"]
    late = rental(0, "asked", asked_seconds=ASKED_SECONDS + 1, misses=MISSES)
    assert read(late).missed == ["h0"]


def test_an_end_that_was_asked_for_is_confirmed_by_two_listings() -> None:
    assert read(rental(0, "ending")).missing == ["h0"]
    assert list(read(rental(0, "ending", misses=1)).gone) == ["h0"]


STATES = st.sampled_from(list(InstanceState))


@given(
    st.lists(st.tuples(STATES, st.integers(0, 5), st.floats(0, 999)), max_size=6),
    st.lists(
        st.tuples(st.integers(0, 8), st.integers(0, 8), st.sampled_from(list(MachineState))),
        max_size=8,
        unique_by=lambda row: row[0],
    ),
)
def test_a_machine_that_a_living_rental_holds_is_never_ended(
    rows: list[tuple[InstanceState, int, float]], listed: list[tuple[int, int, MachineState]]
) -> None:
    rentals = [
        rental(n, str(state), misses=misses, missing_seconds=missing)
        for n, (state, misses, missing) in enumerate(rows)
    ]
    machines = tuple(machine(ref, f"h{intent}", state=state) for ref, intent, state in listed)
    found = read_listing(rentals, machines, {m.ref: 5 for m in machines})
    for each in rentals:
        if each.state in (InstanceState.MADE, InstanceState.ENDING):
            assert each.ref not in found.reap or not any(
                m.ref == each.ref and m.intent == each.host_id for m in machines
            )
    for each in machines:
        known = any(r.host_id == each.intent and r.state is not InstanceState.GONE for r in rentals)
        alive = each.state not in (MachineState.GONE, MachineState.UNKNOWN)
        if alive and not known:
            assert each.ref in found.reap, "what no intent on record asks for does not live on"
    said = [*found.seen, *found.missing, *found.gone, *found.missed]
    assert len(said) == len(set(said)), "each rental is judged once"


def test_a_machine_that_is_about_to_be_taken_away_is_noticed_and_serves_until_then() -> None:
    """EVICT-2."""
    leaving = machine(0, lost="preempted", reason="spot interruption")
    found = read(rental(0), machines=(leaving,))
    assert (found.notices, found.words) == ({"h0": leaving}, {"h0": "preempted"})
    assert not found.lost
    assert not found.gone
    # The programs of a machine that is ending were told so themselves.
    ending = machine(0, lost="preempted", state=MachineState.ENDING)
    assert not read(rental(0), machines=(ending,)).notices
    stranger = machine(7, "h0", lost="preempted")
    assert not read(rental(0), machines=(machine(0), stranger)).notices


def test_a_providers_notice_leaves_time_for_the_upload() -> None:
    assert [split_notice(seconds) for seconds in (None, 0.0, 30.0, 50.0, 120.0)] == [
        None,
        0.0,
        15.0,
        25.0,
        90.0,
    ]
