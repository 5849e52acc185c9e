"""A run that shrinks with a killed host and grows when another comes, and goes on from what was
saved."""

from __future__ import annotations

import sys
import threading
import time
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

from tests.system.supervisor.policies.fakes import (
    FakeContext,
    FakeGroup,
    FakeHost,
    all_succeed,
    fail,
    lose,
)
from tests.system.supervisor.policies.rig import POLICIES, STEP_PATIENCE, running
from tests.waits import wait_until

sys.path.insert(0, str(POLICIES))
import elastic

# Writes a line for each start; counts until told to save, saves, and goes on from there. Ends when
# the test says so.
WORKER = """
import os, sys, time
from pathlib import Path
from holdfast.supervisor import get_message_queue
folder, rank, world = Path(sys.argv[1]), os.environ["RANK"], os.environ["WORLD_SIZE"]
queue, saved = get_message_queue(), folder / f"saved{rank}"
start = int(saved.read_text()) if saved.exists() else 0
with open(folder / "starts", "a") as file: file.write(f"{world} {rank} {start}\\n")
asked = queue.recv_future()
while not (folder / "finish").exists():
    start += 1
    time.sleep(0.02)
    if asked.done() and asked.result() == "checkpoint":
        saved.write_text(str(start))
        queue.send("saved")
        time.sleep(6000)
sys.exit(0)
"""


def starts(folder: Path) -> list[list[str]]:
    file = folder / "starts"
    return [line.split() for line in file.read_text().splitlines()] if file.exists() else []


@pytest.mark.slow
def test_it_shrinks_and_grows(tmp_path: Path) -> None:
    words = ["--least", "1", "--most", "2", "--settle", "1", "--grow-after", "0", "--save", "30"]
    with running(
        "elastic.py", tmp_path, *words, "--", sys.executable, "-c", WORKER, str(tmp_path)
    ) as policy:
        policy.start_manager("m0")
        policy.start_manager("m1")
        wait_until(
            lambda: {"0", "1"} == {rank for world, rank, _ in starts(tmp_path) if world == "2"},
            STEP_PATIENCE,
        )
        before = len(starts(tmp_path))
        policy.kill_manager("m1")
        wait_until(
            lambda: any(world == "1" for world, _, _ in starts(tmp_path)[before:]), STEP_PATIENCE
        )
        before = len(starts(tmp_path))
        policy.start_manager("m1")  # the same machine, back: not barred
        wait_until(lambda: len(starts(tmp_path)) >= before + 2, STEP_PATIENCE)
        grown = starts(tmp_path)[before:]
        assert {(world, rank) for world, rank, _ in grown} == {("2", "0"), ("2", "1")}, (
            policy.said()
        )
        assert int(next(start for _, rank, start in grown if rank == "0")) > 0, (
            "it did not go on from the checkpoint"
        )
        (tmp_path / "finish").touch()
        assert policy.process.wait(STEP_PATIENCE) == 0, policy.said()
        assert "1 of 1 ranks saved" in policy.said()
        assert "m1 is lost" in policy.said()


@pytest.mark.slow
def test_a_command_that_fails_ends_it(tmp_path: Path) -> None:
    words = ["--least", "1", "--most", "1", "--local", "--max-restarts", "1", "--"]
    with running(
        "elastic.py", tmp_path, *words, sys.executable, "-c", "raise SystemExit(3)"
    ) as policy:
        assert policy.process.wait(STEP_PATIENCE) == 1
        assert "given up after 1 restarts: train0 on local-0 ended with 3" in policy.said()


# ---- what it decides, against a context that only remembers


def options(**more: object) -> Namespace:
    return Namespace(
        **{"command": ["train"], "per_host": 1, "grow_after": 0.0, "save": 0.1, **more}
    )


def run_once(
    ctx: FakeContext,
    present: list[FakeHost],
    absent: list[FakeHost],
    given: Namespace,
    attempt: int = 0,
) -> str:
    fakes: Any = (ctx, present, absent)
    return elastic.run_once(*fakes, given, attempt)


def run_main(monkeypatch: pytest.MonkeyPatch, ctx: FakeContext, *words: str) -> int:
    monkeypatch.setattr(elastic, "Context", lambda **_: ctx)
    monkeypatch.setattr(elastic, "DELAY_SECONDS", 0.0)
    monkeypatch.setattr(sys, "argv", ["elastic.py", "--settle", "0", *words, "train"])
    return elastic.main()


def test_it_begins_with_the_least_and_whoever_comes_soon_after() -> None:
    hosts: Any = [FakeHost(number) for number in range(4)]
    hosts[2].come()
    threading.Timer(0.2, hosts[1].come).start()
    assert elastic.wait_for_hosts(hosts, 2, 0.0) == [hosts[1], hosts[2]], (
        "it began with fewer than the least"
    )
    threading.Timer(0.2, hosts[0].come).start()
    threading.Timer(0.4, hosts[3].come).start()
    assert elastic.wait_for_hosts(hosts, 2, STEP_PATIENCE) == hosts, (
        "it did not wait for those that come soon"
    )


def test_a_run_is_not_disturbed_too_early() -> None:
    ctx = FakeContext()
    present, absent = [host.come() for host in ctx.request_hosts(1)], [FakeHost(7).come()]
    began = time.monotonic()
    assert run_once(ctx, present, absent, options(grow_after=0.6)) == elastic.GROW
    assert time.monotonic() - began >= 0.6
    (group,) = ctx.groups
    assert group.told == ["checkpoint"]
    assert group.running_when_forgotten == 0, "the next attempt would have met ranks of this one"


def test_a_host_that_came_and_went_disturbs_nobody() -> None:
    """It is asked for anew, and the run grows when it is there to stay."""
    ctx = FakeContext()
    present = [host.come() for host in ctx.request_hosts(1)]
    ctx.come_at_once = False
    absent = [FakeHost(7).come(), FakeHost(8)]
    absent[0].lose()
    outcomes: list[str] = []
    running = threading.Thread(
        target=lambda: outcomes.append(run_once(ctx, present, absent, options(grow_after=0.1))),
        daemon=True,
    )
    running.start()
    wait_until(
        lambda: ctx.asked == [1, 1] and [host.number for host in absent] == [8, 1], STEP_PATIENCE
    )
    assert ctx.groups[0].told == [], "the ranks were stopped for a host that is not there"
    assert running.is_alive()
    absent[1].come()
    running.join(STEP_PATIENCE)
    assert outcomes == [elastic.GROW]
    assert ctx.groups[0].told == ["checkpoint"]


def test_a_failure_before_the_growth_is_a_failure() -> None:
    ctx = FakeContext(fail(1, 3))
    absent = [FakeHost(7).come()]
    assert (
        run_once(ctx, ctx.request_hosts(2), absent, options(grow_after=STEP_PATIENCE))
        == "train1 on h1 ended with 3"
    )
    assert ctx.groups[0].told == []
    assert ctx.groups[0].running_when_forgotten == 0


def test_it_is_done_when_every_rank_is() -> None:
    def one_after_the_other(group: FakeGroup) -> None:
        group[0].code.set_result(0)
        threading.Timer(0.3, group[1].code.set_result, [0]).start()

    ctx = FakeContext(one_after_the_other)
    assert run_once(ctx, ctx.request_hosts(2), [], options()) == elastic.DONE
    assert ctx.groups[0][1].code.result(0) == 0, "it did not wait for the last rank"


def test_ranks_that_do_not_listen_are_not_waited_for() -> None:
    group: Any = FakeGroup([FakeHost(0), FakeHost(1)], {})
    group[0].answer.set_result("saved")
    asking = threading.Thread(target=elastic.ask_to_save, args=(group, 0.1), daemon=True)
    asking.start()
    asking.join(STEP_PATIENCE)
    assert not asking.is_alive()


def test_only_failures_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Losses and growth do not; and each attempt has a number of its own."""
    ctx = FakeContext(lose(0), lose(1), fail(0), lose(0), all_succeed)
    assert run_main(monkeypatch, ctx, "--least", "2", "--most", "2", "--max-restarts", "1") == 0
    assert [group.env["TORCHELASTIC_RESTART_COUNT"] for group in ctx.groups] == "0 1 2 3 4".split()
    assert ctx.asked == [2, 1, 1, 0, 1], "the lost ones were not asked for anew"
    assert ctx.replaced == [], "a machine that may come back was barred"
    assert all(len(group.hosts) == 2 for group in ctx.groups)


def test_growth_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    ctx = FakeContext()
    outcomes = [elastic.GROW, elastic.GROW, elastic.DONE]
    monkeypatch.setattr(elastic, "run_once", lambda *_: outcomes.pop(0))
    assert run_main(monkeypatch, ctx, "--least", "1", "--most", "1", "--max-restarts", "0") == 0


def test_the_cap_is_a_count_of_restarts(monkeypatch: pytest.MonkeyPatch) -> None:
    ctx = FakeContext(fail(0), fail(0), fail(0), all_succeed)
    assert run_main(monkeypatch, ctx, "--least", "1", "--most", "1", "--max-restarts", "2") == 1
    assert len(ctx.groups) == 3
    ctx = FakeContext(fail(0), fail(0), all_succeed)
    assert run_main(monkeypatch, ctx, "--least", "1", "--most", "1", "--max-restarts", "2") == 0


def test_it_never_runs_on_fewer_than_the_least(monkeypatch: pytest.MonkeyPatch) -> None:
    """One may be lost while others are waited for."""
    ctx = FakeContext(all_succeed)
    wait_for_hosts, calls = elastic.wait_for_hosts, []

    def lose_one(hosts: Any, least: int, seconds: float) -> Any:
        calls.append(len(hosts))
        if len(calls) == 1:
            wait_for_hosts(hosts, least, seconds)
            hosts[0].lose()
            return hosts[1:]
        return wait_for_hosts(hosts, least, seconds)

    monkeypatch.setattr(elastic, "wait_for_hosts", lose_one)
    assert run_main(monkeypatch, ctx, "--least", "2", "--most", "2") == 0
    assert calls == [2, 2]
    assert [len(group.hosts) for group in ctx.groups] == [2]
