"""A function on every host, and the results merged up a tree, over real processes."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import ValidationError
from holdfast.supervisor import Context
from holdfast.supervisor.tree import mapreduce
from holdfast.supervisor.tree.functions import load_function, name_function
from holdfast.supervisor.tree.mapreduce import count_children, find_parent, measure_depth
from tests.system.supervisor.rig import PATIENCE, Managers, attach
from tests.system.supervisor.tree_functions import join, look, merge, misbehave
from tests.waits import stretch


@pytest.mark.slow
@pytest.mark.parametrize("width", [1, 2, 16])
def test_results_are_merged_once_each(ctx: Context, managers: Managers, width: int) -> None:
    hosts, _ = attach(ctx, managers, 5)
    value, missing = ctx.mapreduce(hosts, look, merge, [1, 10, 100, 1000, 10000], width=width)
    assert missing == {}
    assert value["sum"] == 11111
    assert len(set(value["pids"])) == 5
    assert value["bytes"] == b"\x01"
    assert ctx.groups() == []


@pytest.mark.slow
def test_hosts_that_fail_are_named_and_the_others_counted(
    ctx: Context, managers: Managers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mapreduce, "MERGE_SECONDS", stretch(1.0))
    hosts, started = attach(ctx, managers, 6)
    waiting = ctx.request_hosts(1)
    started[5].kill()
    hosts[5].time_connection_lost().result(40)
    words = ["fine", "raise", "hang", "odd", "good", "", ""]
    asked, seconds = [*hosts, *waiting], stretch(2.0)
    value, missing = ctx.mapreduce(asked, misbehave, join, words, timeout=seconds, width=2)
    assert value == ["fine", "good"]
    assert missing[hosts[1]] == "RuntimeError: as told"
    assert missing[hosts[2]] == f"no answer in {seconds:g} s"
    assert "cannot be sent" in missing[hosts[3]]
    assert "is lost" in missing[hosts[5]]
    assert missing[waiting[0]] == "no manager has come for it"
    assert hosts[0] not in missing
    assert hosts[4] not in missing


@pytest.mark.slow
def test_a_node_that_dies_takes_only_its_part_of_the_tree(
    ctx: Context, managers: Managers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mapreduce, "MERGE_SECONDS", stretch(1.0))
    hosts, _ = attach(ctx, managers, 3)
    words, seconds = ["a", "exit", "c"], stretch(2.0)
    value, missing = ctx.mapreduce(hosts, misbehave, join, words, timeout=seconds, width=2)
    assert value == ["a", "c"]
    assert missing == {hosts[1]: "nothing was heard of it in time"}
    # Its root ends as soon as it has loaded the function: no time is waited for.
    words = ["exit", "b", "c"]
    value, missing = ctx.mapreduce(hosts, misbehave, join, words, timeout=PATIENCE, width=2)
    assert value is None
    assert set(missing) == set(hosts)
    assert "the root of the tree, m0, said nothing" in missing[hosts[2]]


@pytest.mark.slow
def test_a_merge_that_fails_names_those_it_leaves_out(ctx: Context, managers: Managers) -> None:
    hosts, _ = attach(ctx, managers, 2)
    value, missing = ctx.mapreduce(hosts, misbehave, join, ["poison", "b"])
    assert value in (["poison"], ["b"])
    assert len(missing) == 1
    assert "could not be merged: ValueError: poison" in next(iter(missing.values()))


@pytest.mark.slow
def test_a_frozen_host_is_not_waited_for_beyond_its_time(
    ctx: Context, managers: Managers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mapreduce, "MEET_SECONDS", stretch(6.0))
    hosts, started = attach(ctx, managers, 2)
    started[1].send_signal(signal.SIGSTOP)
    value, missing = ctx.mapreduce(hosts, misbehave, join, ["a", "b"])
    assert value == ["a"]
    assert set(missing) == {hosts[1]}


def test_no_host_and_odd_arguments(ctx: Context) -> None:
    assert ctx.mapreduce([], look, merge) == (None, {})
    with pytest.raises(ValidationError, match="2 inputs for 0 hosts"):
        ctx.mapreduce([], look, merge, [1, 2])
    with pytest.raises(ValidationError, match="width"):
        ctx.mapreduce([], look, merge, width=0)


def test_functions_are_found_by_name(tmp_path: Path) -> None:
    assert load_function(name_function(look)) is look
    assert name_function(name_function) == "holdfast.supervisor.tree.functions:name_function"
    assert load_function("holdfast.supervisor.tree.functions:load_function") is load_function
    file = tmp_path / "beside.py"
    file.write_text("import friend\ndef three(): return friend.THREE\n")
    (tmp_path / "friend.py").write_text("THREE = 3\n")
    assert load_function(f"{file}:three")() == 3
    with pytest.raises(ValidationError, match="top level"):
        name_function(lambda value: value)
    with pytest.raises(ValidationError, match="cannot be loaded here"):
        load_function(f"{tmp_path}/none.py:three")
    with pytest.raises(ValidationError, match="cannot be loaded here"):
        load_function(f"{file}:four")


@given(st.integers(1, 400), st.integers(1, 20))
def test_the_tree_holds_every_node_once(count: int, width: int) -> None:
    children = [0] * count
    for index in range(1, count):
        parent = find_parent(index, width)
        assert parent is not None
        assert parent < index
        children[parent] += 1
        assert measure_depth(index, width) == measure_depth(parent, width) + 1
    assert find_parent(0, width) is None
    assert children == [count_children(index, count, width) for index in range(count)]
    assert max(children) <= width
