"""Sync with the controller: one call waits there for news; news of this host starts a second call.

SYNC-1  A newer call makes the controller answer the older one at once. If answers come out of
        order, only the newest one commands; acknowledgements and renewals of an older answer still
        count, because they stay true.
SYNC-2  An outage changes only the pace: calls are tried again with back-off and jitter, tasks run
        on, and leases go on towards their ends.
SYNC-3  The state of the connection is logged when it changes, not at every try.
SYNC-4  While a call that reports ends is on its way, the next ends wait for its answer, for
        `_ANSWER_SECONDS` at most: the controller answers such a call at once, and a call beside it
        would report the same ends again. Ends that came meanwhile wait for those of the tasks that
        the answer has started, which may be as short.
SYNC-5  If a call has no answer for a third of the shortest lease here, a second one is made on a
        new connection, because a frozen replica, or a network that drops packets, must not cost a
        lease. The first call goes on, because the answer of a slow controller renews leases, too.
"""

import asyncio
import contextlib
import logging
import math
import random
from collections import deque
from collections.abc import Callable
from typing import Protocol

import msgspec

from holdfast.agent.tasks.task import YOUNG_TOLD_SECONDS
from holdfast.agent.uplink.calls import ControllerCalls
from holdfast.agent.uplink.sync_wish import SyncWish
from holdfast.core.gpus import GpuTelemetry
from holdfast.core.host_faults import Hindrance
from holdfast.core.readings.usage import RankUsage
from holdfast.errors import HoldfastError, Unavailable
from holdfast.process.syscalls import read_boottime
from holdfast.wire.agent import MAX_WAIT_SECONDS, SyncAnswer, SyncRequest, TaskReport

log = logging.getLogger("holdfast.agent.uplink.sync")

_FIRST_RETRY_SECONDS = 0.2
_IN_FLIGHT = 2
_KEPT_TRIPS = 16
# A controller repeats its commands until they are carried out, also in an answer asked for at once.
_ECHO_SECONDS = (0.02, 0.25)
_SUPERSEDED_SECONDS = 2.0
_PATIENCE_SECONDS = 1.0  # at least, after the call's own wait (SYNC-5)
_ANSWER_SECONDS = 0.05
_LAUNCH_SECONDS = 0.03
_GANG_SECONDS = 0.07  # longer than `GANG_TOLD_SECONDS`, after which its starts are reported


class SyncTaker(Protocol):
    """The part of the agent that the sync loop calls."""

    def make_reports(self) -> list[TaskReport]:
        """Return a report of every task as it is now."""

    def list_faults(self) -> list[Hindrance]:
        """Return the hindrances: what this host cannot do now, with the reasons."""

    def show_gpus(self) -> list[GpuTelemetry]:
        """Return the readings of the GPUs that were made last."""

    def take_ranks(self) -> list[RankUsage]:
        """Return the readings of tasks that no sync told before."""

    def say_strain(self) -> str:
        """Return in words what may slow down this host's processes, "" for nothing."""

    def take_answer(self, answer: SyncAnswer, *, started_at: float, newest: bool) -> bool:
        """Carry out an answer. Return True if any part of it was new."""

    async def mend(self, error: HoldfastError) -> None:
        """Respond to a refusal of the controller: register again, end the host's tasks, or go on
        trying."""


class _Call(msgspec.Struct):
    """A sync call under way. started_at, overdue_at: instants of CLOCK_BOOTTIME; after
    `overdue_at` a second call is made beside it (SYNC-5). alone_until: the instant until which news
    waits for the call's answer (SYNC-4)."""

    seq: int
    started_at: float
    overdue_at: float = math.inf
    alone_until: float = 0.0


class _Heard(msgspec.Struct):
    """An answer that was carried out. news: True if any part of it was new."""

    answer: SyncAnswer
    news: bool


class SyncLoop:
    """Exchanges state and commands with the controller: this host's reports for the controller's
    answers.

    heard_at: the instant of the last answer (CLOCK_BOOTTIME). interval_seconds: the longest wait
    of a call at the controller.
    """

    def __init__(
        self,
        calls: ControllerCalls,
        taker: SyncTaker,
        news: SyncWish,
        *,
        incarnation: str,
        interval_seconds: float,
        settings_rev: Callable[[], int],
    ) -> None:
        self._calls = calls
        self._taker = taker
        self._news = news
        self._incarnation = incarnation
        self.interval_seconds = interval_seconds
        self._settings_rev = settings_rev
        # Grows over restarts of the agent, because a dead agent's call may still wait there.
        self._seq = int(read_boottime() * 1000)
        self._newest_taken = 0
        self._flights: dict[asyncio.Task[_Heard | HoldfastError], _Call] = {}
        self._lease_seconds = math.inf  # the shortest lease here
        self._connected: bool | None = None
        self.heard_at = read_boottime()
        self._retry_seconds = _FIRST_RETRY_SECONDS
        self._retry_at = 0.0
        self._echo_seconds = 0.0
        self._trips: deque[float] = deque(maxlen=_KEPT_TRIPS)

    async def run(self) -> None:
        """Sync with the controller for ever."""
        try:
            while True:
                # Both use one reading of the clock: with two, a retry that falls due in between
                # would neither start nor be waited for.
                now = read_boottime()
                self._start_due(now)
                await self._wait(now)
                for flight in [f for f in self._flights if f.done()]:
                    await self._land(flight)
        finally:
            await self._abandon()

    def _start_due(self, now: float) -> None:
        if self._retry_at > now:
            return
        if self._news.due and len(self._flights) >= _IN_FLIGHT:
            oldest = min(self._flights, key=lambda f: self._flights[f].seq)
            # The controller answers a superseded call at once, so this one is lost on the network.
            if now - max(call.started_at for call in self._flights.values()) > _SUPERSEDED_SECONDS:
                oldest.cancel()
                del self._flights[oldest]
        waits = self._find_alone_until() > now
        if not self._flights or (self._news.due and len(self._flights) < _IN_FLIGHT and not waits):
            self._start()
        elif self._find_overdue() <= now:  # SYNC-5: the second call asks for no wait
            if len(self._flights) >= _IN_FLIGHT:
                oldest = min(self._flights, key=lambda f: self._flights[f].seq)
                oldest.cancel()
                del self._flights[oldest]
            self._start(wait=False)

    def _find_overdue(self) -> float:
        """Return the instant at which the newest call has waited for too long (SYNC-5)."""
        return max((call.overdue_at for call in self._flights.values()), default=math.inf)

    def _find_alone_until(self) -> float:
        """Return the instant until which news waits for the answers of calls under way (SYNC-4)."""
        return max((call.alone_until for call in self._flights.values()), default=0.0)

    def _start(self, *, wait: bool = True) -> None:
        self._news.clear()
        self._seq += 1
        longest = min(self.interval_seconds, MAX_WAIT_SECONDS, self._lease_seconds / 6)
        wait_seconds = longest if self._connected and wait else 0.0
        request = SyncRequest(
            incarnation=self._incarnation,
            seq=self._seq,
            tasks=self._taker.make_reports(),
            wait_seconds=wait_seconds,
            settings_rev=self._settings_rev(),
            faults=self._taker.list_faults(),
            gpus=self._taker.show_gpus(),
            strain=self._taker.say_strain()[:256],
            sent_at=read_boottime(),
            round_trip=min(self._trips, default=None),
            ranks=self._taker.take_ranks(),
        )
        now = read_boottime()
        patience_seconds = max(self._lease_seconds / 3, wait_seconds + _PATIENCE_SECONDS)
        ends = any(task.state == "ended" for task in request.tasks)
        alone_until = now + _ANSWER_SECONDS if ends else 0.0
        call = _Call(self._seq, now, now + patience_seconds, alone_until)
        self._flights[asyncio.create_task(self._fly(call, request))] = call

    async def _fly(self, call: _Call, request: SyncRequest) -> _Heard | HoldfastError:
        """Make a call and carry its answer out in the same step, because on an idle host a job
        would wait for each further step of the loop."""
        try:
            return await self._hear(call, request)
        except HoldfastError as error:
            return error

    async def _hear(self, call: _Call, request: SyncRequest) -> _Heard:
        answer = await self._calls.sync(request)
        took = read_boottime() - call.started_at
        self._trips.append(max(0.0, took - answer.held_seconds))
        newest = call.seq > self._newest_taken
        self._newest_taken = max(call.seq, self._newest_taken)
        self._note_connected()
        self._note_leases(request, answer)
        self.interval_seconds = max(0.05, answer.sync_interval_seconds)
        news = self._taker.take_answer(answer, started_at=call.started_at, newest=newest)
        return _Heard(answer, news)

    def _note_leases(self, request: SyncRequest, answer: SyncAnswer) -> None:
        leases = [one.ttl_seconds for one in answer.renewed]
        leases += [one.ttl_seconds for one in answer.launch]
        leases += [one.ttl_seconds for one in answer.claim]
        if leases:
            self._lease_seconds = max(0.1, min(leases))
        elif not request.tasks:
            self._lease_seconds = math.inf

    async def _wait(self, now: float) -> None:
        """Wait until a call ends, news of this host comes, or a retry is due."""
        pause = self._retry_at - now
        alone = self._find_alone_until() - now
        longest = alone if alone > 0 else _SUPERSEDED_SECONDS
        timeout = pause if pause > 0 else (longest if self._news.due else None)
        overdue = self._find_overdue() - now
        if pause <= 0 and overdue < math.inf:
            timeout = max(0.0, overdue if timeout is None else min(timeout, overdue))
        waits: set[asyncio.Task[object]] = set(self._flights)
        news = None
        if not self._news.due and pause <= 0:
            news = asyncio.create_task(self._news.wait())
            waits.add(news)
        try:
            if waits:
                await asyncio.wait(waits, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            elif timeout is not None:
                await asyncio.sleep(timeout)
        finally:
            if news is not None:
                news.cancel()

    async def _land(self, flight: asyncio.Task[_Heard | HoldfastError]) -> None:
        call, heard = self._flights.pop(flight), flight.result()
        if isinstance(heard, HoldfastError):
            if call.seq > self._newest_taken:
                await self._fail(heard)
            return
        answer = heard.answer
        took_seconds = read_boottime() - call.started_at
        if (answer.launch or answer.preempt) and not self._flights and not self._news.due:
            # A call now would only report that tasks are being started or stopped, and slow that
            # down.
            await self._pause(_GANG_SECONDS if answer.gangs else _LAUNCH_SECONDS)
        elif answer.launch and not self._flights:
            self._news.put_off(YOUNG_TOLD_SECONDS)
            await self._pause(YOUNG_TOLD_SECONDS)
        if heard.news or took_seconds > _ECHO_SECONDS[1]:
            self._echo_seconds = 0.0
        else:
            low, high = _ECHO_SECONDS
            self._echo_seconds = min(high, max(low, self._echo_seconds * 2))
            if not self._flights and not self._news.due:
                await self._pause(self._echo_seconds)

    async def _pause(self, seconds: float) -> None:
        """Wait until news of this host comes, for `seconds` at most."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._news.wait(), seconds)

    async def _fail(self, error: HoldfastError) -> None:
        if self._connected is not False:
            self._connected = False
            log.warning(f"lost the controller; tasks go on: {error}")
        pause = self._retry_seconds * random.uniform(0.75, 1.25)
        self._retry_seconds = min(self._retry_seconds * 2, max(5.0, self.interval_seconds))
        self._retry_at = read_boottime() + pause
        if not isinstance(error, Unavailable):
            await self._taker.mend(error)

    def _note_connected(self) -> None:
        if self._connected is not True:
            log.info("in step with the controller")
        self._connected = True
        self.heard_at = read_boottime()
        self._retry_seconds, self._retry_at = _FIRST_RETRY_SECONDS, 0.0

    async def leave(self, give_up_seconds: float) -> bool:
        """Report every end, and that this host leaves. Return True if the controller answered in
        time."""
        await self._abandon()
        give_up_at = read_boottime() + give_up_seconds
        while read_boottime() < give_up_at:
            self._seq += 1
            started_at = read_boottime()
            tasks = self._taker.make_reports()
            request = SyncRequest(
                incarnation=self._incarnation,
                seq=self._seq,
                tasks=tasks,
                leaving=True,
                faults=self._taker.list_faults(),
            )
            try:
                async with asyncio.timeout(max(0.1, give_up_at - started_at)):
                    answer = await self._calls.sync(request)
            except Unavailable:
                await asyncio.sleep(0.1)
                continue
            except (HoldfastError, TimeoutError) as error:
                log.warning(f"the controller refused to hear that this host leaves: {error}")
                return False
            if answer is not None:
                self._taker.take_answer(answer, started_at=started_at, newest=True)
            return True
        log.warning("left unannounced: the controller cannot be reached")
        return False

    async def _abandon(self) -> None:
        flights = list(self._flights)
        self._flights.clear()
        for flight in flights:
            flight.cancel()
        await asyncio.gather(*flights, return_exceptions=True)
