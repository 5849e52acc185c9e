"""INBOX-3: what nobody has, or looks at, any more takes no message with it. And nothing is dropped without a word (INBOX-2)."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
from collections.abc import Callable
from typing import Any

import pytest

from holdfast.supervisor import CancelledError, Context, Future, as_completed, wait
from holdfast.supervisor.failures import ProcessEnded
from holdfast.supervisor.inbox import Gather, Inbox, receive_one
from holdfast.supervisor.values import encode_value
from tests.proxy import wait_until
from tests.supervisor.rig import PATIENCE, Managers, attach, python


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
    stream = as_completed([receive(inbox), receive(inbox)], timeout=20)
    gc.collect()
    put(inbox, 1, 2, 3)
    assert [future.result() for future in stream] == [1, 2]
    assert wait([receive(inbox)], timeout=20).done.pop().result() == 3


def test_a_message_that_nobody_looked_at_waits_for_the_next() -> None:
    """It came for a future that was dropped, or in the last instant of a timeout."""
    inbox = Inbox()
    future = receive(inbox)
    put(inbox, "a", "b")
    assert future.done()
    del future
    assert [take(inbox), take(inbox)] == ["a", "b"]


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
        return await asyncio.wait_for(receive(inbox), 20)

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
    got = asyncio.run(asyncio.wait_for(run(), 60))
    thread.join()
    assert sorted(got) == list(range(count))


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


def test_more_may_be_added_by_another_thread_while_one_waits_and_logs(caplog: pytest.LogCaptureFixture) -> None:
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
import holdfast.supervisor.inbox as inbox
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
    ctx: Context, managers: Managers, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Any
) -> None:
    """INBOX-2, in the script and in the process: also to whoever lets nothing be logged."""
    monkeypatch.setattr("holdfast.supervisor.inbox.MAX_WAITING_MESSAGES", 10)
    hosts, _ = attach(ctx, managers, 1)
    ctx.log_format = str(tmp_path / "{name}.txt")
    (process,) = ctx.create_process_group(hosts, python(FLOOD, "100"))
    assert process.returncode().result(PATIENCE) == 0
    assert ctx.status().messages_dropped == 90
    assert "holdfast_supervisor_messages_dropped_total 90" in ctx.render_metrics()
    assert [process.recv().result(0) for _ in range(10)] == list(range(90, 100))
    said = wait_until(lambda: [r for r in caplog.records if "messages dropped" in r.getMessage()], PATIENCE)
    assert said[0].levelno == logging.WARNING
    (deaf,) = ctx.create_process_group(hosts, python(DEAF), name="deaf")
    assert deaf.recv().result(PATIENCE) == "deaf"
    for number in range(100):
        deaf.send(number)
    assert deaf.recv().result(PATIENCE) == 10
    assert "messages were dropped so far" in (tmp_path / "deaf.txt").read_text()


@pytest.mark.slow
def test_a_message_that_came_too_late_for_its_wait_is_not_lost(ctx: Context, managers: Managers) -> None:
    hosts, _ = attach(ctx, managers, 1)
    code = "from holdfast.supervisor import get_message_queue as q\nq().recv()\nq().send('late')"
    (process,) = ctx.create_process_group(hosts, python(code))
    with pytest.raises(TimeoutError):
        process.recv().result(0.01)
    process.send("go")
    assert process.recv().result(PATIENCE) == "late"
