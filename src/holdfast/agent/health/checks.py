"""Carry out health checks on this host: ask for orders, have the host measured, report.

HCHK-1  A check runs in a process of its own with a deadline; a part that hangs is reported as missed,
        and neither heartbeats nor tasks wait for it.
"""

import asyncio
import contextlib
import logging
import random
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec

from holdfast.agent.health.measure import MeasureOrder
from holdfast.agent.health.parts import ask_parts
from holdfast.core.gpus import Gpu
from holdfast.core.host_checks import DeviceMeasure, Measured
from holdfast.errors import HoldfastError
from holdfast.wire.health import (
    MAX_FAILURES,
    HealthAnswer,
    HealthOrder,
    HealthReport,
    HealthRequest,
)

log = logging.getLogger("holdfast.agent.health")

RETRY_SECONDS = 30.0
MAX_WAIT_SECONDS = 3600.0
SETTINGS_SPREAD_SECONDS = 20.0  # in which all hosts ask, once the settings have changed
FAILURE_PAUSE_SECONDS = 2.0  # after a failed task, so that its siblings' ends are counted with it

Ask = Callable[[HealthRequest], Awaitable[HealthAnswer]]
FindGpus = Callable[[], Awaitable[list[Gpu]]]


class HealthChecks:
    """Runs this host's health checks."""

    def __init__(
        self,
        ask: Ask,
        find_gpus: FindGpus,
        *,
        incarnation: str,
        folder: Path,
        is_idle: Callable[[], bool] = lambda: False,
    ) -> None:
        """is_idle: returns whether no task is on the host, so that its devices may be used."""
        self._ask = ask
        self._is_idle = is_idle
        self._find_gpus = find_gpus
        self._incarnation = incarnation
        self._folder = folder
        self._passed = self._failed = 0
        self._failures: deque[tuple[str, int]] = deque(maxlen=MAX_FAILURES)
        self._news = asyncio.Event()

    def note_end(self, job_id: str, attempt: int, *, failed: bool) -> None:
        """Count a task that ended here by itself; after a failure the controller is called soon."""
        if failed:
            self._failed += 1
            self._failures.append((job_id, attempt))
            self._news.set()
        else:
            self._passed += 1

    def look_again(self) -> None:
        """Have the controller asked soon when the next check is due, because its settings changed."""
        wait = random.uniform(0.0, SETTINGS_SPREAD_SECONDS)
        asyncio.get_running_loop().call_later(wait, self._news.set)

    async def run(self) -> None:
        """Ask for orders, measure and report for ever."""
        report: HealthReport | None = None
        while True:
            self._news.clear()  # failures during the call below are in the next one
            passed, failed, failures = self._passed, self._failed, tuple(self._failures)
            request = HealthRequest(
                incarnation=self._incarnation,
                passed=passed,
                failed=failed,
                failures=failures,
                report=report,
            )
            try:
                answer = await self._ask(request)
            except HoldfastError as error:
                log.info("the controller was not asked for health checks: %s", error)
                await asyncio.sleep(RETRY_SECONDS)
                continue
            self._passed, self._failed = self._passed - passed, self._failed - failed
            for _ in failures:
                self._failures.popleft()
            report = None
            if answer.order is not None:
                report = await self._carry_out(answer.order)
                continue
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(answer.next_seconds, MAX_WAIT_SECONDS)):
                    await self._news.wait()
                    await asyncio.sleep(FAILURE_PAUSE_SECONDS)

    async def _carry_out(self, order: HealthOrder) -> HealthReport:
        began = time.monotonic()
        gpus = await self._find_gpus()
        asked = MeasureOrder(
            folder=str(self._folder),
            disk_mb=order.disk_mb,
            mounts=order.mounts,
            script=order.script,
            multiply=any(gpu.vendor != "declared" for gpu in gpus),
            burn_seconds=order.burn_seconds if self._is_idle() else 0.0,
        )
        fragments = await measure(asked, order.deadline_seconds)
        measured = gather(asked, fragments, gpus, seconds=time.monotonic() - began)
        measured = msgspec.structs.replace(measured, clock_unix=time.time())
        log.info(
            "health check %s (%s) measured in %.1f s", order.number, order.kind, measured.seconds
        )
        return HealthReport(number=order.number, kind=order.kind, measured=measured)


async def measure(order: MeasureOrder, deadline_seconds: float) -> list[dict[str, Any]]:
    """Return a line for each part that was done before the deadline, as `ask_parts` does."""
    return await ask_parts("holdfast.agent.health.measure", order, deadline_seconds)


def gather(
    order: MeasureOrder, fragments: Iterable[dict[str, Any]], gpus: list[Gpu], *, seconds: float
) -> Measured:
    """Return the findings of all parts in one record. `missed` names the parts that are not
    there."""
    found: dict[str, Any] = {}
    done = set()
    for fragment in fragments:
        if "found" in fragment:  # a part that failed counts as missed
            done.add(fragment["part"])
            found |= fragment["found"]
    tried = {d.index: d for d in msgspec.convert(found.pop("devices", []), list[DeviceMeasure])}
    errors = found.pop("ecc_errors", {})
    devices = []
    for gpu in gpus:
        one = tried.get(gpu.index, DeviceMeasure(index=gpu.index))
        about = {"model": gpu.model, "memory_bytes": gpu.memory_bytes}
        about["ecc_errors"] = errors.get(str(gpu.index))
        devices.append(msgspec.structs.replace(one, **about))
    missed = [part for part in order.parts if part not in done]
    return msgspec.convert(
        {**found, "devices": devices, "missed": missed, "seconds": seconds}, Measured
    )
