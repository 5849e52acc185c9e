"""The sync loop's pace: an outage is tried again for ever, at whichever moment a retry falls due
(SYNC-2)."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator

import pytest

from holdfast.agent.uplink import sync
from holdfast.agent.uplink.sync_wish import SyncWish
from holdfast.core.gpus import GpuTelemetry
from holdfast.core.host_faults import Hindrance
from holdfast.core.ids import TaskKey
from holdfast.core.readings.usage import RankUsage
from holdfast.errors import HoldfastError, Unavailable
from holdfast.wire.agent import LaunchOrder, Renewed, SyncAnswer, SyncRequest, TaskReport
from tests.waits import within


class DeadController:
    """Every call is refused at once."""

    def __init__(self) -> None:
        self.called = 0

    async def sync(self, request: SyncRequest) -> SyncAnswer:
        """Refuse, as a port without a listener does."""
        self.called += 1
        raise Unavailable("connection refused")


class Taker:
    """A host without tasks."""

    def make_reports(self) -> list[TaskReport]:
        """None."""
        return []

    def list_faults(self) -> list[Hindrance]:
        """None."""
        return []

    def say_strain(self) -> str:
        return ""

    def show_gpus(self) -> list[GpuTelemetry]:
        """None."""
        return []

    def take_ranks(self) -> list[RankUsage]:
        """None."""
        return []

    def take_answer(self, answer: SyncAnswer, *, started_at: float, newest: bool) -> bool:
        """No answer ever comes."""
        raise AssertionError("a dead controller answered")

    async def mend(self, error: HoldfastError) -> None:
        """No refusal ever comes."""
        raise AssertionError(error)


async def test_a_retry_that_falls_due_between_two_readings_of_the_clock_is_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A process may be held up between any two lines: a retry that falls due just there must still
    be waited for."""
    # The first retry is due 0.15 to 0.25 s after the failure: later than the next reading, before
    # the one after it.
    readings = itertools.count()
    monkeypatch.setattr(sync, "read_boottime", lambda: 1000.0 + next(readings) * 0.14)
    calls = DeadController()
    loop = sync.SyncLoop(
        calls, Taker(), SyncWish(), incarnation="i", interval_seconds=0.01, settings_rev=lambda: 0
    )  # type: ignore[arg-type]  # what the loop uses of it
    running = asyncio.create_task(loop.run())
    try:
        async with within(20):
            while calls.called < 3:
                await asyncio.sleep(0.001)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


class CountingController:
    """Counts calls, and answers each when the next one comes."""

    def __init__(self) -> None:
        self.called = 0

    async def sync(self, request: SyncRequest) -> SyncAnswer:
        """Wait, as a controller without news does."""
        self.called += 1
        mine = self.called
        while self.called == mine:
            await asyncio.sleep(0.001)
        return SyncAnswer()


@contextlib.asynccontextmanager
async def run_loop(
    calls: CountingController | FrozenReplica | SlowController,
) -> AsyncIterator[SyncWish]:
    """Run a loop whose taker finds something new in every answer, for 20 s at most."""
    taker, news = Taker(), SyncWish()
    taker.take_answer = lambda *_, **__: True  # type: ignore[method-assign]  # a double
    loop = sync.SyncLoop(
        calls, taker, news, incarnation="i", interval_seconds=60.0, settings_rev=lambda: 0
    )  # type: ignore[arg-type]  # what the loop uses of it
    running = asyncio.create_task(loop.run())
    try:
        async with within(20):
            yield news
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_what_may_wait_a_little_goes_with_the_next_call_and_costs_none_of_its_own() -> None:
    calls = CountingController()
    async with run_loop(calls) as news:
        while calls.called < 1:
            await asyncio.sleep(0.001)
        for _ in range(3):
            news.report(within_seconds=0.2)
        news.report()
        while calls.called < 2:
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.3)
        assert calls.called == 2, "what was told is told again"


async def test_news_that_may_wait_less_go_before_others() -> None:
    calls = CountingController()
    async with run_loop(calls) as news:
        while calls.called < 1:
            await asyncio.sleep(0.001)
        news.report(within_seconds=60.0)
        news.report(within_seconds=0.01)
        news.report(within_seconds=60.0)
        while calls.called < 2:
            await asyncio.sleep(0.001)


class FrozenReplica:
    """Renews a lease of 3 s, holds the second call for ever, and answers the others."""

    def __init__(self) -> None:
        self.waits: list[float] = []

    async def sync(self, request: SyncRequest) -> SyncAnswer:
        """Answer, but for the second call."""
        self.waits.append(request.wait_seconds)
        if len(self.waits) == 2:
            await asyncio.Event().wait()
        await asyncio.sleep(0.01)
        return SyncAnswer(renewed=[Renewed(key=TaskKey("j", 0, 1), ttl_seconds=3.0)])


async def test_a_call_that_nobody_answers_has_another_beside_it_long_before_a_lease_ends() -> None:
    """SYNC-5. Its own patience is 70 s."""
    calls = FrozenReplica()
    async with run_loop(calls):
        while len(calls.waits) < 4:
            await asyncio.sleep(0.01)
    assert calls.waits[2] == 0.0, "what comes beside it wants its answer at once"
    assert max(calls.waits) <= 3.0 / 6


class SlowController:
    """Answers when it is told to; `called` counts the calls, `launch` is what each answer brings."""

    def __init__(self, launch: list[LaunchOrder]) -> None:
        self.called, self.answers, self.launch = 0, asyncio.Event(), launch

    async def sync(self, request: SyncRequest) -> SyncAnswer:
        """Wait until this controller may answer."""
        self.called += 1
        await self.answers.wait()
        return SyncAnswer(launch=self.launch)


ENDED = TaskReport(key=TaskKey("j", 0, 1), state="ended")
ORDER = LaunchOrder(key=TaskKey("k", 0, 1), attempt=1, name="n", queue="q", project="p", argv=["x"])


@pytest.mark.parametrize(("reported", "beside"), [([ENDED], 0), ([], 1)])
async def test_ends_wait_for_the_answer_of_a_call_that_reports_others(
    monkeypatch: pytest.MonkeyPatch, reported: list[TaskReport], beside: int
) -> None:
    """SYNC-4. A call that reports none may wait at the controller, so others go beside it."""
    monkeypatch.setattr(sync, "_ANSWER_SECONDS", 3600.0)
    monkeypatch.setattr(Taker, "make_reports", lambda self: reported)
    calls = SlowController([])
    async with run_loop(calls) as news:
        await wait_for_calls(calls, 1)
        news.report()
        for _ in range(50):
            await asyncio.sleep(0)
        assert calls.called == 1 + beside
        calls.answers.set()
        await wait_for_calls(calls, 2)


async def test_ends_wait_no_longer_for_a_controller_that_does_not_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """SYNC-4."""
    monkeypatch.setattr(sync, "_ANSWER_SECONDS", 0.001)
    monkeypatch.setattr(Taker, "make_reports", lambda self: [ENDED])
    calls = SlowController([])
    async with run_loop(calls) as news:
        await wait_for_calls(calls, 1)
        news.report()
        await wait_for_calls(calls, 2)


async def test_ends_that_waited_for_an_answer_wait_for_the_tasks_that_it_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """SYNC-4: until the next end is due, which comes when none of them is young any more."""
    monkeypatch.setattr(sync, "_ANSWER_SECONDS", 3600.0)
    monkeypatch.setattr(sync, "YOUNG_TOLD_SECONDS", 3600.0)
    monkeypatch.setattr(Taker, "make_reports", lambda self: [ENDED])
    calls = SlowController([ORDER])
    async with run_loop(calls) as news:
        await wait_for_calls(calls, 1)
        news.report()
        calls.answers.set()
        while news.due:
            await asyncio.sleep(0)
        for _ in range(50):
            await asyncio.sleep(0)
        assert calls.called == 1
        news.report()
        await wait_for_calls(calls, 2)


async def wait_for_calls(calls: SlowController, number: int) -> None:
    while calls.called < number:
        await asyncio.sleep(0.001)
