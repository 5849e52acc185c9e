"""INBOX-3: a wait that the script has dropped takes no message with it. And no message is dropped
without a word (INBOX-2)."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
from collections.abc import Callable
from typing import Any

import pytest

from holdfast.errors import ValidationError
from holdfast.supervisor import CancelledError, Context, Future, as_completed, wait
from holdfast.supervisor.futures import inbox as inbox_module
from holdfast.supervisor.futures.inbox import Gather, Inbox, receive_one
from holdfast.supervisor.line.values import encode_value
from holdfast.supervisor.rosters.failures import ProcessEnded
from tests.system.supervisor.rig import PATIENCE, Managers, attach, python
from tests.waits import in_time, stretch, wait_until


def receive(inbox: Inbox, accept: Callable[[Any], Any] | None = None) -> Future[Any]:
    return receive_one(inbox, accept, "a message", "p0")


def put(inbox: Inbox, *values: object) -> None:
    for value in values:
        inbox.add_part(encode_value(value), 0, True)


def take(inbox: Inbox) -> Any:
    """What waits first."""
    return receive(inbox).result(0)


def test_a_wait_that_timed_out_takes_nothing() -> None:
    inbox = Inbox()
    for _ in range(3):
        with pytest.raises(TimeoutError):
            receive(inbox).result(0)
    put(inbox, "a")
    assert receive(inbox).result(0) == "a"


def test_a_wait_that_is_kept_or_listened_to_still_takes() -> None:
    inbox = Inbox()
    seen: list[Any] = []
    receive(inbox).add_done_callback(lambda future: seen.append(future.result()))
    kept = receive(inbox)
    with pytest.raises(TimeoutError):
        kept.result(0)
    gc.collect()
    put(inbox, "a", "b", "c")
    wait_until(lambda: seen == ["a"], what="the callback")
    assert kept.result(0) == "b"
    assert receive(inbox).result(0) == "c"


def test_the_ways_to_wait_for_many_keep_what_they_wait_for() -> None:
    inbox = Inbox()
    stream = as_completed([receive(inbox), receive(inbox)], timeout=stretch(20))
    gc.collect()
    put(inbox, 1, 2, 3)
    assert [future.result() for future in stream] == [1, 2]
    assert wait([receive(inbox)], timeout=stretch(20)).done.pop().result() == 3


def test_a_message_that_nobody_looked_at_waits_for_the_next() -> None:
    """It came for a future that was dropped, or in the last instant of a timeout."""
    inbox = Inbox()
    future = receive(inbox)
    put(inbox, "a", "b")
    assert future.done()
    del future
    assert [take(inbox), take(inbox)] == ["a", "b"]


@pytest.mark.parametrize("order", [[0, 1, 2, 3, 4], [4, 3, 2, 1, 0], [2, 0, 4, 1, 3]])
def test_messages_that_nobody_looked_at_come_back_in_their_order(order: list[int]) -> None:
    """INBOX-4: whichever was dropped first; one of them had been looked at, and one came back
    earlier and was taken again."""
    inbox = Inbox()
    futures = {index: receive(inbox) for index in range(6)}
    put(inbox, *range(9))
    assert futures.pop(5).result(0) == 5
    for index in order:
        del futures[index]
    assert take(inbox) == 0
    again = receive(inbox)
    assert again.done()
    del again
    assert [take(inbox) for _ in range(7)] == [1, 2, 3, 4, 6, 7, 8]


def test_waits_that_are_over_are_thrown_out() -> None:
    inbox = Inbox()
    kept = receive(inbox, lambda message: message == "mine")
    for _ in range(10_000):
        receive(inbox, lambda message: True)
    assert inbox._waits is not None
    assert len(inbox._waits) < 50
    put(inbox, "other", "mine")
    assert kept.result(0) == "mine"
    assert receive(inbox).result(0) == "other"


def test_a_thousand_filters_that_raise_lose_nothing() -> None:
    inbox = Inbox()
    raising = [receive(inbox, lambda message: message["x"]) for _ in range(3000)]
    put(inbox, 5)
    assert all(isinstance(future.exception(0), TypeError) for future in raising)
    assert receive(inbox).result(0) == 5


def test_an_await_that_is_cancelled_in_the_last_instant_gives_the_message_back() -> None:
    """It had come, and the task that awaited it was cancelled before it ran again."""

    async def run(turns: int) -> Any:
        inbox = Inbox()

        async def wait_for_one() -> Any:
            return await receive(inbox)

        task = asyncio.ensure_future(wait_for_one())
        await asyncio.sleep(0)
        put(inbox, "a")
        for _ in range(turns):  # how far the word of it has come by then
            await asyncio.sleep(0)
        if task.done():
            return task.result()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return await in_time(receive(inbox), 20)

    for turns in range(6):
        assert asyncio.run(run(turns)) == "a"


def test_a_timeout_of_asyncio_loses_nothing_under_fire() -> None:
    inbox = Inbox()
    count = 400

    async def run() -> list[Any]:
        got: list[Any] = []
        while len(got) < count:
            try:
                got.append(await asyncio.wait_for(receive(inbox), 0.0005))
            except TimeoutError:
                continue
        return got

    def feed() -> None:
        for number in range(count):
            put(inbox, number)
            threading.Event().wait(0.0005)

    thread = threading.Thread(target=feed)
    thread.start()
    got = asyncio.run(in_time(run(), 60))
    thread.join()
    assert sorted(got) == list(range(count))


def test_a_coroutine_that_the_garbage_collector_closes_takes_no_lock_and_no_message() -> None:
    """It was suspended in its await, and the collector finds it in a cycle in the thread that needs
    memory next: the bus's, which holds the lock."""
    inbox = Inbox()

    async def wait_for_one() -> Any:
        return await receive(inbox, lambda message: message != "collect")

    async def drop_one() -> None:
        coroutine = wait_for_one()
        cycle: list[object] = [coroutine]
        cycle.append(cycle)
        coroutine.send(None)

    def collect(message: Any) -> bool:
        gc.collect()
        return bool(message == "collect")

    asyncio.run(drop_one())
    collecting = receive(inbox, collect)
    thread = threading.Thread(target=put, args=(inbox, "collect", "for the next"), daemon=True)
    thread.start()
    thread.join(PATIENCE)
    assert not thread.is_alive(), "it waits for the lock that it has"
    assert collecting.result(0) == "collect"
    assert take(inbox) == "for the next"


def test_a_coroutine_that_is_closed_gives_its_message_back_before_the_next_is_read() -> None:
    inbox = Inbox()

    async def wait_for_one() -> Any:
        return await receive(inbox)

    async def close_one() -> None:
        coroutine = wait_for_one()
        coroutine.send(None)
        put(inbox, "a", "b")
        coroutine.close()

    asyncio.run(close_one())
    assert [take(inbox), take(inbox)] == ["a", "b"]


@pytest.mark.parametrize("waiting", [True, False])
def test_a_filter_that_raises_loses_no_message_whatever_it_raises(waiting: bool) -> None:
    """INBOX-1, also where it raises what a message raises that cannot be read."""
    inbox = Inbox()

    def refuse(message: Any) -> bool:
        raise ValidationError(f"{message} is of no use")

    future = receive(inbox, refuse) if waiting else None
    put(inbox, "a")
    future = future or receive(inbox, refuse)
    assert isinstance(future.exception(0), ValidationError)
    assert take(inbox) == "a"


UNREADABLE = b"\xc1"  # a byte that msgpack never uses


@pytest.mark.parametrize("waiting", [True, False])
def test_what_cannot_be_read_is_told_once_and_holds_up_nothing(waiting: bool) -> None:
    """The message goes to the oldest wait that the script still has, the next one to the wait
    behind it."""
    inbox = Inbox()
    receive(inbox)  # dropped
    cancelled = receive(inbox)
    cancelled.cancel()
    told, behind = (receive(inbox), receive(inbox)) if waiting else (None, None)
    inbox.add_part(UNREADABLE, 0, True)
    put(inbox, "a", "b")
    told, behind = told or receive(inbox), behind or receive(inbox)
    with pytest.raises(ValidationError, match="cannot be read"):
        told.result(0)
    assert behind.result(0) == "a"
    assert take(inbox) == "b"


def test_a_gather_that_gets_what_cannot_be_read_fails_and_loses_nothing_of_the_others() -> None:
    inboxes = [Inbox(index) for index in range(3)]
    gather = begin_gather(inboxes)
    put(inboxes[0], "a0", "a1")
    inboxes[1].add_part(UNREADABLE, 0, True)
    with pytest.raises(ValidationError, match="cannot be read"):
        gather.result(0)
    put(inboxes[1], "b0")
    put(inboxes[2], "c0")
    assert [take(inboxes[index]) for index in (0, 0, 1, 2)] == ["a0", "a1", "b0", "c0"]


def test_gathers_of_more_than_the_lock_is_held_for_take_each_message_once() -> None:
    """Some inboxes have a message or an older wait when it begins, some neither: whichever way, the
    older wait is first."""
    count = 3 * 256 + 7
    inboxes = [Inbox(index) for index in range(count)]
    older = {index: receive(inboxes[index]) for index in range(0, count, 5)}
    for index in range(0, count, 3):
        put(inboxes[index], ["first", index])  # a wait, where there is one, gets it
    one, two = begin_gather(inboxes), begin_gather(inboxes)
    for word in ("second", "third", "fourth"):
        for index, inbox in enumerate(inboxes):
            put(inbox, [word, index])
    heard: list[list[str]] = [[] for _ in inboxes]
    for index, future in older.items():
        heard[index].append(future.result(0)[0])
    for gather in (one, two):
        values = gather.result(0)
        assert [value[1] for value in values] == list(range(count))
        for index, value in enumerate(values):
            heard[index].append(value[0])
    for index, inbox in enumerate(inboxes):
        while len(inbox):
            heard[index].append(take(inbox)[0])
        put_in = ["first"] * (index % 3 == 0) + ["second", "third", "fourth"]
        assert heard[index] == put_in, index


def test_a_gather_that_begins_under_fire_loses_nothing_and_doubles_nothing() -> None:
    """Messages come, processes end and gathers are cancelled while others begin."""
    count, words = 600, 40
    inboxes = [Inbox(index) for index in range(count)]
    got: list[list[int]] = [[] for _ in inboxes]

    def feed() -> None:
        for word in range(words):
            for inbox in inboxes:
                put(inbox, word)

    thread = threading.Thread(target=feed)
    thread.start()
    turn = 0
    while thread.is_alive() or min(len(inbox) for inbox in inboxes):
        turn += 1
        gather = begin_gather(inboxes)
        if turn % 3 == 0:
            gather.cancel()
        try:
            values = gather.result(0 if turn % 3 == 1 else 0.01)
        except (TimeoutError, CancelledError):
            del gather
            continue
        for index, value in enumerate(values):
            got[index].append(value)
    thread.join()
    for index, inbox in enumerate(inboxes):
        for _ in range(words - len(got[index])):
            got[index].append(take(inbox))
    assert got == [list(range(words))] * count


def begin_gather(inboxes: list[Inbox]) -> Future[list[Any]]:
    return Gather(inboxes, None).begin("a message each", "the group")


@pytest.mark.parametrize("how", ["times out", "is cancelled", "fails", "is not looked at"])
def test_a_gather_that_comes_to_nothing_gives_back_what_it_had(how: str) -> None:
    inboxes = [Inbox(index) for index in range(3)]
    gather = begin_gather(inboxes)
    put(inboxes[0], "a0", "a1")
    put(inboxes[1], "b0")
    if how == "times out":
        with pytest.raises(TimeoutError):
            gather.result(0)
        del gather
    elif how == "is cancelled":
        assert gather.cancel()
        with pytest.raises(CancelledError):
            gather.result(0)
    elif how == "fails":
        inboxes[2].end(ProcessEnded("gone"))
        assert isinstance(gather.exception(0), ProcessEnded)
    else:
        put(inboxes[2], "c0")
        assert gather.done()
        del gather
        assert take(inboxes[2]) == "c0"
    assert [take(inboxes[0]), take(inboxes[0]), take(inboxes[1])] == ["a0", "a1", "b0"]


def test_an_error_that_many_raise_does_not_grow() -> None:
    future: Future[int] = Future()
    future.set_exception(ProcessEnded("gone"))
    depths = set()
    for _ in range(5):
        with pytest.raises(ProcessEnded) as caught:
            future.result()
        depths.add(len(list(caught.traceback)))
    assert len(depths) == 1


def test_more_may_be_added_by_another_thread_while_one_waits_and_logs(
    caplog: pytest.LogCaptureFixture,
) -> None:
    first: Future[int] = Future("first")
    stream = as_completed([first], timeout=60, log_interval=0.0001)
    more: list[Future[int]] = [Future(f"n{n}") for n in range(3000)]

    def grow() -> None:
        for future in more:
            stream.add(future)
        for future in [first, *more]:
            future.set_result(1)

    with caplog.at_level(logging.INFO, "holdfast.supervisor"):
        thread = threading.Thread(target=grow)
        thread.start()
        assert len(list(stream)) == 3001
        thread.join()


FLOOD = """
import sys
from holdfast.supervisor import get_message_queue
queue = get_message_queue()
for number in range(int(sys.argv[1])):
    queue.send(number)
"""
DEAF = """
import time
import holdfast.supervisor.futures.inbox as inbox
inbox.MAX_WAITING_MESSAGES = 10
from holdfast.supervisor import get_message_queue
queue = get_message_queue()
queue.send("deaf")
while queue._inbox.dropped < 90: time.sleep(0.01)
queue.send(len(queue._inbox))
time.sleep(6000)
"""


@pytest.mark.slow
def test_what_is_dropped_is_counted_and_told(
    ctx: Context,
    managers: Managers,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Any,
) -> None:
    """INBOX-2, in the script and in the process, also where logging is off."""
    monkeypatch.setattr(inbox_module, "MAX_WAITING_MESSAGES", 10)
    hosts, _ = attach(ctx, managers, 1)
    ctx.log_format = str(tmp_path / "{name}.txt")
    (process,) = ctx.create_process_group(hosts, python(FLOOD, "100"))
    assert process.returncode().result(PATIENCE) == 0
    assert ctx.status().messages_dropped == 90
    assert "holdfast_supervisor_messages_dropped_total 90" in ctx.render_metrics()
    assert [process.recv().result(0) for _ in range(10)] == list(range(90, 100))
    said = wait_until(
        lambda: [r for r in caplog.records if "messages dropped" in r.getMessage()], PATIENCE
    )
    assert said[0].levelno == logging.WARNING
    (deaf,) = ctx.create_process_group(hosts, python(DEAF), name="deaf")
    assert deaf.recv().result(PATIENCE) == "deaf"
    for number in range(100):
        deaf.send(number)
    assert deaf.recv().result(PATIENCE) == 10
    assert "messages were dropped so far" in (tmp_path / "deaf.txt").read_text()


@pytest.mark.slow
def test_a_message_that_came_too_late_for_its_wait_is_not_lost(
    ctx: Context, managers: Managers
) -> None:
    hosts, _ = attach(ctx, managers, 1)
    code = "from holdfast.supervisor import get_message_queue as q\nq().recv()\nq().send('late')"
    (process,) = ctx.create_process_group(hosts, python(code))
    with pytest.raises(TimeoutError):
        process.recv().result(0.01)
    process.send("go")
    assert process.recv().result(PATIENCE) == "late"
