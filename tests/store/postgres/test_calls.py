"""CALLSET-1…4: sets, exchanges with executors, ends, and what comes back."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from holdfast.core.calls.decide import PolicyOf, default_policy
from holdfast.core.calls.marks import make_mark
from holdfast.core.calls.unable import AppHosts
from holdfast.core.calls.values import CallState, FunctionSpec, find_family
from holdfast.core.causes import Watchdog
from holdfast.core.endings.decide import Policy
from holdfast.core.facts import TaskFacts, Trip
from holdfast.core.ids import TaskKey
from holdfast.core.retry import RetryFields
from holdfast.errors import Conflict, NotFound
from holdfast.moves.calls.calls import NO_HOSTS
from holdfast.moves.values import LogAppend
from holdfast.store.postgres.calls.values import (
    CallSetOrigin,
    ExecutorTurn,
    ExecutorTurned,
    RunningCalls,
)
from holdfast.wire.calls import BatchEnds, CallEnd, CallError, Closing, ExecutorReport
from tests.store.rig import Rig

DOUBLE = FunctionSpec(function="mytasks:double", retry=RetryFields(max_retries=1, retry_delay=0))
FAMILY = find_family(DOUBLE, "cpu").name
TRIPPED = TaskFacts(
    signal=9, trip=Trip(watchdog=Watchdog.STALL, exit_code=76, reason="no beat for 2 s")
)


def args(count: int, first: int = 0) -> list[str]:
    return [f"[{i}]" for i in range(first, first + count)]


async def executor(rig: Rig, host: str = "h1") -> TaskKey:
    if host not in rig.incarnations:
        await rig.host(host)
    _, key = await rig.running(host=host)
    return key


async def say(
    rig: Rig,
    key: TaskKey,
    *,
    host: str = "h1",
    family: str = FAMILY,
    policy_of: PolicyOf | None = None,
    incarnation: str | None = None,
    hosts: AppHosts = NO_HOSTS,
    **report: Any,
) -> ExecutorTurned:
    turn = ExecutorTurn(
        host_id=host,
        incarnation=incarnation or rig.incarnations[host],
        family=family,
        report=ExecutorReport(key=key, **report),
        hosts=hosts,
    )
    (answer,) = await rig.store.calls.exchange([turn], policy_of=policy_of, now=rig.now)
    assert answer.key == key
    return answer


def done(batch: int, *positions: int, value: str = "{}") -> BatchEnds:
    return BatchEnds(batch, [CallEnd(p, False, 0.01, value.format(p)) for p in positions])


def raised(batch: int, position: int, **error: Any) -> BatchEnds:
    told = CallError(**{"kind": "ValueError", "message": "bad", "traceback": "…", **error})
    return BatchEnds(batch, [CallEnd(position, True, 0.01, msgspec.json.encode(told).decode())])


def names(answer: ExecutorTurned) -> list[str]:
    return [
        f"{batch.sets[call.set].id}.{call.index}"
        for batch in answer.batches
        for call in batch.calls
    ]


async def results(rig: Rig, set_id: str = "s1", **given: Any) -> list[tuple[int, int, str]]:
    found = await rig.store.calls.read_results(set_id, **given)
    return [(r.index, r.state, r.value) for r in found]


async def counts(rig: Rig, set_id: str = "s1") -> tuple[int, int, int, str]:
    view = await rig.store.calls.read_set(set_id)
    return view.succeeded, view.failed, view.cancelled, view.state


async def test_calls_run_in_order_and_their_set_ends(rig: Rig) -> None:
    key = await executor(rig)
    view = await rig.store.calls.create_set("s1", DOUBLE, "cpu", count=5, args=args(5), now=rig.now)
    assert (view.state, view.count, view.submitted, view.spec) == ("open", 5, 5, DOUBLE)
    answer = await say(rig, key, want=3)
    (batch,) = answer.batches
    assert [(c.set, c.index, c.attempt, c.args) for c in batch.calls] == [
        (0, i, 1, f"[{i}]") for i in range(3)
    ]
    assert ([s.id for s in batch.sets], batch.sets[0].spec, batch.model) == (["s1"], DOUBLE, None)
    second = await say(rig, key, ends=[done(batch.id, 0, 1)], held=[batch.id], want=5)
    assert second.recorded == [(batch.id, 0), (batch.id, 1)]
    assert (second.touched_sets, names(second)) == (("s1",), ["s1.3", "s1.4"])
    assert await results(rig) == [(0, 1, "0"), (1, 1, "1")]
    other = second.batches[0].id
    held = [batch.id, other]
    third = await say(rig, key, ends=[done(other, 0, 1)], held=held, want=5)
    assert (names(third), third.dropped) == ([], [])
    assert await results(rig) == [(0, 1, "0"), (1, 1, "1")], "no gap is passed over"
    assert await results(rig, indices=[0, 2, 4]) == [(0, 1, "0"), (4, 1, "1")]
    assert await counts(rig) == (4, 0, 0, "open")
    await say(rig, key, ends=[done(batch.id, 2)], held=[batch.id])
    assert await counts(rig) == (5, 0, 0, "ended")
    assert [i for i, _, _ in await results(rig)] == [0, 1, 2, 3, 4]
    (host,) = await rig.store.views.list_performance()
    assert (host.done, host.failed, host.mean_seconds) == (5, 0, pytest.approx(0.01))
    assert [i for i, _, _ in await results(rig, first=1, limit=2)] == [1, 2]
    assert (await rig.store.calls.read_results("s1"))[3].attempts == 1


async def test_an_end_is_written_once(rig: Rig) -> None:
    key = await executor(rig)
    await rig.store.calls.create_set("s1", DOUBLE, "cpu", count=2, args=args(2), now=rig.now)
    (batch,) = (await say(rig, key, want=2)).batches
    for value in ("1", "2"):
        answer = await say(rig, key, ends=[done(batch.id, 0, value=value)], held=[batch.id])
        assert answer.recorded == [(batch.id, 0)], "a repeat is recorded too"
    await say(rig, key, ends=[done(batch.id, 1, 7, value="3")], held=[batch.id])
    late = await say(rig, key, ends=[done(batch.id, 0, 1, value="4")], held=[batch.id])
    assert (late.recorded, late.dropped) == ([(batch.id, 0), (batch.id, 1)], [batch.id])
    assert await results(rig) == [(0, 1, "1"), (1, 1, "3")]
    assert await counts(rig) == (2, 0, 0, "ended")


async def test_a_batch_that_was_not_heard_of_is_sent_again(rig: Rig) -> None:
    key = await executor(rig)
    await rig.store.calls.create_set("s1", DOUBLE, "cpu", args=args(9), now=rig.now)
    first = await say(rig, key, want=3)
    again = await say(rig, key, want=4)
    assert again.batches[0] == first.batches[0]
    assert names(again) == ["s1.0", "s1.1", "s1.2", "s1.3"], "what it asked for, with the first"
    held = [batch.id for batch in again.batches]
    assert names(await say(rig, key, held=held, want=1)) == ["s1.4"]


async def test_submissions_repeat_and_come_in_any_order(rig: Rig) -> None:
    calls = rig.store.calls
    for _ in range(2):
        await calls.create_set("s1", DOUBLE, "cpu", args=args(3), now=rig.now)
        await calls.append_calls("s1", 6, args(3, 6), now=rig.now)
        await calls.append_calls("s1", 2, args(5, 2), now=rig.now)
    view = await calls.append_calls("s1", 9, [], count=9, now=rig.now)
    assert (view.submitted, view.count) == (9, 9)
    key = await executor(rig)
    (batch,) = (await say(rig, key, want=99)).batches
    assert sorted((c.index, c.args) for c in batch.calls) == [(i, f"[{i}]") for i in range(9)]
    for past in (lambda: calls.append_calls("s1", 9, args(1, 9)),
                 lambda: calls.append_calls("s1", 9, [], count=10)):  # fmt: skip
        with pytest.raises(Conflict, match="has 9 calls"):
            await past()
    with pytest.raises(Conflict, match="differs from it in "):
        await calls.create_set("s1", FunctionSpec(function="m:other"), "cpu")
    for unknown in (calls.append_calls("s9", 0, []), calls.read_set("s9"),
                    calls.read_results("s9"), calls.cancel_calls("s9"), calls.retry_calls("s9")):  # fmt: skip
        with pytest.raises(NotFound, match="no call set s9"):
            await unknown
    with pytest.raises(Conflict):
        await calls.create_set("s2", DOUBLE, "cpu", count=1, args=args(2), now=rig.now)
    with pytest.raises(NotFound):
        await calls.read_set("s2")


async def test_texts_come_back_as_they_were(rig: Rig) -> None:
    key, calls = await executor(rig), rig.store.calls
    odd = ['["\\u0000", "\\\\"]', "[\x00]", "not JSON, '\"{}", "[1, 2 ,3]", "é" * 70_000, ""]
    await calls.create_set("s1", DOUBLE, "cpu", count=len(odd), args=odd, now=rig.now)
    (batch,) = (await say(rig, key, want=9)).batches
    kept = [text.replace("\x00", "\ufffd") for text in odd]  # no JSON text has it
    assert [call.args.replace("\x00", "\ufffd") for call in batch.calls] == kept
    ends = [CallEnd(i, False, 0.0, text) for i, text in enumerate(odd)]
    await say(rig, key, ends=[BatchEnds(batch.id, ends)])
    assert [value.replace("\x00", "\ufffd") for _, _, value in await results(rig)] == kept
    await calls.create_set("s2", DOUBLE, "cpu", count=2, args=args(2), now=rig.now)
    (batch,) = (await say(rig, key, want=9)).batches
    nul = CallEnd(1, True, 0.0, "no error at all \x00")
    await say(rig, key, ends=[raised(batch.id, 0, message="\x00", invalid=True)], held=[batch.id])
    await say(rig, key, ends=[BatchEnds(batch.id, [nul])], held=[batch.id])
    assert len(await calls.read_failures("s2", 0)) == 1


async def test_a_set_without_calls_is_over_when_its_count_is_known(rig: Rig) -> None:
    await rig.store.calls.create_set("s1", DOUBLE, "cpu", now=rig.now)
    assert await counts(rig) == (0, 0, 0, "open")
    view = await rig.store.calls.append_calls("s1", 0, [], count=0, now=rig.now)
    assert view.state == "ended"
    key = await executor(rig)
    await rig.store.calls.create_set("s2", DOUBLE, "cpu", args=args(1), now=rig.now)
    (batch,) = (await say(rig, key, want=1)).batches
    await say(rig, key, ends=[done(batch.id, 0)])
    assert await counts(rig, "s2") == (1, 0, 0, "open"), "more may come"
    assert (await rig.store.calls.append_calls("s2", 1, [], count=1)).state == "ended"


async def test_stale_executors_get_nothing(rig: Rig) -> None:
    key = await executor(rig)
    await rig.store.calls.create_set("s1", DOUBLE, "cpu", args=args(4), now=rig.now)
    for stale in (TaskKey(key.job_id, 0, key.epoch + 1), TaskKey("nothing", 0, 1)):
        answer = await say(rig, stale, want=1, held=[3])
        assert (answer.lost, answer.batches, answer.dropped) == (True, [], [3])
    assert (await say(rig, key, want=1, incarnation="inc-99999")).lost
    assert (await say(rig, key, want=1, family="another-0")).batches == []
    (batch,) = (await say(rig, key, want=1)).batches
    await rig.host("h2")
    other = await say(rig, key, host="h2", ends=[done(batch.id, 0)], held=[batch.id])
    assert (other.lost, other.dropped) == (True, [batch.id])
    assert await results(rig) == []
    await rig.store.jobs.cancel_job(key.job_id, "", now=rig.now)
    draining = await say(rig, key, want=1, ends=[done(batch.id, 0)])
    assert (draining.lost, draining.batches) == (False, []), (
        "it ends what it has, and takes no more"
    )
    assert await results(rig) == [(0, 1, "0")]


async def test_a_failure_is_retried_by_its_policy_and_keeps_its_chain(rig: Rig) -> None:
    key = await executor(rig)
    await rig.store.calls.create_set("s1", DOUBLE, "cpu", count=3, args=args(3), now=rig.now)
    (batch,) = (await say(rig, key, want=3)).batches
    answer = await say(rig, key, ends=[raised(batch.id, 1)], held=[batch.id], want=5)
    (again,) = (
        answer.batches if answer.batches else (await say(rig, key, held=[batch.id], want=5)).batches
    )
    assert [(c.index, c.attempt) for c in again.calls] == [(1, 2)]
    held = [batch.id, again.id]
    await say(
        rig, key, ends=[done(batch.id, 0, 2), raised(again.id, 0, message="worse")], held=held
    )
    assert await counts(rig) == (2, 1, 0, "ended")
    (failed,) = await rig.store.calls.read_results("s1", states=[CallState.FAILED])
    assert (failed.index, failed.attempts) == (1, 2)
    assert failed.reason == "ValueError: worse; its one retry is spent"
    assert msgspec.json.decode(failed.value)["message"] == "worse"
    chain = await rig.store.calls.read_failures("s1", 1)
    assert [(f["attempt"], f["host"], f["cause"], f["charged_to"]) for f in chain] == [
        (1, "name-h1", "nonzero_exit", "retries"),
        (2, "name-h1", "nonzero_exit", "retries"),
    ]
    assert chain[0]["reason"] == "ValueError: bad; retry 1 of 1 in 0 s"
    assert await rig.store.calls.read_failures("s1", 0) == []


async def test_what_does_not_fit_is_never_retried(rig: Rig) -> None:
    key = await executor(rig)
    await rig.store.calls.create_set("s1", DOUBLE, "cpu", count=1, args=args(1), now=rig.now)
    (batch,) = (await say(rig, key, want=1)).batches
    await say(rig, key, ends=[raised(batch.id, 0, invalid=True)])
    assert await counts(rig) == (0, 1, 0, "ended")
    (found,) = await rig.store.calls.read_failures("s1", 0)
    assert found["cause"] == "validation_error"


async def test_a_call_that_a_host_cannot_run_goes_to_others_uncharged(rig: Rig) -> None:
    """ABLE-2: whatever its retries; on one host it fails at once."""
    spec = msgspec.structs.replace(DOUBLE, retry=RetryFields(max_retries=0))
    await rig.store.calls.create_set("s1", spec, "cpu", count=1, args=args(1), now=rig.now)
    hosts = AppHosts(able=frozenset({"h1", "h2"}))
    for host, last in (("h1", False), ("h2", True)):
        await rig.host(host, slots=1)
        key = await executor(rig, host)
        (batch,) = (await say(rig, key, host=host, want=1)).batches
        ends = [raised(batch.id, 0, kind="ModuleNotFoundError", unable=True)]
        told = await say(rig, key, host=host, ends=ends, hosts=hosts)
        assert told.ready_again is not last
    failures = await rig.store.calls.read_failures("s1", 0)
    assert [(f["cause"], f["host"]) for f in failures] == [
        ("app_unusable", "name-h1"), ("app_unusable", "name-h2"),
    ]  # fmt: skip
    assert await counts(rig) == (0, 1, 0, "ended")
    (found,) = await rig.store.calls.read_results("s1")
    assert "it was tried on each of 2 hosts" in found.reason


async def test_a_back_off_is_a_row_with_a_due_time(rig: Rig) -> None:
    key = await executor(rig)
    later = FunctionSpec(
        function="mytasks:double", retry=RetryFields(max_retries=3, retry_delay=30)
    )
    await rig.store.calls.create_set("s1", later, "cpu", count=1, args=args(1), now=rig.now)
    (batch,) = (await say(rig, key, want=1)).batches
    await say(rig, key, ends=[raised(batch.id, 0)])
    assert names(await say(rig, key, want=1)) == []
    due = await rig.store.calls.find_due()
    assert due == rig.now + timedelta(seconds=30)
    assert await rig.store.calls.release_due(now=rig.tick(29)) == 0
    assert await rig.store.calls.release_due(now=rig.tick(1)) == 1
    assert await rig.store.calls.find_due() is None
    (again,) = (await say(rig, key, want=1)).batches
    assert again.calls[0].attempt == 2


async def test_a_kill_switch_holds_retries_of_calls(rig: Rig) -> None:
    def held(queue: str, spec: FunctionSpec) -> Policy:
        return msgspec.structs.replace(default_policy(queue, spec), held="the cluster")

    key = await executor(rig)
    await rig.store.calls.create_set("s1", DOUBLE, "cpu", count=1, args=args(1), now=rig.now)
    (batch,) = (await say(rig, key, want=1)).batches
    await say(rig, key, ends=[raised(batch.id, 0)], policy_of=held)
    assert await rig.store.calls.release_due(now=rig.tick(60), policy_of=held) == 0
    assert names(await say(rig, key, want=1)) == []
    assert await rig.store.calls.release_due(now=rig.tick(60)) == 1
    assert names(await say(rig, key, want=1)) == ["s1.0"]


async def test_only_the_call_that_ran_is_charged(rig: Rig) -> None:
    key = await executor(rig)
    await rig.store.calls.create_set("s1", DOUBLE, "cpu", count=6, args=args(6), now=rig.now)
    (one,) = (await say(rig, key, want=3)).batches
    (two,) = (await say(rig, key, want=2, held=[one.id])).batches
    closing = Closing(batch=one.id, position=1, facts=TRIPPED)
    answer = await say(
        rig, key, held=[one.id, two.id], ends=[done(one.id, 0)], closing=closing, want=9
    )
    assert (answer.recorded, names(answer)) == ([(one.id, 0)], [])
    again = await say(rig, await executor(rig), want=9)
    assert names(again) == [f"s1.{i}" for i in (1, 2, 3, 4, 5)], "all keep their places"
    attempts = {c.index: c.attempt for b in again.batches for c in b.calls}
    assert attempts == {1: 2, 2: 1, 3: 1, 4: 1, 5: 1}
    assert await rig.store.calls.read_failures("s1", 2) == []
    (failure,) = await rig.store.calls.read_failures("s1", 1)
    assert (failure["cause"], failure["charged_to"]) == ("stalled", "watchdog")
    late = await say(rig, key, ends=[done(one.id, 1)], held=[one.id])
    assert late.recorded == [(one.id, 1)]
    assert await results(rig) == [(0, 1, "0")], "the old executor's end comes too late"


async def test_a_loader_that_always_fails_is_charged_to_what_waits_for_it(rig: Rig) -> None:
    never = FunctionSpec(function="mytasks:double", retry=RetryFields(max_retries=0))
    await rig.store.calls.create_set("s1", never, "cpu", count=2, args=args(2), now=rig.now)
    facts = TaskFacts(exit_code=3)
    for _ in range(2):
        key = await executor(rig)
        await say(rig, key, want=2)
        await say(rig, key, closing=Closing(loading=True, facts=facts))
    assert await counts(rig) == (0, 2, 0, "ended")


async def test_batches_of_lost_executors_come_back(rig: Rig) -> None:
    key = await executor(rig)
    await rig.store.calls.create_set("s1", DOUBLE, "cpu", count=4, args=args(4), now=rig.now)
    (batch,) = (await say(rig, key, want=3)).batches
    await say(rig, key, ends=[done(batch.id, 0)], held=[batch.id])
    since = rig.now
    rig.tick(20)
    assert await rig.store.calls.return_batches(since, now=rig.now) == 0, "its lease is in force"
    await rig.sync(ended=[(key, TaskFacts(signal=9))])
    await rig.complete()
    assert await rig.store.calls.return_batches(since, now=rig.now) == 0, "a report may come yet"
    assert await rig.store.calls.return_batches(since, now=rig.tick(11)) == 1
    assert await rig.store.calls.return_batches(since, now=rig.tick(11)) == 0
    await rig.sync()
    (again,) = (await say(rig, await executor(rig), want=9)).batches
    assert [(c.index, c.attempt) for c in again.calls] == [(1, 2), (2, 1), (3, 1)]
    (failure,) = await rig.store.calls.read_failures("s1", 1)
    assert (failure["cause"], failure["charged_to"]) == ("agent_transient", "infra")


async def test_a_closing_report_after_the_end_of_its_task_counts(rig: Rig) -> None:
    key = await executor(rig)
    await rig.store.calls.create_set("s1", DOUBLE, "cpu", count=2, args=args(2), now=rig.now)
    (batch,) = (await say(rig, key, want=2)).batches
    await rig.sync(ended=[(key, TaskFacts(signal=9))])
    await rig.complete()
    closing = Closing(batch=batch.id, position=1, facts=TRIPPED)
    answer = await say(rig, key, held=[batch.id], ends=[done(batch.id, 0)], closing=closing)
    assert answer.lost
    assert await results(rig) == [(0, 1, "0")]
    (failure,) = await rig.store.calls.read_failures("s1", 1)
    assert failure["cause"] == "stalled"


async def test_priority_then_place(rig: Rig) -> None:
    key, calls = await executor(rig), rig.store.calls
    urgent = msgspec.structs.replace(DOUBLE, priority=90)
    await calls.create_set("low", DOUBLE, "cpu", args=args(3), now=rig.now)
    await calls.create_set("high", urgent, "cpu", args=args(2), now=rig.now)
    await calls.create_set("late", DOUBLE, "cpu", args=args(1), now=rig.now)
    await calls.append_calls("low", 3, args(1, 3), now=rig.now)
    (batch,) = (await say(rig, key, want=4)).batches
    assert names(await say(rig, key, want=9, held=[batch.id])) == ["low.2", "late.0", "low.3"]
    named = [f"{batch.sets[c.set].id}.{c.index}" for c in batch.calls]
    assert named == ["high.0", "high.1", "low.0", "low.1"], "one batch of two sets"


async def test_a_batch_is_of_one_model_and_the_warm_one_is_preferred(rig: Rig) -> None:
    key, calls = await executor(rig), rig.store.calls
    for model in ("red", "blue"):
        spec = msgspec.structs.replace(DOUBLE, model=model, vram_gb=4.0)
        await calls.create_set(model, spec, "cpu", args=args(30), now=rig.now)
    feeds = await calls.read_feeds(now=rig.tick(5))
    assert [(f.model, f.ready, f.vram_gb, f.head_age_seconds) for f in feeds] == [
        ("red", 30, 4.0, 5.0),
        ("blue", 30, 4.0, 5.0),
    ]
    assert feeds[0].family == find_family(DOUBLE, "cpu")
    first = await say(rig, key, want=2, loaded="blue")
    assert (first.batches[0].model, names(first)) == ("blue", ["blue.0", "blue.1"])
    held = [first.batches[0].id]
    rig.tick(61)
    overdue = await say(rig, key, want=1, loaded="blue", held=held)
    assert names(overdue) == ["red.0"], "it was passed over for too long"
    held.append(overdue.batches[0].id)
    warm = await say(rig, key, want=1, loaded="blue", held=held)
    assert names(warm) == ["blue.2"], "served since"


async def test_what_runs_is_counted_by_feed_and_told_of_each_set(rig: Rig) -> None:
    """An executor runs one call at a time, however many it holds."""
    one, two = await executor(rig), await executor(rig)
    calls = rig.store.calls
    assert await calls.read_running() == []
    for set_id, model in (("s1", None), ("s2", "red"), ("s3", "red")):
        spec = msgspec.structs.replace(DOUBLE, model=model)
        await calls.create_set(set_id, spec, "cpu", count=30, args=args(30), now=rig.now)
        assert not (await calls.read_set(set_id)).running
    (first,) = (await say(rig, one, want=20)).batches
    (more,) = (await say(rig, one, want=20, held=[first.id])).batches
    (other,) = (await say(rig, two, want=5, loaded="red")).batches
    family = find_family(DOUBLE, "cpu")
    plain, red = (RunningCalls(family=family, model=model, calls=1) for model in (None, "red"))
    assert await calls.read_running() == [plain, red]
    running = {view.id: view.running for view in await calls.list_sets()}
    assert running == {"s1": True, "s2": True, "s3": False}
    await say(rig, one, ends=[done(batch.id, *range(n)) for batch, n in ((first, 20), (more, 10))])
    await say(rig, two, loaded="red", held=[other.id], ends=[done(other.id, 0)])
    assert await calls.read_running() == [red]
    assert [(await calls.read_set(set_id)).running for set_id in ("s1", "s2")] == [False, True]


async def test_two_executors_take_different_calls(rig: Rig) -> None:
    one, two = await executor(rig), await executor(rig)
    await rig.store.calls.create_set("s1", DOUBLE, "cpu", count=2000, args=args(2000), now=rig.now)
    turns = [
        ExecutorTurn(
            host_id="h1",
            incarnation=rig.incarnations["h1"],
            family=FAMILY,
            report=ExecutorReport(key=key, want=700),
        )
        for key in (one, two)
    ]
    both = await rig.store.calls.exchange(turns, now=rig.now)
    assert [len(names(answer)) for answer in both] == [700, 700]
    found = {name for answer in both for name in names(answer)}
    assert found == {f"s1.{i}" for i in range(1400)}


async def test_exchanges_that_race_hand_each_call_out_once(rig: Rig) -> None:
    keys = [await executor(rig) for _ in range(4)]
    sizes = [1, 1, 1, 600, 3, 1200, 1, 7]
    for i, size in enumerate(sizes):
        await rig.store.calls.create_set(f"s{i}", DOUBLE, "cpu", count=size, args=args(size))
    seen: list[str] = []

    async def drain(key: TaskKey, want: int) -> None:
        held: list[int] = []
        ends: list[BatchEnds] = []
        idle = 0
        while idle < 20:
            answer = await say(rig, key, want=want, held=held, ends=ends)
            idle = 0 if answer.batches else idle + 1
            seen.extend(names(answer))
            ends = [done(b.id, *range(len(b.calls))) for b in answer.batches]

    await asyncio.gather(
        *(drain(key, want) for key, want in zip(keys, (7, 50, 400, 1), strict=True))
    )
    assert sorted(seen) == sorted(f"s{i}.{j}" for i, n in enumerate(sizes) for j in range(n))
    for i, size in enumerate(sizes):
        assert await counts(rig, f"s{i}") == (size, 0, 0, "ended")


async def test_repeats_of_an_end_race(rig: Rig) -> None:
    key = await executor(rig)
    await rig.store.calls.create_set("s1", DOUBLE, "cpu", count=300, args=args(300), now=rig.now)
    (batch,) = (await say(rig, key, want=300)).batches
    for first in range(0, 300, 30):
        told = [
            done(batch.id, *range(first, first + 30), value=str(attempt)) for attempt in range(4)
        ]
        held = [batch.id]
        answers = await asyncio.gather(*(say(rig, key, ends=[ends], held=held) for ends in told))
        assert all(len(answer.recorded) == 30 for answer in answers)
    assert await counts(rig) == (300, 0, 0, "ended")
    assert [i for i, _, _ in await results(rig)] == list(range(300))


async def test_a_cancel_races_with_claims(rig: Rig) -> None:
    keys = [await executor(rig) for _ in range(2)]
    calls = rig.store.calls
    for number in range(5):
        set_id = f"s{number}"
        await calls.create_set(set_id, DOUBLE, "cpu", count=900, args=args(900), now=rig.now)
        found = await asyncio.gather(
            say(rig, keys[0], want=300),
            calls.cancel_calls(set_id, now=rig.now),
            say(rig, keys[1], want=300),
        )
        for key, answer in ((keys[0], found[0]), (keys[1], found[2])):
            ends = [done(b.id, *range(len(b.calls))) for b in answer.batches]
            await say(rig, key, ends=ends)
            await say(rig, key, closing=Closing(facts=TaskFacts(exit_code=0)))
        view = await calls.read_set(set_id)
        assert (view.state, view.failed) == ("ended", 0)
        assert view.succeeded + view.cancelled == 900
    assert await calls.read_feeds() == []


async def test_cancel_of_a_whole_set(rig: Rig) -> None:
    key, calls = await executor(rig), rig.store.calls
    await calls.create_set("s1", DOUBLE, "cpu", args=args(600), now=rig.now)
    (batch,) = (await say(rig, key, want=3)).batches
    view = await calls.cancel_calls("s1", reason="not needed", now=rig.now)
    assert (view.state, view.count, view.cancelled) == ("open", 600, 597)
    answer = await say(rig, key, held=[batch.id], want=5)
    assert (answer.cancelled, answer.batches) == ([(batch.id, i) for i in range(3)], [])
    ends = [done(batch.id, 0), raised(batch.id, 1)]
    again = await say(rig, key, held=[batch.id], ends=ends)
    assert again.cancelled == [(batch.id, 2)]
    await say(rig, key, closing=Closing(facts=TaskFacts(exit_code=0)))
    assert await counts(rig) == (1, 0, 599, "ended")
    found = await calls.read_results("s1", first=1, limit=3)
    assert [(r.state, r.reason) for r in found] == [(3, "not needed")] * 3
    with pytest.raises(Conflict):
        await calls.append_calls("s1", 600, args(1), now=rig.now)
    assert (await calls.cancel_calls("s1", now=rig.now)).cancelled == 599


async def test_calls_that_come_after_a_cancel_never_begin(rig: Rig) -> None:
    key, calls = await executor(rig), rig.store.calls
    await calls.create_set("s1", DOUBLE, "cpu", count=5, args=args(2), now=rig.now)
    view = await calls.cancel_calls("s1", reason="enough", now=rig.now)
    assert (view.state, view.cancelled) == ("open", 2)
    view = await calls.append_calls("s1", 2, args(3), now=rig.now)
    assert (view.state, view.cancelled, view.submitted) == ("ended", 5, 5)
    assert (await say(rig, key, want=5)).batches == []
    found = await calls.read_results("s1", first=2)
    assert [(r.index, r.reason) for r in found] == [(n, "enough") for n in (2, 3, 4)]
    await calls.retry_calls("s1", now=rig.now)
    assert len(names(await say(rig, key, want=9))) == 5


async def test_cancel_of_some_calls(rig: Rig) -> None:
    key, calls = await executor(rig), rig.store.calls
    later = FunctionSpec(function="mytasks:double", retry=RetryFields(max_retries=3, retry_delay=9))
    await calls.create_set("s1", later, "cpu", count=8, args=args(8), now=rig.now)
    (batch,) = (await say(rig, key, want=3)).batches
    await say(rig, key, ends=[raised(batch.id, 0)], held=[batch.id])
    view = await calls.cancel_calls("s1", [0, 1, 4, 5, 7], reason="wrong input", now=rig.now)
    assert view.cancelled == 4
    assert await calls.find_due() is None
    answer = await say(rig, key, held=[batch.id], want=9)
    assert (answer.cancelled, names(answer)) == ([(batch.id, 1)], ["s1.3", "s1.6"])
    assert answer.cancel_reasons == ["wrong input"]
    other = answer.batches[0].id
    await say(rig, key, ends=[raised(batch.id, 1), done(batch.id, 2), done(other, 0, 1)])
    assert await counts(rig) == (3, 0, 5, "ended")
    cancelled = await calls.read_results("s1", states=[CallState.CANCELLED])
    assert [(r.index, r.reason) for r in cancelled] == [(i, "wrong input") for i in (0, 1, 4, 5, 7)]


async def test_a_hard_cancel_names_what_runs_and_its_neighbours_come_back_uncharged(
    rig: Rig,
) -> None:
    key, calls = await executor(rig), rig.store.calls
    await calls.create_set("s1", DOUBLE, "cpu", count=6, args=args(6), now=rig.now)
    (batch,) = (await say(rig, key, want=6)).batches
    await calls.cancel_calls("s1", [1], reason="first", now=rig.now)
    await calls.cancel_calls("s1", [1], reason="second", now=rig.now)
    await calls.cancel_calls("s1", [2], reason="deaf", hard=True, now=rig.now)
    answer = await say(rig, key, held=[batch.id], ends=[done(batch.id, 0)])
    assert (answer.cancelled, answer.killed) == ([(batch.id, 1), (batch.id, 2)], [(batch.id, 2)])
    facts = TaskFacts(signal=9)
    await say(rig, key, closing=Closing(batch=batch.id, position=2, facts=facts))
    assert await counts(rig) == (1, 0, 2, "open")
    ended = await calls.read_results("s1", states=[CallState.CANCELLED])
    assert [(r.index, r.reason) for r in ended] == [(1, "first"), (2, "deaf")]
    again = await say(rig, key, want=6)
    assert [(c.index, c.attempt) for b in again.batches for c in b.calls] == [
        (3, 1),
        (4, 1),
        (5, 1),
    ]
    assert again.killed == []


async def test_retry_of_what_failed_or_was_cancelled(rig: Rig) -> None:
    key, calls = await executor(rig), rig.store.calls
    never = FunctionSpec(function="mytasks:double")
    await calls.create_set("s1", never, "cpu", count=1200, args=args(1200), now=rig.now)
    (batch,) = (await say(rig, key, want=2)).batches
    await say(rig, key, ends=[raised(batch.id, 0), done(batch.id, 1)])
    await calls.cancel_calls("s1", now=rig.now)
    assert await counts(rig) == (1, 1, 1198, "ended")
    view = await calls.retry_calls("s1", [0, 1, 700], now=rig.now)
    assert (view.state, view.failed, view.cancelled) == ("open", 0, 1197)
    answer = await say(rig, key, want=9)
    assert [(c.index, c.attempt, c.args) for b in answer.batches for c in b.calls] == [
        (0, 2, "[0]"),
        (700, 1, "[700]"),
    ]
    await say(rig, key, ends=[done(answer.batches[0].id, 0, 1)])
    assert await counts(rig) == (3, 0, 1197, "ended")
    assert (await calls.retry_calls("s1", now=rig.now)).cancelled == 0
    assert len(names(await say(rig, key, want=1000))) == 1000
    assert len(await calls.read_failures("s1", 0)) == 1, "its chain stays"


async def test_what_an_executor_gives_back_is_handed_out_again_once_and_uncharged(rig: Rig) -> None:
    """CALLSET-3: in its place, also where it is told again, and an end of it counts no more."""
    one, two, calls = await executor(rig), await executor(rig), rig.store.calls
    await calls.create_set("s1", DOUBLE, "cpu", count=6, args=args(6), now=rig.now)
    (batch,) = (await say(rig, one, want=4)).batches
    await calls.cancel_calls("s1", [3], reason="not needed", now=rig.now)
    held = {"held": [batch.id], "returned": [(batch.id, 1)]}
    assert (await say(rig, one, **held)).ready_again
    assert not (await say(rig, one, **held)).ready_again
    assert names(await say(rig, two, want=9)) == ["s1.1", "s1.2", "s1.4", "s1.5"]
    late = await say(rig, one, **held, ends=[done(batch.id, 0, 2)])
    assert (late.recorded, late.dropped) == ([(batch.id, 0), (batch.id, 2)], [])
    assert await counts(rig) == (1, 0, 1, "open")
    assert (await say(rig, one, **held)).dropped == [batch.id]
    assert await calls.read_failures("s1", 2) == []


async def test_why_an_executor_takes_no_more_is_known_to_all(rig: Rig) -> None:
    key, calls = await executor(rig), rig.store.calls
    await calls.create_set("s1", DOUBLE, "cpu", count=6, args=args(6), now=rig.now)
    (batch,) = (await say(rig, key, want=4)).batches
    assert await calls.read_busy() == []
    held: dict[str, Any] = {"held": [batch.id], "returned": [(batch.id, 2)], "busy_batch": batch.id}
    await say(rig, key, **held, ends=[done(batch.id, 0)], busy="long")
    (long,) = await calls.read_busy()
    assert (long.call, long.waits_for, long.family) == ("s1.1", "", find_family(DOUBLE, "cpu"))
    assert (long.host_id, long.job_id, long.batch) == ("h1", key.job_id, batch.id)
    await say(rig, key, **held, busy="s9.4")
    assert [(b.call, b.waits_for) for b in await calls.read_busy()] == [("s1.1", "s9.4")]
    await say(rig, key, held=[batch.id])
    assert await calls.read_busy() == []


async def test_a_set_whose_client_went_away_is_closed_and_open_again_when_that_is_back(
    rig: Rig,
) -> None:
    key, calls = await executor(rig), rig.store.calls
    for set_id, given in (("s1", {}), ("s2", {"singles": True}), ("s3", {"count": 9})):
        await calls.create_set(set_id, DOUBLE, "cpu", args=args(2), now=rig.now, **given)
    await calls.create_set(
        "s4", DOUBLE, "cpu", origin=CallSetOrigin(run="r" * 20, node=0), now=rig.now
    )
    (batch,) = (await say(rig, key, want=4)).batches
    rig.tick(60)
    await calls.append_calls("s2", 2, [], now=rig.now)  # it says that it is there
    rig.tick(60)
    assert await calls.close_absent(90, now=rig.now) == ["s1"]
    assert await calls.close_absent(90, now=rig.now) == []
    view = await calls.read_set("s1")
    gone = "its client went away before it had said how many there are"
    assert (view.state, view.count, view.cut) == ("open", 2, gone), "its calls go on"
    await say(rig, key, ends=[done(batch.id, 0, 1)])
    assert (await calls.read_set("s1")).state == "ended"
    (event,) = [e for e in await rig.events() if e.kind.startswith("calls.")]
    assert (event.kind, event.data["cut"]) == ("calls.failed", gone)
    assert event.message.endswith(f"2 of 2 calls of mytasks:double succeeded, 0 failed, 0 were "
                                  f"cancelled; {gone}")  # fmt: skip
    view = await calls.append_calls("s1", 2, args(1, 2), now=rig.now)
    assert (view.state, view.count, view.submitted, view.cut) == ("open", None, 3, "")
    rig.tick(120)
    assert sorted(await calls.close_absent(90, now=rig.now)) == ["s1", "s2"]
    assert (await calls.read_set("s2")).cut == "", "nothing is missing of single calls"
    assert (await calls.append_calls("s1", 3, [], now=rig.now)).count is None


async def test_a_set_may_be_cut_short_by_its_client(rig: Rig) -> None:
    key, calls = await executor(rig), rig.store.calls
    await calls.create_set("s1", DOUBLE, "cpu", args=args(1), now=rig.now)
    (batch,) = (await say(rig, key, want=4)).batches
    await say(rig, key, ends=[done(batch.id, 0)])
    view = await calls.append_calls("s1", 1, [], count=1, cut="no row 2", now=rig.now)
    assert (view.state, view.cut) == ("ended", "no row 2")
    assert [e.kind for e in await rig.events() if e.kind.startswith("calls.")] == ["calls.failed"]


async def test_a_limit_that_its_function_names_ends_a_call_that_left_nothing(rig: Rig) -> None:
    """BUDGET-8: another attempt would end the same. A limit of the queue, and of loading, is another."""
    calls, spec = rig.store.calls, FunctionSpec(function="mytasks:slow", time_limit_seconds=2.0)
    trip = Trip(watchdog=Watchdog.TIME_LIMIT, exit_code=75, reason="it ran for 2 s")
    facts = TaskFacts(signal=9, trip=trip)
    cases: list[tuple[FunctionSpec, dict[str, Any], bool]] = [
        (spec, {}, True),
        (spec, {"step": 3}, False),
        (spec, {"loading": True}, False),
        (msgspec.structs.replace(spec, time_limit_seconds=None), {}, False),
    ]
    for number, (function, closing, fails) in enumerate(cases):
        key = await executor(rig)
        await calls.create_set(f"s{number}", function, "cpu", count=1, args=args(1), now=rig.now)
        (batch,) = (await say(rig, key, want=1, family=find_family(function, "cpu").name)).batches
        last = Closing(batch=batch.id, position=0, facts=facts, **closing)
        await say(rig, key, closing=last, family=find_family(function, "cpu").name)
        found = await calls.read_call(f"s{number}", 0)
        assert (found.state is CallState.FAILED) is fails, (number, found.reason)
        if fails:
            assert "which its submission names" in found.reason
        else:
            await calls.cancel_calls(f"s{number}", now=rig.now)


async def test_a_set_of_a_workflow_tells_its_end_once(rig: Rig) -> None:
    key = await executor(rig)
    origin = CallSetOrigin(run="r1", node=4, out_dir="/out/r1/it")
    create = rig.store.calls.create_set
    await create("s1", DOUBLE, "cpu", count=2, args=args(2), origin=origin, now=rig.now)
    (batch,) = (await say(rig, key, want=2)).batches
    assert [each.out_dir for each in batch.sets] == ["/out/r1/it"]
    await say(rig, key, ends=[done(batch.id, 0)], held=[batch.id])
    assert await outbox(rig) == []
    for _ in range(2):
        await say(rig, key, ends=[done(batch.id, 1)])
        assert await outbox(rig) == [("r1", 4, "call_set", "s1")]
    await create("s2", DOUBLE, "cpu", count=0, origin=origin, now=rig.now)
    assert len(await outbox(rig)) == 2, "a set without calls has ended too"


async def outbox(rig: Rig) -> list[tuple[str, int, str, str]]:
    posts = await rig.store.workflows.read_outbox()
    return [(post.run, post.node, post.kind, post.ref) for post in posts]


async def test_sets_are_listed_and_pruned(rig: Rig) -> None:
    key, calls = await executor(rig), rig.store.calls
    for i in range(4):
        spec = msgspec.structs.replace(DOUBLE, project="b" if i == 2 else "a")
        await calls.create_set(f"s{i}", spec, "cpu", count=1, args=args(1), now=rig.now)
    listed = await calls.list_sets()
    assert [view.id for view in listed] == ["s3", "s2", "s1", "s0"]
    assert [view.id for view in await calls.list_sets(before="s3", limit=2)] == ["s2", "s1"]
    assert [view.id for view in await calls.list_sets(project="b")] == ["s2"]
    family = find_family(msgspec.structs.replace(DOUBLE, project="a"), "cpu").name
    (batch,) = (await say(rig, key, family=family, want=2)).batches
    await say(rig, key, family=family, ends=[raised(batch.id, 0, invalid=True), done(batch.id, 1)])
    assert await calls.prune_sets(1.0, now=rig.tick(86_000)) == 0
    assert await calls.prune_sets(1.0, now=rig.tick(1000)) == 2
    assert [view.id for view in await calls.list_sets()] == ["s3", "s2"]


async def test_many_executors_in_one_exchange(rig: Rig) -> None:
    keys = [await executor(rig) for _ in range(3)]
    await rig.store.calls.create_set("s1", DOUBLE, "cpu", count=9, args=args(9), now=rig.now)

    async def all_say(reports: Sequence[ExecutorReport]) -> list[ExecutorTurned]:
        turns = [
            ExecutorTurn(
                host_id="h1", incarnation=rig.incarnations["h1"], family=FAMILY, report=report
            )
            for report in reports
        ]
        return await rig.store.calls.exchange(turns, now=rig.now)

    first = await all_say([ExecutorReport(key=key, want=2) for key in keys])
    assert [names(a) for a in first] == [["s1.0", "s1.1"], ["s1.2", "s1.3"], ["s1.4", "s1.5"]]
    ids = [answer.batches[0].id for answer in first]
    second = await all_say(
        [
            ExecutorReport(key=keys[0], ends=[done(ids[0], 0, 1)], want=2),
            ExecutorReport(key=keys[1], held=[ids[1]], closing=Closing(facts=TRIPPED)),
            ExecutorReport(key=keys[2], held=[ids[2]], ends=[raised(ids[2], 0)], want=0),
        ]
    )
    assert names(second[0]) == ["s1.2", "s1.3"], "what came back goes out again at once"
    assert second[1].batches == []
    assert await results(rig) == [(0, 1, "0"), (1, 1, "1")]


async def test_where_a_call_stands(rig: Rig) -> None:
    key, calls = await executor(rig), rig.store.calls
    later = FunctionSpec(function="mytasks:double", retry=RetryFields(max_retries=3, retry_delay=9))
    await calls.create_set("s0", later, "cpu", args=args(3), now=rig.now)
    await calls.create_set("s1", later, "cpu", args=args(600), now=rig.now)
    (batch,) = (await say(rig, key, want=5)).batches
    await say(rig, key, ends=[done(batch.id, 0, 1), raised(batch.id, 3)], held=[batch.id])
    ended = await calls.read_call("s0", 1)
    assert (ended.phase, ended.state, ended.value, ended.attempts) == ("ended", 1, "1", 1)
    running = await calls.read_call("s0", 2)
    assert (running.phase, running.executor, running.attempts) == ("running", key.job_id, 1)
    back = await calls.read_call("s1", 0)
    assert (back.phase, back.due_at, back.attempts) == (
        "backing_off",
        rig.now + timedelta(seconds=9),
        1,
    )
    for index, ahead in ((2, 0), (510, 508)):
        ready = await calls.read_call("s1", index)
        assert (ready.phase, ready.state, ready.ahead) == ("ready", CallState.PENDING, ahead)
    assert (ready.spec, ready.family) == (later, find_family(later, "cpu"))
    for unknown in (("s1", 600), ("s9", 0)):
        with pytest.raises(NotFound):
            await calls.read_call(*unknown)


class Chances:
    """A run of random requests, against what each call was seen to do."""

    def __init__(self, rig: Rig, seed: int) -> None:
        self.rig, self.chance = rig, random.Random(seed)
        self.keys: list[TaskKey] = []
        self.batches: dict[TaskKey, dict[int, list[str]]] = {}
        self.first_value: dict[str, str] = {}
        self.running: dict[str, int] = {}
        self.sizes = {"s0": 0, "s1": 0}
        self.specs = {
            "s0": msgspec.structs.replace(DOUBLE, model="red"),
            "s1": msgspec.structs.replace(DOUBLE, model="red", priority=60),
        }

    async def start(self) -> None:
        for set_id, spec in self.specs.items():
            await self.rig.store.calls.create_set(set_id, spec, "cpu", now=self.rig.now)
        self.keys = [await executor(self.rig) for _ in range(3)]
        self.batches = {key: {} for key in self.keys}

    async def step(self) -> None:
        self.rig.tick(1)
        act = self.chance.choices(
            [self.submit, self.exchange, self.close, self.cancel, self.retry, self.release],
            [2, 12, 1, 1, 1, 2],
        )[0]
        await act()

    async def submit(self) -> None:
        set_id = self.chance.choice(list(self.sizes))
        first, many = self.sizes[set_id], self.chance.randint(1, 12)
        first = max(0, first - self.chance.randint(0, 2))  # some repeat
        calls = self.rig.store.calls
        view = await calls.append_calls(set_id, first, args(many, first), now=self.rig.now)
        self.sizes[set_id] = max(self.sizes[set_id], first + many)
        assert view.submitted == self.sizes[set_id]

    async def exchange(self) -> None:
        key = self.chance.choice(self.keys)
        mine, ends = self.batches[key], []
        for number, names_ in mine.items():
            told = [p for p in range(len(names_)) if self.chance.random() < 0.4]
            for position in told:
                if self.chance.random() < 0.2:
                    ends.append(raised(number, position))
                else:
                    value = str(self.chance.random())
                    ends.append(done(number, position, value=value))
        given = [n for n in mine if self.chance.random() < 0.1]
        returned = [(n, self.chance.randint(0, len(mine[n]))) for n in given]
        want = self.chance.choice([0, 1, 5, 40])
        await self.report(key, ends=ends, want=want, returned=returned)

    async def report(self, key: TaskKey, **told: Any) -> None:
        held = list(self.batches[key])
        answer = await say(self.rig, key, held=held, **told)
        for batch in answer.batches:
            assert batch.id not in held
            orders = [f"{batch.sets[c.set].id}.{c.index}" for c in batch.calls]
            assert [c.args for c in batch.calls] == [f"[{c.index}]" for c in batch.calls]
            self.batches[key][batch.id] = orders
        for number in answer.dropped:
            del self.batches[key][number]

    async def close(self) -> None:
        key = self.chance.choice(self.keys)
        if not self.batches[key]:
            return
        number = self.chance.choice(list(self.batches[key]))
        position = self.chance.randint(-1, len(self.batches[key][number]) - 1)
        facts = self.chance.choice([TRIPPED, TaskFacts(signal=9), TaskFacts(lost="host_gone")])
        await self.report(key, closing=Closing(batch=number, position=position, facts=facts))
        self.batches[key].clear()

    async def cancel(self) -> None:
        set_id = self.chance.choice(list(self.sizes))
        indices = [i for i in range(self.sizes[set_id]) if self.chance.random() < 0.1]
        await self.rig.store.calls.cancel_calls(set_id, indices, now=self.rig.now)

    async def retry(self) -> None:
        set_id = self.chance.choice(list(self.sizes))
        indices = [i for i in range(self.sizes[set_id]) if self.chance.random() < 0.3]
        await self.rig.store.calls.retry_calls(set_id, indices, now=self.rig.now)

    async def release(self) -> None:
        self.rig.tick(60)
        await self.rig.sync()
        await self.rig.store.calls.release_due(now=self.rig.now)

    async def check(self) -> None:
        """CALLSET-1 and CALLSET-3: each call is in one place, and a result never changes."""
        for set_id, size in self.sizes.items():
            view = await self.rig.store.calls.read_set(set_id)
            ended = 0
            for index in range(size):
                found = await self.rig.store.calls.read_call(set_id, index)
                name = f"{set_id}.{index}"
                ended += found.phase == "ended"
                if found.state is CallState.SUCCEEDED:
                    assert self.first_value.setdefault(name, found.value) == found.value
                else:
                    assert name not in self.first_value
            assert ended == view.succeeded + view.failed + view.cancelled

    async def finish(self) -> None:
        """Run what is left to its end: nothing is lost."""
        calls = self.rig.store.calls
        for _ in range(60):
            await self.release()
            for key in self.keys:
                ends = [
                    done(number, *range(len(found))) for number, found in self.batches[key].items()
                ]
                await self.report(key, ends=ends, want=100)
        for set_id, size in self.sizes.items():
            view = await calls.append_calls(set_id, size, [], count=size, now=self.rig.now)
            assert (view.state, view.submitted) == ("ended", size)
        assert await calls.read_feeds() == []


@pytest.mark.parametrize("seed", range(4))
async def test_chance(rig: Rig, seed: int) -> None:
    run = Chances(rig, seed)
    await run.start()
    for number in range(120):
        await run.step()
        if number % 30 == 29:
            await run.check()
    await run.finish()
    await run.check()


def test_the_policy_of_a_function() -> None:
    found = default_policy("cpu", DOUBLE)
    assert isinstance(found, Policy)
    assert (found.retry.max_retries, found.retry.retry_delay) == (1, 0)


async def test_the_end_of_a_set_is_one_event(rig: Rig) -> None:
    key = await executor(rig)
    calls = rig.store.calls
    await calls.create_set("s1", DOUBLE, "cpu", count=3, args=args(3), now=rig.now)
    (batch,) = (await say(rig, key, want=2)).batches
    ends = [CallEnd(position=i, error=False, seconds=0.1, value="1") for i in (0, 1)]
    await say(rig, key, ends=[BatchEnds(batch=batch.id, ends=ends)])
    assert await set_ends(rig) == []
    await calls.cancel_calls("s1", [2], reason="enough", now=rig.now)
    message = "2 of 3 calls of mytasks:double succeeded, 0 failed, 1 were cancelled"
    assert await set_ends(rig) == [("calls.cancelled", message)]
    await calls.cancel_calls("s1", [2], now=rig.now)
    assert len(await set_ends(rig)) == 1
    await calls.retry_calls("s1", now=rig.now)
    await calls.cancel_calls("s1", now=rig.now)
    assert len(await set_ends(rig)) == 2
    told = [
        e.message for e in await rig.events() if e.kind in ("calls.cancelling", "calls.retried")
    ]
    assert [text.partition(" of ")[0] for text in told] == ["1 call", "all calls", "all calls"]
    await calls.create_set("s2", DOUBLE, "cpu", count=0, now=rig.now)
    (*_, (kind, _)) = await set_ends(rig)
    assert kind == "calls.succeeded"


async def set_ends(rig: Rig) -> list[tuple[str, str]]:
    events = await rig.store.events.read_events(None, limit=1000)
    changes = ("calls.cancelling", "calls.retried")
    found = [e for e in events if e.kind.startswith("calls.") and e.kind not in changes]
    return [(e.kind, e.message) for e in found]


async def test_outputs_are_found_in_the_logs_of_a_sets_own_executors(rig: Rig) -> None:
    await rig.host("h1", slots=2)
    set_id, other = "06ch2v8wq1m4kz7d9x3t", "06ch2v8wq1m4kz7d9x3v"
    for name in (set_id, other):
        await rig.store.calls.create_set(name, DOUBLE, "cpu", args=args(9), now=rig.now)
    job_id, key = await rig.running(executor=FAMILY)
    _, stranger = await rig.running(executor="another")

    async def put(at: int, text: str, *, key: TaskKey = key, stream: str = "stdout") -> int:
        data = text.encode()
        append = LogAppend(
            key=key,
            stream=stream,
            offset=at,
            data=data,
            ended=False,
            keep_bytes=80_000,
            marked=True,
        )
        await rig.store.logs.append_logs("h1", [append])
        return at + len(data)

    async def found(index: int, attempt: int = 1) -> list[tuple[str, str, int, int]]:
        outputs = await rig.store.calls.find_outputs(set_id, index, attempt)
        return [(o.job_id, o.stream, o.start, o.end) for o in outputs]

    first = make_mark(set_id, 1, 1) + "one\n" + make_mark(set_id, 3, 1)
    text = "loading\n" + first + "three\n" + make_mark(other, 2, 1) + "theirs\n"
    end = await put(0, text)
    await put(0, text)  # again
    await put(0, make_mark(set_id, 3, 1) + "err\n", stream="stderr")
    await put(0, make_mark(set_id, 3, 1) + "made up\n", key=stranger)
    span = (job_id, "stdout", 8, 8 + len(first))
    assert await found(1) == [span]
    assert await found(3) == [span, (job_id, "stderr", 0, len(make_mark(set_id, 3, 1)))]
    assert (await found(0), await found(4), await found(3, 2)) == ([], [], [])
    end = await put(end, make_mark(set_id, 3, 2) + "again\n")
    assert len(await found(3, 2)) == 1
    for number in range(40):  # what is between head and tail is kept neither here nor there
        end = await put(end, make_mark(set_id, 5, number + 1) + 7_000 * "x" + "\n")
    assert [len(await found(5, number + 1)) for number in (0, 20, 39)] == [1, 0, 1]
    with pytest.raises(NotFound):
        await rig.store.calls.find_outputs("s0", 0, 1)
