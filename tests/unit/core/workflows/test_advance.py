"""Random graphs with failures, beside a reference that knows nothing of counters."""

import copy
from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core.workflows import advance
from holdfast.core.workflows.advance import Advance, NodeEnd, NodeRow, RunRow, find_rows
from holdfast.core.workflows.values import NodeKind, NodeState, RunState
from holdfast.errors import Conflict

NOW = datetime(2026, 3, 1, tzinfo=UTC)
ENDS = (NodeState.SUCCEEDED, NodeState.SKIPPED, NodeState.FAILED, NodeState.CANCELLED)
PASSES = (NodeState.SUCCEEDED, NodeState.SKIPPED)


@st.composite
def graphs(draw: st.DrawFn) -> list[list[int]]:
    count = draw(st.integers(1, 12))
    return [
        sorted(draw(st.sets(st.integers(0, number - 1), max_size=3))) if number else []
        for number in range(count)
    ]


class World:
    """A run with all its rows, to which events are given with only the rows they need."""

    def __init__(self, parents: list[list[int]], on_failure: str) -> None:
        self.parents = parents
        self.children = {
            n: [c for c, above in enumerate(parents) if n in above] for n in range(len(parents))
        }
        self.run = RunRow(
            id="run0", name="w", project="default", state=RunState.RUNNING,
            on_failure=on_failure, nodes=len(parents), unended=len(parents),  # type: ignore[arg-type]  # drawn from its words
        )  # fmt: skip
        self.nodes = {
            n: NodeRow(number=n, name=f"n{n}", kind=NodeKind.JOB, state=NodeState.WAITING,
                       waiting_on=len(above))
            for n, above in enumerate(parents)
        }  # fmt: skip
        self.starts: list[int] = []
        self.stops: set[int] = set()
        self.events: list[str] = []
        a = self.load(self.nodes)
        advance.begin_run(a)
        self.take(a)

    def load(self, numbers: object) -> Advance:
        rows = [copy.copy(self.nodes[n]) for n in numbers]  # type: ignore[attr-defined]  # of any iterable
        return Advance(copy.copy(self.run), rows, self.children, NOW)

    def take(self, a: Advance) -> None:
        self.run = a.run
        self.nodes |= a.changed
        self.starts += a.ready
        self.stops |= {stop.number for stop in a.stops}
        self.events += [event.kind for event in a.events]
        left = sum(not n.state.terminal for n in self.nodes.values())
        assert self.run.unended == left  # FLOW-4
        assert self.run.state.terminal == (left == 0)
        for number, node in self.nodes.items():
            if node.state is NodeState.WAITING:
                passed = [self.nodes[p].state.passes for p in self.parents[number]]
                assert node.waiting_on == passed.count(False) > 0  # FLOW-3

    def needed(self, number: int, end: NodeEnd) -> list[int]:
        """The rows that a store would load."""
        need = find_rows(self.run, [end])
        found = {number}
        if need == "unended":
            found |= {n for n, node in self.nodes.items() if not node.state.terminal}
        elif need == "descendants":
            todo = [number]
            while todo:
                todo = [c for n in todo for c in self.children[n] if c not in found]
                found.update(todo)
        return sorted(found | set(self.children[number]))

    def end(self, number: int, state: NodeState) -> None:
        end = NodeEnd(state=state, reason="so it was")
        a = self.load(self.needed(number, end))
        took = advance.end_node(a, number, end)
        assert took == (not self.nodes[number].state.terminal)
        self.take(a)

    def start(self, number: int) -> None:
        a = self.load([number])
        advance.start_node(a, number)
        self.take(a)

    def live(self) -> list[int]:
        """Nodes whose work may end."""
        return sorted(
            n for n, node in self.nodes.items()
            if node.state in (NodeState.READY, NodeState.STARTED)
        )  # fmt: skip


def play(world: World, outcomes: list[NodeState], data: st.DataObject) -> None:
    while world.live():
        number = data.draw(st.sampled_from(world.live()))
        if world.nodes[number].state is NodeState.READY and data.draw(st.booleans()):
            world.start(number)
            continue
        wanted = outcomes[number]
        if number in world.stops and data.draw(st.booleans()):
            wanted = NodeState.CANCELLED
        if wanted is NodeState.SKIPPED and world.nodes[number].state is NodeState.STARTED:
            wanted = NodeState.SUCCEEDED
        world.end(number, wanted)
        if data.draw(st.booleans()):
            world.end(number, NodeState.FAILED)  # a repeat changes nothing (FLOW-1)


def reference(parents: list[list[int]], outcomes: list[NodeState]) -> list[bool]:
    """Which nodes pass where nothing is cancelled but descendants."""
    passes: list[bool] = []
    for number, above in enumerate(parents):
        passes.append(all(passes[p] for p in above) and outcomes[number] in PASSES)
    return passes


@settings(max_examples=100, deadline=None)
@given(graphs(), st.data(), st.sampled_from(["cancel_queued", "cancel_all", "continue"]))
def test_a_run_ends_as_the_reference_says(
    parents: list[list[int]], data: st.DataObject, on_failure: str
) -> None:
    outcomes = [data.draw(st.sampled_from(ENDS)) for _ in parents]
    world = World(parents, on_failure)
    play(world, outcomes, data)
    expected = reference(parents, outcomes)
    got = [world.nodes[n].state.passes for n in range(len(parents))]
    assert world.run.state is (RunState.SUCCEEDED if all(expected) else RunState.FAILED)
    assert (world.run.failed_node is None) == all(expected)
    if on_failure == "continue":
        assert got == expected
    assert all(want or not have for have, want in zip(got, expected, strict=True))
    assert len(world.starts) == len(set(world.starts))  # no node starts twice
    assert all(world.nodes[p].state.passes for n in world.starts for p in parents[n])
    if on_failure != "cancel_all" and not all(expected):
        failed = [n for n in world.nodes if world.nodes[n].state is NodeState.FAILED]
        assert all(outcomes[n] is NodeState.FAILED for n in failed)

    # Restarted with nothing wrong any more, it uses what is there and finishes the rest.
    first = list(world.starts)
    if all(expected):
        with pytest.raises(Conflict, match="every node"):
            advance.restart_run(world.load(world.nodes), "again")
        return
    passed = {n for n, node in world.nodes.items() if node.state.passes}
    a = world.load(world.nodes)
    advance.restart_run(a, "again")
    world.stops.clear()
    world.take(a)
    play(world, [NodeState.SUCCEEDED] * len(parents), data)
    assert world.run.state is RunState.SUCCEEDED
    assert not passed & set(world.starts[len(first) :])


@settings(max_examples=50, deadline=None)
@given(graphs(), st.data())
def test_a_cancel_ends_all_and_starts_nothing_more(
    parents: list[list[int]], data: st.DataObject
) -> None:
    world = World(parents, "cancel_queued")
    for _ in range(data.draw(st.integers(0, 8))):
        live = world.live()
        if not live:
            break
        world.end(data.draw(st.sampled_from(live)), NodeState.SUCCEEDED)
    over = world.run.state.terminal
    for number in world.live():
        if data.draw(st.booleans()):
            world.start(number)
    begun = set(world.live())
    a = world.load(world.nodes)
    assert advance.cancel_run(a, "enough") is not over
    before = len(world.starts)
    world.take(a)
    assert world.stops == (set() if over else begun)
    assert world.run.state.terminal is (over or not begun)  # FLOW-5: it waits for what may begin
    for number in world.live():
        world.end(number, NodeState.CANCELLED)
    assert world.run.state is (RunState.SUCCEEDED if over else RunState.CANCELLED)
    assert len(world.starts) == before


@settings(max_examples=50, deadline=None)
@given(graphs(), st.data())
def test_a_restart_from_a_node_runs_what_follows_from_it(
    parents: list[list[int]], data: st.DataObject
) -> None:
    world = World(parents, "cancel_queued")
    play(world, [NodeState.SUCCEEDED] * len(parents), data)
    origin = data.draw(st.integers(0, len(parents) - 1))
    refs = {n: node.ref for n, node in world.nodes.items()}
    a = world.load(world.nodes)
    count = advance.restart_run(a, "again", [origin])
    world.take(a)
    below = {origin}
    for number, above in enumerate(parents):
        if below & set(above):
            below.add(number)
    assert count == len(below)
    play(world, [NodeState.SUCCEEDED] * len(parents), data)
    again = {n for n in refs if world.nodes[n].ref != refs[n]}
    assert again == below  # new work under new ids, and the rest untouched


def test_a_ready_node_is_over_when_its_work_is_known_not_to_begin() -> None:
    """FLOW-5."""
    world = World([[]], "cancel_queued")
    a = world.load([0])
    advance.cancel_run(a, "enough", hard=True)
    assert [(stop.number, stop.hard) for stop in a.stops] == [(0, True)]
    world.take(a)
    assert world.run.state is RunState.CANCELLING
    world.start(0)  # the start was under way
    assert world.nodes[0].state is NodeState.STARTED
    world.end(0, NodeState.CANCELLED)
    assert world.run.state is RunState.CANCELLED
    world.stops.clear()
    a = world.load([0])
    advance.stop_late(a, 0)  # by a leader that slept
    world.take(a)
    assert world.stops == {0}


def test_an_event_that_was_set_aside_fails_its_run_and_names_the_node() -> None:
    world = World([[], [0]], "cancel_queued")
    world.end(0, NodeState.SUCCEEDED)
    a = world.load([0, 1])
    advance.fail_run(a, 0, "its event was set aside")
    world.take(a)
    assert (world.run.state, world.stops) == (RunState.FAILING, {1})
    world.end(1, NodeState.CANCELLED)
    assert world.run.state is RunState.FAILED
    assert "n0" in world.run.reason
    assert world.nodes[1].state is NodeState.CANCELLED
