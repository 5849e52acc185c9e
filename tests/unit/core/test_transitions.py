"""The state tables: total in what they refuse, reachable in what they hold."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core import transitions
from holdfast.core.states import (
    AgentTaskEvent,
    AgentTaskState,
    AttemptEvent,
    AttemptState,
    HostEvent,
    HostState,
    InstanceEvent,
    InstanceState,
    JobEvent,
    JobState,
    OutputsEvent,
    OutputsState,
    TaskEvent,
    TaskState,
)
from holdfast.core.transitions import (
    AGENT_TASK,
    ATTEMPT,
    HOST,
    INSTANCE,
    JOB,
    OUTPUTS,
    TASK,
    sources,
    step,
)
from holdfast.errors import InvalidTransition

MACHINES: dict[str, tuple[Any, type[StrEnum], type[StrEnum], StrEnum]] = {
    "job": (JOB, JobState, JobEvent, JobState.WAITING),
    "task": (TASK, TaskState, TaskEvent, TaskState.BLOCKED),
    "attempt": (ATTEMPT, AttemptState, AttemptEvent, AttemptState.RESERVED),
    "host": (HOST, HostState, HostEvent, HostState.SPAWNING),
    "instance": (INSTANCE, InstanceState, InstanceEvent, InstanceState.INTENDED),
    "agent's task": (AGENT_TASK, AgentTaskState, AgentTaskEvent, AgentTaskState.ORDERED),
    "outputs": (OUTPUTS, OutputsState, OutputsEvent, OutputsState.COLLECTING),
}
each = pytest.mark.parametrize("name", MACHINES)


@each
def test_every_pair_either_steps_or_raises_with_what_is_accepted(name: str) -> None:
    table, states, events, _ = MACHINES[name]
    for state in states:
        accepted = {event for event in events if (state, event) in table}
        for event in events:
            if event in accepted:
                assert step(table, state, event) is table[state, event].becomes
            else:
                with pytest.raises(InvalidTransition) as raised:
                    step(table, state, event)
                for word in accepted or {"nothing"}:
                    assert str(word) in raised.value.message


@each
def test_every_edge_is_of_its_enums_and_says_why_and_what_writes_it(name: str) -> None:
    table, states, events, _ = MACHINES[name]
    for (state, event), (target, why, writer) in table.items():
        assert isinstance(state, states)
        assert isinstance(event, events)
        assert isinstance(target, states)
        assert len(why) > 3
        assert writer


@each
def test_every_state_is_reached_and_every_event_is_used(name: str) -> None:
    table, states, events, start = MACHINES[name]
    reached, fresh = {start}, [start]
    while fresh:
        state = fresh.pop()
        for (source, _), (target, *_) in table.items():
            if source is state and target not in reached:
                reached.add(target)
                fresh.append(target)
    assert reached == set(states)
    assert {event for _, event in table} == set(events)


@each
def test_an_end_can_be_reached_from_everywhere(name: str) -> None:
    table, states, _, _ = MACHINES[name]
    ends = {
        "job": {JobState.SUCCEEDED},
        "task": {TaskState.DONE},
        "attempt": {AttemptState.ENDED},
        "host": {HostState.TERMINATED},
        "instance": {InstanceState.GONE},
        "agent's task": {AgentTaskState.DONE},
        "outputs": {OutputsState.COMPLETE},
    }[name]
    good = set(ends)
    while True:
        more = {source for (source, _), (target, *_) in table.items() if target in good} - good
        if not more:
            break
        good |= more
    assert good == set(states)


def test_what_is_final() -> None:
    final = {name: set(m[1]) - {source for source, _ in m[0]} for name, m in MACHINES.items()}
    assert final == {
        "job": {JobState.SUCCEEDED},
        "task": {TaskState.DONE},
        "attempt": {AttemptState.ENDED},
        "host": set(),
        "instance": {InstanceState.GONE},
        "agent's task": {AgentTaskState.DONE},
        "outputs": {OutputsState.COMPLETE},
    }


def test_a_terminal_job_leaves_only_by_a_persons_retry() -> None:
    leaving = {event for (source, event) in JOB if source.terminal}
    assert leaving == {JobEvent.REVIVE, JobEvent.LINE_UP}
    assert {state for state in JobState if state.terminal} == {
        JobState.SUCCEEDED,
        JobState.FAILED,
        JobState.CANCELLED,
    }


def test_a_job_that_may_run_is_stopped_only_by_a_drain() -> None:
    """One way down: from reserved and running nothing but success or an expiry goes
    round the drain."""
    for (source, event), (target, *_) in JOB.items():
        if source in (JobState.RESERVED, JobState.RUNNING) and target not in (
            JobState.RUNNING,
            JobState.SUCCEEDED,
        ):
            assert target is JobState.DRAINING or event is JobEvent.EXPIRE


def test_a_task_gives_up_its_lease_only_when_its_end_is_confirmed() -> None:
    """GANG-3."""
    for (source, event), (target, *_) in TASK.items():
        if source.holds_lease and not target.holds_lease:
            assert event in (TaskEvent.FINISH, TaskEvent.FAIL, TaskEvent.CONFIRM, TaskEvent.RELEASE)
        if target.holds_lease and not source.holds_lease:
            assert event is TaskEvent.RESERVE


def test_only_preflight_or_an_operator_makes_a_host_active() -> None:
    into = {event for (_, event), (target, *_) in HOST.items() if target is HostState.ACTIVE}
    assert into == {HostEvent.PASS, HostEvent.UNDRAIN, HostEvent.RELEASE}


def test_a_rental_is_over_only_by_its_providers_word_or_before_it_was_asked() -> None:
    into = {pair for pair, (target, *_) in INSTANCE.items() if target is InstanceState.GONE}
    by_word = (InstanceEvent.DENY, InstanceEvent.MISS, InstanceEvent.VANISH)
    assert all(e in by_word or s is InstanceState.INTENDED for s, e in into)


@each
def test_sources_are_exactly_the_guards(name: str) -> None:
    table, states, events, _ = MACHINES[name]
    for event in events:
        assert sources(table, event) == {state for state in states if (state, event) in table}


@given(st.sampled_from(sorted(MACHINES)), st.data())
def test_any_walk_stays_in_its_table(name: str, data: st.DataObject) -> None:
    table, states, events, state = MACHINES[name]
    for event in data.draw(st.lists(st.sampled_from(list(events)), max_size=30)):
        if state in sources(table, event):
            state = step(table, state, event)
        else:
            with pytest.raises(InvalidTransition):
                step(table, state, event)
        assert state in states


def test_the_module_holds_these_seven_tables_and_no_other() -> None:
    tables = {n for n, v in vars(transitions).items() if n.isupper() and isinstance(v, dict)}
    assert tables == {"JOB", "TASK", "ATTEMPT", "HOST", "INSTANCE", "AGENT_TASK", "OUTPUTS"}
