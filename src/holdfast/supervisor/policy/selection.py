"""Chooses the hosts that a run begins on: the best of those that first answer a check.

More hosts are requested than are needed, and each is measured as it comes. An unfit host is
replaced at once, and its successor measured; a slow one is not waited for once there are enough.
"""

import contextlib
import logging
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from holdfast.errors import Unavailable
from holdfast.supervisor.futures.future import Future
from holdfast.supervisor.futures.waits import as_completed
from holdfast.supervisor.policy.measures import (
    PING,
    PINGS,
    PONG,
    HostMeasures,
    HostScore,
    judge_host,
    read_measures,
)
from holdfast.supervisor.rosters.hosts import Host
from holdfast.supervisor.script.context import Context

CHECK_SECONDS = 120.0  # an attached host that has not answered by then counts as unfit
SETTLE_SECONDS = 5.0  # the wait for better hosts once there are enough
MAX_REPLACED = 20
_TURN_SECONDS = 1.0

logger = logging.getLogger("holdfast.supervisor")

Judge = Callable[[HostMeasures, int], HostScore]


class UnfitHosts(Unavailable):
    """Raised where too many hosts failed the check."""

    code = "unfit_hosts"


def start_check(ctx: Context, host: Host, command: Sequence[str] | None = None) -> Future[Any]:
    """Have a host measured, once it is attached. The future's value is the host's measures, or an
    error.

    command: the command that measures, instead of `holdfast.supervisor.policy.measures`; it sends
    its `HostMeasures` as a map.
    """
    words = command or [sys.executable, "-P", "-m", "holdfast.supervisor.policy.measures"]
    [process] = ctx.create_process_group([host], words, name=f"check{host.number}")

    def answer(_: Future[Any]) -> None:
        with contextlib.suppress(Exception):  # the process is gone, and its future fails
            process.send(PONG)

    for _ in range(PINGS):
        process.recv(lambda message: message == PING).add_done_callback(answer)
    return process.recv(lambda message: isinstance(message, dict))


def choose_hosts(
    ctx: Context,
    count: int,
    *,
    spares: int = 1,
    gpus: int = 0,
    keep: Iterable[Host] = (),
    check: Sequence[str] | None = None,
    judge: Judge = judge_host,
    check_seconds: float = CHECK_SECONDS,
    settle_seconds: float = SETTLE_SECONDS,
    max_replaced: int = MAX_REPLACED,
    bring: Callable[[int], object] | None = None,
) -> list[Host]:
    """Return `count` fit hosts: the best of those that answer a check first.

    spares: the number of hosts requested beyond the count, to choose from. gpus: a host with fewer
    is unfit. keep: the hosts of the run so far: living ones keep their places, lost ones are
    replaced, and those that have not come yet are checked. check: the command that measures a host.
    judge: scores the measures. bring: called with the number of hosts requested, for a script that
    starts managers itself. Hosts that are not chosen are given back, unfit ones for replacement.

    Raises:
        UnfitHosts: more than `max_replaced` failed the check.
    """
    kept = list(keep)[:count]
    places = [host if host.attached else None for host in kept]
    places += [None] * (count - len(places))
    wanted = places.count(None)
    if not wanted:
        return [host for host in places if host is not None]
    selection = Selection(ctx, wanted, gpus, check, judge, max_replaced, bring)
    lost = [host for host in kept if host.connection_lost()]
    fresh = ctx.replace_hosts(lost) if lost else []
    fresh += [host for host in kept if not host.attached and host not in lost]
    selection.check(fresh + ctx.request_hosts(wanted + spares - len(fresh)))
    chosen = iter(selection.choose(check_seconds, settle_seconds, wanted + spares))
    return [host if host is not None else next(chosen) for host in places]


class Selection:
    """The checks in progress, and the results of those that are done."""

    def __init__(
        self,
        ctx: Context,
        wanted: int,
        gpus: int = 0,
        command: Sequence[str] | None = None,
        judge: Judge = judge_host,
        max_replaced: int = MAX_REPLACED,
        bring: Callable[[int], object] | None = None,
    ) -> None:
        self.scores: dict[Host, float] = {}
        self.replaced = 0
        self._ctx = ctx
        self._wanted = wanted
        self._gpus = gpus
        self._command = command
        self._judge = judge
        self._max_replaced = max_replaced
        self._bring = bring
        self._pending: dict[Future[Any], Host] = {}
        self._attached_at: dict[Host, float] = {}

    def check(self, hosts: Sequence[Host]) -> None:
        """Begin to check these hosts. The time of a host's check counts from when its manager is
        attached."""
        for host in hosts:
            host.hostname().add_done_callback(
                lambda future: self._attached_at.setdefault(future.whom, time.monotonic())
            )
            self._pending[start_check(self._ctx, host, self._command)] = host
        if self._bring is not None:
            self._bring(len(hosts))

    def choose(self, check_seconds: float, settle_seconds: float, most: int) -> list[Host]:
        """Wait until there are enough hosts, and a little longer; return the best."""
        while len(self.scores) < self._wanted:
            self._hear(_TURN_SECONDS, self._wanted)
            for host in [host for host in self.scores if host.connection_lost()]:
                del self.scores[host]
                self.replace(host, "it was lost after its check")
            if len(self.scores) < self._wanted:
                for future in self._find_overdue(check_seconds):
                    future.whom.group.forget()
                    self.replace(self._pending.pop(future), f"no answer in {check_seconds:g} s")
        self._hear(settle_seconds, most)
        fit = sorted(self.scores, key=lambda host: -self.scores[host])
        best, others = fit[: self._wanted], fit[self._wanted :]
        self._ctx.return_hosts(others)
        self._ctx.return_hosts(
            list(self._pending.values()),
            error="it had not answered the health check when the others were ready",
        )
        for future in self._pending:
            future.whom.group.forget()
        logger.info(
            "%d host%s chosen, %d replaced, %d not waited for",
            len(best),
            "s" * (len(best) != 1),
            self.replaced,
            len(self._pending),
        )
        return best

    def _hear(self, seconds: float, enough: int) -> None:
        """Collect answers until there are enough fit hosts, or the time is over."""
        with contextlib.suppress(TimeoutError):
            for future in as_completed(list(self._pending), timeout=seconds, log_interval=None):
                self._take(future)
                if len(self.scores) >= enough:
                    return

    def _take(self, future: Future[Any]) -> None:
        """Score one answer, or the error that came instead."""
        host = self._pending.pop(future)
        future.whom.group.forget()
        try:
            found = self._judge(read_measures(future.result()), self._gpus)
        except Exception as error:  # a mistake in the check must not end the run
            found = HostScore(0.0, f"{type(error).__name__}: {error}")
        logger.info("%s scores %.1f: %s", host, found.score, found.reason)
        if found.score > 0:
            self.scores[host] = found.score
        else:
            self.replace(host, found.reason)

    def replace(self, host: Host, reason: str) -> None:
        """Request another machine if one is needed. Raises UnfitHosts where that happened too
        often."""
        if len(self.scores) >= self._wanted:
            self._ctx.return_hosts([host], error=f"health check: {reason}")
            return
        self.replaced += 1
        if self.replaced > self._max_replaced:
            raise UnfitHosts(
                f"{self.replaced} hosts failed the health check, the last, {host}, with {reason}"
            )
        self.check(self._ctx.replace_hosts([host], f"health check: {reason}"))

    def _find_overdue(self, check_seconds: float) -> list[Future[Any]]:
        """Return the checks of hosts that have been attached for long enough to have answered."""
        long_ago = time.monotonic() - check_seconds
        return [
            future
            for future, host in self._pending.items()
            if self._attached_at.get(host, long_ago) < long_ago
        ]
