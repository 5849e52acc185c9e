"""How a sync goes on: decided as values, without a store, a socket or a clock (POLL-1…3)."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.controller.sync.poll import (
    Moment,
    Poll,
    asks_again,
    begin_poll,
    choose_wait,
    choose_wakes,
)
from holdfast.core.facts import TaskFacts
from holdfast.core.ids import TaskKey
from holdfast.moves.values import HostSync, HostSynced
from holdfast.wire import agent as wire

KEY, OTHER = TaskKey("job", 0, 1), TaskKey("job", 1, 1)
QUIET, ACKED = wire.SyncAnswer(), wire.SyncAnswer(acked=[KEY])


def make_poll(**fields: Any) -> Poll:
    report = HostSync(
        host_id="h", incarnation="i", live=(KEY,), ended=((OTHER, TaskFacts()),), **fields
    )
    return begin_poll(report, newest=True, now=100.0, seconds=10.0)


def make_moment(now: float = 101.0, *, newest: bool = True, closing: bool = False) -> Moment:
    return Moment(now, newest, closing)


def test_a_quiet_call_waits_for_what_is_left_of_its_time() -> None:
    assert choose_wait(make_poll(), QUIET, make_moment()) == 9.0


@pytest.mark.parametrize(
    ("answer", "look"),
    [
        (ACKED, make_moment()),
        (QUIET, make_moment(110.0)),
        (QUIET, make_moment(closing=True)),
        (QUIET, make_moment(newest=False)),
    ],
    ids=["it says something", "its time is over", "the server closes", "a newer call came"],
)
def test_a_call_is_answered_at_once(answer: wire.SyncAnswer, look: Moment) -> None:
    assert choose_wait(make_poll(), answer, look) is None


def test_a_host_that_leaves_and_a_call_out_of_turn_wait_for_nothing() -> None:
    assert choose_wait(make_poll(leaving=True), QUIET, make_moment(100.0)) is None
    late = begin_poll(make_poll().report, newest=False, now=100.0, seconds=10.0)
    assert choose_wait(late, QUIET, make_moment(100.0)) is None


def test_a_wake_asks_again_without_the_ends() -> None:
    poll = make_poll()
    assert (poll.again.live, poll.again.ended) == ((KEY,), ())
    assert asks_again(make_moment(), woken=True)
    assert not asks_again(make_moment(), woken=False)
    assert not asks_again(make_moment(newest=False), woken=True)
    assert not asks_again(make_moment(closing=True), woken=True)


def wakes_of(runs: bool = False, **fields: Any) -> tuple[set[str], set[str], set[str]]:
    found = choose_wakes(HostSynced(host_id="h", status="ok", **fields), runs=runs)
    return set(found.at_once), set(found.here), set(found.later)


def test_an_outcome_wakes_the_loops_that_have_work() -> None:
    assert wakes_of() == (set(), set(), set())
    assert wakes_of(runs=True) == (set(), {"events"}, set())
    assert wakes_of(opened=("g",)) == ({"host:g"}, set(), set())
    success: dict[str, Any] = {"acked": (KEY,), "succeeded": ("job",)}
    assert wakes_of(**success, settled=True) == ({"events", "logs"}, set(), set())
    assert wakes_of(**success, settled=False) == ({"events", "logs", "admit"}, set(), set())
    fallen = wakes_of(acked=(KEY,), draining=("job",), settled=False)
    assert fallen == ({"drain", "events", "logs"}, set(), {"admit"})
    one_of_many = wakes_of(acked=(KEY,), settled=True)
    assert one_of_many == ({"members", "events", "logs"}, set(), set()), "of a supervised job"
    awaited = wakes_of(**success, awaited=True, settled=True)
    assert awaited == ({"ended", "events", "logs"}, set(), set()), "its room is taken"
    both = wakes_of(**success, awaited=True, settled=False)
    assert both == ({"ended", "admit", "events", "logs"}, set(), set())
    assert "workflows" in wakes_of(**success, posted=True, settled=True)[0]
