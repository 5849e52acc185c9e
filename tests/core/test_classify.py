"""classify: first match wins, and the order is the point."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.causes import CAUSE_OF_TRIP, CHARGED_TO, EXIT_OF, Cause, Watchdog, WatchdogExit
from holdfast.core.classify import RULES, classify, kept_exit_code, signal_name
from holdfast.core.facts import TaskFacts, Trip

TRIP = Trip(watchdog=Watchdog.STALL, exit_code=76, reason="no beat for 122 s")
XID = "kernel: NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus."
CUDA_OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB"


@pytest.mark.parametrize(
    ("facts", "rule", "cause", "code"),
    [
        (TaskFacts(exit_code=3), "exit-code", Cause.NONZERO_EXIT, 3),
        (TaskFacts(signal=9), "signal", Cause.NONZERO_EXIT, 137),
        (TaskFacts(start_error="no such program"), "start-error", Cause.NONZERO_EXIT, 127),
        (TaskFacts(signal=9, oom=True), "oom-counter", Cause.OOM_KILLED, 137),
        (TaskFacts(exit_code=1, log_tail=CUDA_OOM), "cuda-oom-text", Cause.OOM_KILLED, 1),
        (TaskFacts(signal=6, log_tail=CUDA_OOM), "cuda-oom-text", Cause.OOM_KILLED, 134),
        (TaskFacts(exit_code=1, log_tail=XID), "gpu-fault-text", Cause.GPU_FAULT, 1),
        (TaskFacts(exit_code=1, log_tail=XID + CUDA_OOM), "gpu-fault-text", Cause.GPU_FAULT, 1),
        (TaskFacts(trip=TRIP, signal=9), "watchdog-stall", Cause.STALLED, 76),
        (TaskFacts(trip=TRIP, exit_code=0), "watchdog-stall", Cause.STALLED, 76),
        (TaskFacts(trip=TRIP, signal=9, oom=True, log_tail=XID), "watchdog-stall", Cause.STALLED, 76),
        (TaskFacts(trip=TRIP, unkillable=True), "unkillable", Cause.GPU_FAULT, 76),
        (TaskFacts(unkillable=True, oom=True), "unkillable", Cause.GPU_FAULT, None),
        (TaskFacts(lost="new_incarnation"), "host-lost", Cause.AGENT_TRANSIENT, None),
        (TaskFacts(), "none", Cause.UNKNOWN, None),
    ],
)
def test_rules(facts: TaskFacts, rule: str, cause: Cause, code: int | None) -> None:
    found = classify(facts)
    assert (found.rule, found.cause, found.exit_code) == (rule, cause, code)
    assert found.message


def test_a_host_that_shuts_down_is_not_the_tasks_failure() -> None:
    facts = TaskFacts(signal=15, stopped=True, stop_cause=Cause.HOST_DRAINED)
    found = classify(facts)
    assert (found.rule, found.cause) == ("stopped", Cause.HOST_DRAINED)


def test_a_stop_keeps_the_cause_it_was_given() -> None:
    facts = TaskFacts(signal=15, stopped=True, stop_cause=Cause.SCALED_DOWN)
    assert classify(facts).cause is Cause.SCALED_DOWN


def test_a_log_that_mentions_memory_in_a_good_run_is_no_failure() -> None:
    facts = TaskFacts(exit_code=0, log_tail=CUDA_OOM + " (caught, retrying with a smaller batch)")
    assert facts.succeeded
    assert classify(facts).cause is not Cause.OOM_KILLED


def test_a_log_that_mentions_an_xid_in_a_good_run_is_no_failure() -> None:
    assert classify(TaskFacts(exit_code=0, log_tail=XID)).cause is not Cause.GPU_FAULT


def test_the_message_is_the_trips_own_sentence() -> None:
    assert classify(TaskFacts(trip=TRIP)).message == "no beat for 122 s"


@pytest.mark.parametrize("watchdog", list(Watchdog))
def test_each_watchdog_has_its_code_and_cause(watchdog: Watchdog) -> None:
    trip = Trip(watchdog=watchdog, exit_code=EXIT_OF[watchdog], reason="r")
    found = classify(TaskFacts(trip=trip, signal=9))
    assert found.cause is CAUSE_OF_TRIP[watchdog]
    assert found.exit_code == EXIT_OF[watchdog]


def test_the_exit_codes_of_the_design() -> None:
    assert {w: int(EXIT_OF[w]) for w in Watchdog} == {
        Watchdog.TIME_LIMIT: 75, Watchdog.STALL: 76, Watchdog.LOST_LEASE: 77,
        Watchdog.GPU_HEALTH: 78, Watchdog.OPERATOR_STOP: 79,
    }  # fmt: skip
    assert len(set(WatchdogExit)) == 5


def test_every_cause_is_charged_to_something() -> None:
    assert set(CHARGED_TO) == set(Cause)


def test_rule_names_are_unique() -> None:
    assert len({rule.name for rule in RULES}) == len(RULES)


@pytest.mark.parametrize(("number", "name"), [(9, "SIGKILL"), (15, "SIGTERM"), (11, "SIGSEGV"), (40, "SIG40")])
def test_signal_names(number: int, name: str) -> None:
    assert signal_name(number) == name


FACTS = st.builds(
    TaskFacts,
    exit_code=st.none() | st.integers(0, 255),
    signal=st.none() | st.integers(1, 64),
    oom=st.booleans(),
    trip=st.none() | st.just(TRIP),
    stopped=st.booleans(),
    stop_cause=st.none() | st.sampled_from(list(Cause)),
    unkillable=st.booleans(),
    start_error=st.none() | st.text(max_size=10),
    lost=st.none() | st.text(max_size=10),
    log_tail=st.sampled_from(["", XID, CUDA_OOM]),
)


@given(FACTS)
def test_any_facts_get_one_cause_one_sentence_and_one_code(facts: TaskFacts) -> None:
    found = classify(facts)
    assert found.cause in Cause
    assert found.message
    assert found.exit_code == kept_exit_code(facts)
    if facts.unkillable:
        assert found.cause is Cause.GPU_FAULT
    elif facts.trip is not None:
        assert found.cause is Cause.STALLED
    if facts.succeeded:
        assert not facts.unkillable
        assert facts.trip is None
