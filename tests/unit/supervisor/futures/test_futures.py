"""Futures and the ways to wait for many of them, without any supervisor."""

from __future__ import annotations

import asyncio
import itertools
import logging
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.supervisor import (
    ALL_COMPLETED,
    FIRST_COMPLETED,
    FIRST_EXCEPTION,
    CancelledError,
    Future,
    as_completed,
    wait,
)
from holdfast.supervisor.futures import future as futures
from holdfast.supervisor.futures import inbox as inbox_module
from holdfast.supervisor.futures import waits
from holdfast.supervisor.futures.inbox import Filter, Inbox, receive_one
from holdfast.supervisor.line.values import encode_value
from holdfast.supervisor.rosters.failures import ProcessEnded
from tests.waits import in_time, wait_until


def later(action: Any, *arguments: Any) -> threading.Thread:
    """Run it in another thread."""
    thread = threading.Thread(target=action, args=arguments)
    thread.start()
    return thread


def test_it_is_settled_once() -> None:
    future: Future[int] = Future("pid", "p0 on h1")
    assert not future.done()
    with pytest.raises(TimeoutError, match="pid of p0 on h1 did not come within 0 s"):
        future.result(0)
    assert future.set_result(3)
    assert not future.set_result(4)
    assert not future.set_exception(ValueError())
    assert not future.cancel()
    assert (future.result(), future.exception(), future.cancelled()) == (3, None, False)
    failed: Future[int] = Future()
    failed.set_exception(ValueError("x"))
    assert isinstance(failed.exception(), ValueError)
    with pytest.raises(ValueError, match="x"):
        failed.result()


def test_a_cancelled_one_is_not_settled_any_more() -> None:
    future: Future[int] = Future()
    assert future.cancel()
    assert not future.set_result(1)
    with pytest.raises(CancelledError):
        future.result()
    with pytest.raises(CancelledError):
        future.exception()


def test_callbacks_run_in_order_apart_and_survive_each_other() -> None:
    future: Future[int] = Future()
    seen: list[Any] = []
    future.add_done_callback(lambda found: seen.append(found.result()))
    future.add_done_callback(lambda found: 1 / 0)
    future.add_done_callback(lambda found: seen.append(threading.current_thread().name))
    future.set_result(5)
    future.add_done_callback(lambda found: seen.append("late"))
    wait_until(lambda: len(seen) == 3)
    assert seen == [5, "holdfast-callbacks", "late"]


def test_callbacks_come_also_where_python_starts_no_thread_any_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As at exit under Python 3.12: a failure there broke off the bus's work for all other
    hosts."""
    monkeypatch.setattr(futures, "_callbacks", futures.Callbacks())
    future: Future[int] = Future()
    seen: list[Any] = []
    future.add_done_callback(lambda found: seen.append(found.result()))

    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    future.set_result(5)
    wait_until(lambda: seen == [5])
    with pytest.raises(RuntimeError):
        futures.Callbacks().begin()


def test_many_threads_wait_for_one() -> None:
    future: Future[int] = Future()
    got: list[int] = []
    threads = [later(lambda: got.append(future.result(20))) for _ in range(32)]
    future.set_result(7)
    for thread in threads:
        thread.join(20)
    assert got == [7] * 32


def test_it_is_awaited_from_any_loop() -> None:
    future: Future[int] = Future()

    async def take() -> int:
        return await future

    async def both() -> list[int]:
        waits = [asyncio.ensure_future(take()) for _ in range(3)]
        await asyncio.sleep(0)
        later(future.set_result, 9)
        return await in_time(asyncio.gather(*waits), 20)

    assert asyncio.run(both()) == [9, 9, 9]
    assert asyncio.run(take()) == 9


def test_an_error_and_a_cancel_reach_the_loop() -> None:
    async def check() -> None:
        failing: Future[int] = Future()
        task = asyncio.ensure_future(failing._as_asyncio())
        await asyncio.sleep(0)
        later(failing.set_exception, ProcessEnded("gone"))
        with pytest.raises(ProcessEnded):
            await in_time(task, 20)
        given_up: Future[int] = Future()
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(given_up, 0.01)
        assert given_up.cancelled()

    asyncio.run(check())


def test_nobody_cancels_what_others_wait_for() -> None:
    """A returncode is one future for all: a wait that timed out must not take it from the next."""
    shared: Future[int] = Future("returncode", shared=True)

    async def give_up() -> None:
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(shared, 0.01)

    asyncio.run(give_up())
    assert not shared.cancel()
    assert not shared._hooks, "a wait that was given up still listens"
    assert shared.set_result(3)
    assert shared.result(0) == 3


def test_as_completed_yields_in_order_and_takes_more() -> None:
    futures: list[Future[int]] = [Future(str(n)) for n in range(4)]
    futures[2].set_result(2)
    stream = as_completed(futures[:3], timeout=20)
    assert next(stream) is futures[2]
    stream.add(futures[3])
    stream.update(futures[3:])
    later(futures[3].set_result, 3)
    assert next(stream) is futures[3]
    assert len(stream) == 2
    futures[0].set_exception(ValueError())
    futures[1].cancel()
    assert set(stream) == {futures[0], futures[1]}
    assert list(as_completed([])) == []


def test_as_completed_says_what_is_missing(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its clock, which here goes a sixteenth of a second further with each look."""
    looks = itertools.count()
    monkeypatch.setattr(waits, "time", SimpleNamespace(monotonic=lambda: next(looks) / 16))
    futures: list[Future[int]] = [Future("returncode", f"p{n} on h{n}") for n in range(7)]
    futures[3].set_result(0)
    with (
        caplog.at_level(logging.INFO, "holdfast.supervisor"),
        pytest.raises(TimeoutError, match="6 not done: returncode of"),
    ):
        for _ in as_completed(futures, timeout=4 / 16, log_interval=1 / 16):
            pass
    waiting = [record.getMessage() for record in caplog.records]
    assert len(waiting) == 3
    assert (
        "6 not done: returncode of p0 on h0, p1 on h1, p2 on h2, p4 on h4, p5 on h5 and 1 more"
        in waiting[0]
    )


def test_as_completed_in_a_loop() -> None:
    async def run() -> list[int]:
        futures: list[Future[int]] = [Future() for _ in range(50)]
        stream = as_completed(futures, timeout=20)
        later(lambda: [future.set_result(n) for n, future in enumerate(futures)])
        found = [future.result() async for future in stream]
        with pytest.raises(TimeoutError):
            async for _ in as_completed([Future("x")], timeout=0.05):
                pass
        return found

    assert asyncio.run(run()) == list(range(50))


@pytest.mark.parametrize("return_when", [ALL_COMPLETED, FIRST_COMPLETED, FIRST_EXCEPTION])
def test_wait_returns_the_partial_result_at_its_timeout(return_when: str) -> None:
    done, never = Future[int](), Future[int]()
    done.set_result(1)
    began = time.monotonic()
    found = wait(
        [done, never],
        timeout=0.1 if return_when != FIRST_COMPLETED else 60,
        return_when=return_when,
    )
    assert (found.done, found.not_done) == ({done}, {never})
    assert time.monotonic() - began < 50
    assert never._hooks in (None, []), "a wait that is over still listens"


def test_wait_for_the_first_exception() -> None:
    futures = [Future[int]() for _ in range(3)]
    futures[0].set_result(1)
    later(futures[1].set_exception, ValueError())
    found = wait(futures, timeout=20, return_when=FIRST_EXCEPTION)
    assert found.not_done == {futures[2]}
    with pytest.raises(ValueError, match="return_when"):
        wait(futures, return_when="SOME")
    assert wait([]) == (set(), set())


def test_the_inbox_is_bounded_and_says_what_it_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """INBOX-2."""
    monkeypatch.setattr(inbox_module, "MAX_WAITING_MESSAGES", 3)
    inbox = Inbox()
    for n in range(5):
        inbox.add_part(encode_value(n), 0, True)
    assert inbox.dropped == 2
    assert [receive_one(inbox, None, "", "").result(0) for _ in range(3)] == [2, 3, 4]


def test_the_inbox_gives_each_message_to_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """INBOX-1, with a wait that was cancelled, one whose filter refuses, and one whose filter
    raises."""
    inbox = Inbox()
    cancelled = receive_one(inbox, None, "", "")
    raising = receive_one(inbox, lambda m: m["x"], "", "")
    picky = receive_one(inbox, lambda m: m == "b", "", "")
    anything = receive_one(inbox, None, "", "")
    cancelled.cancel()
    inbox.add_part(encode_value("a"), 0, True)
    assert isinstance(raising.exception(0), TypeError)
    assert anything.result(0) == "a"
    inbox.add_part(encode_value("c"), 0, True)
    inbox.add_part(encode_value("b"), 0, True)
    assert picky.result(0) == "b"
    inbox.end(ProcessEnded("over"))
    assert receive_one(inbox, None, "", "").result(0) == "c"  # what had come is still there
    assert isinstance(receive_one(inbox, None, "", "").exception(0), ProcessEnded)


def test_a_message_refused_in_the_last_instant_goes_to_the_next() -> None:
    """INBOX-1: between the match and the handing over the wait may have been cancelled."""

    class Gone:
        accept: Filter | None = None
        over = False

        def take_message(self, index: int, value: Any, turn: int = 0) -> bool:
            return False

        def fail(self, error: BaseException) -> None:
            raise AssertionError

    inbox = Inbox()
    inbox.wait(Gone())
    second = receive_one(inbox, None, "", "")
    inbox.wait(Gone())
    inbox.add_part(encode_value("a"), 0, True)
    inbox.add_part(encode_value("b"), 0, True)
    assert second.result(0) == "a"
    assert receive_one(inbox, None, "", "").result(0) == "b"
