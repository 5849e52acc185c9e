"""Webhooks: events past every hook's cursor → deliveries; deliveries that are due → tries; old
deliveries → deleted."""

import asyncio
import itertools
import logging
import math
from collections import Counter
from collections.abc import Collection

import msgspec

from holdfast.controller.loops.loop import Loop, Summary, prune_history
from holdfast.controller.runtime.auth import make_new_id
from holdfast.controller.runtime.context import Controller
from holdfast.controller.runtime.settings import Settings
from holdfast.controller.runtime.wakes import Wake
from holdfast.core.records import EventRecord
from holdfast.core.webhooks import notices, values
from holdfast.core.webhooks.values import (
    BackOff,
    DeliveryAnswer,
    DeliveryBatch,
    DeliveryState,
    DueDelivery,
    Subscription,
)

log = logging.getLogger("holdfast.webhooks")
PAGE = 500
PAUSE_SECONDS = 0.05  # lets one look collect many commits
PAUSE_FACTOR = 9.0  # a look counts all pending deliveries, so it may take a tenth of the time
NO_HOOKS_PAUSE_SECONDS = 0.5  # a cluster without hooks should not pay for them
_OUTCOMES = {
    DeliveryState.DELIVERED: "delivered",
    DeliveryState.PENDING: "failed",
    DeliveryState.DEAD: "dead",
}


class WebhooksLoop(Loop):
    """Collects deliveries and sends them. A run lasts as long as any try is in progress, so that a
    slow receiver does not hold back the deliveries to others.

    A try in progress when the run ends early (leadership lost, store away, the process killed) may
    or may not have been sent: it is sent again (HOOK-2). The windows remember which receivers are
    in trouble; losing them costs a few tries.
    """

    name = "webhooks"
    topic = "events"
    by_look = True
    interval_seconds = 1.0

    def __init__(self, controller: Controller, policy: BackOff | None = None) -> None:
        super().__init__(controller)
        self._policy = policy or BackOff()
        self._windows: dict[str, int] = {}
        self._pause_seconds = PAUSE_SECONDS
        self._moments_at = -math.inf

    async def run_once(self) -> Summary:
        tally: Counter[str] = Counter()
        flights: dict[asyncio.Task[DeliveryAnswer], DueDelivery] = {}
        clock, wake = self._controller.clock, self._controller.wakes.topic("events")
        await asyncio.sleep(self._pause_seconds)
        seen, looked_at, more = wake.version, -math.inf, False
        try:
            while True:
                if more or clock() - looked_at >= self._pause_seconds:
                    began, seen = clock(), wake.version
                    written, more = await self._collect()
                    tally["written"] += written
                    looked_at = clock()
                    took = PAUSE_FACTOR * (looked_at - began)
                    self._pause_seconds = max(self._pause_seconds, min(took, self.interval_seconds))
                await self._launch(flights)
                if not flights and not more:
                    return +tally
                pause = 0.0 if more else looked_at + self._pause_seconds - clock()
                await self._wait(flights, wake, seen, pause, more)
                tally += await self._record(
                    {task: flights.pop(task) for task in list(flights) if task.done()}
                )
        finally:
            for task in flights:
                task.cancel()
            await asyncio.gather(*flights, return_exceptions=True)

    async def _wait(
        self,
        flights: Collection[asyncio.Task[DeliveryAnswer]],
        wake: Wake,
        seen: int,
        pause: float,
        more: bool,
    ) -> None:
        """Wait for the end of a try, or for the end of the pause and then for events."""

        async def look_again() -> None:
            await asyncio.sleep(max(0.0, pause))
            if not more:
                await wake.wait(seen, self.interval_seconds)

        waker = asyncio.create_task(look_again())
        try:
            await asyncio.wait({waker, *flights}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            waker.cancel()

    # ---- events → deliveries

    async def _collect(self) -> tuple[int, bool]:
        """Move every hook's cursor one page towards the end of the events, so that sending goes on
        between the pages. Returns how many deliveries were written, and whether there are more
        events."""
        store = self._controller.store
        of_cursor: dict[str, list[Subscription]] = {}
        hooks = await store.webhooks.list_subscriptions(values.MAX_PENDING)
        self._pause_seconds = PAUSE_SECONDS if hooks else NO_HOOKS_PAUSE_SECONDS
        for hook in hooks:
            of_cursor.setdefault(hook.cursor, []).append(hook)
        written, more = 0, False
        for cursor, together in of_cursor.items():
            events = await store.events.read_events(cursor, limit=PAGE)
            if events:
                written += await self._write(together, events)
            more = more or len(events) == PAGE
        now = self._controller.clock()
        if not more and now - self._moments_at >= self.interval_seconds:
            self._moments_at = now
            written += await self._write_moments([hook for hook in hooks if hook.service])
        return written, more

    async def _write(self, hooks: list[Subscription], events: list[EventRecord]) -> int:
        store = self._controller.store
        signed = [hook for hook in hooks if not hook.service]
        told = [hook for hook in hooks if hook.service]
        ids = (make_new_id() for _ in itertools.count())
        batches: list[DeliveryBatch] = []
        if signed:
            jobs = await store.webhooks.summarize_jobs(_name_jobs(signed, events))
            batches += [values.plan_deliveries(hook, events, jobs, ids) for hook in signed]
        if told:
            noted = await store.notices.read_noted_jobs(_name_jobs(told, events))
            write = await self._make_writer()
            batches += [values.plan_deliveries(hook, events, noted, ids, write) for hook in told]
        written = [batch for batch in batches if batch.before != batch.after]
        moved = set(await store.webhooks.write_deliveries(written))
        return sum(len(b.deliveries) for b in batches if b.webhook_id in moved)

    async def _write_moments(self, hooks: list[Subscription]) -> int:
        """Write the notices about what no event records: a first output, and a long wait."""
        store = self._controller.store
        if not hooks:
            return 0
        jobs, at = await store.notices.list_moments([hook.webhook_id for hook in hooks])
        write = await self._make_writer()
        ids = (make_new_id() for _ in itertools.count())
        found = {job.id: job for job in jobs}
        batches = []
        for hook in hooks if found else ():
            moments = [one for job in jobs for one in notices.list_moments(hook, job, at)]
            planned = values.plan_deliveries(hook, moments, found, ids, write)
            stays = {
                "before": hook.cursor,
                "after": hook.cursor,
            }  # a moment has no place among events
            batches.append(msgspec.structs.replace(planned, **stays))
        given = [batch for batch in batches if batch.deliveries]
        await store.webhooks.write_deliveries(given)
        return sum(len(batch.deliveries) for batch in given)

    async def _make_writer(self) -> values.Write:
        """Return the function that writes the body of a notice."""
        url = str((await self._controller.settings.current()).value("public_url"))
        return lambda hook, event, job, _: notices.write_notice(hook, event, job, url)

    # ---- deliveries → tries

    async def _launch(self, flights: dict[asyncio.Task[DeliveryAnswer], DueDelivery]) -> None:
        if len(flights) >= values.TOTAL_WINDOW:
            return
        flying = list(flights.values())
        due = await self._controller.store.webhooks.list_due(
            values.HOOK_WINDOW, [d.id for d in flying]
        )
        chosen = values.plan_sends(due, flying, self._windows, values.TOTAL_WINDOW)
        if not chosen:
            return
        settings = await self._controller.settings.current()
        for delivery in chosen:
            flights[asyncio.create_task(self._send(delivery, settings))] = delivery

    async def _send(self, due: DueDelivery, settings: Settings) -> DeliveryAnswer:
        try:
            if due.service:
                return await self._controller.notices.send(
                    due.url,
                    due.body.encode(),
                    allow_private=settings.value("webhook_allow_private") is True,
                    seconds=settings.number("webhook_timeout_seconds"),
                )
            return await self._controller.webhooks.send(
                due.url,
                due.webhook_id,
                due.id,
                due.secrets,
                due.body.encode(),
                allow_private=settings.value("webhook_allow_private") is True,
                seconds=settings.number("webhook_timeout_seconds"),
            )
        except Exception:
            # One delivery that cannot even be tried must not hold the others up; it counts as tried.
            log.exception("delivery %s of webhook %s could not be sent", due.id, due.webhook_id)
            return DeliveryAnswer(error="it could not be sent; the controller's log has the reason")

    async def _record(
        self, landed: dict[asyncio.Task[DeliveryAnswer], DueDelivery]
    ) -> Counter[str]:
        if not landed:
            return Counter()
        controller = self._controller
        settings = await controller.settings.current()
        max_tries = int(settings.number("webhook_tries"))
        tries = []
        for task, due in landed.items():
            answer = task.result()
            window = values.next_window(
                self._windows.pop(due.webhook_id, values.HOOK_WINDOW), answer
            )
            if window < values.HOOK_WINDOW:  # a receiver that is well needs no remembering
                self._windows[due.webhook_id] = window
            tries.append(
                values.judge_try(due, answer, max_tries, self._policy, controller.chance())
            )
        applied = set(await controller.store.webhooks.record_tries(tries))
        tally: Counter[str] = Counter()
        for tried in tries:
            if tried.delivery_id not in applied:
                continue
            outcome = _OUTCOMES[tried.state]
            tally[outcome] += 1
            controller.metrics.webhook_deliveries.labels(outcome).inc()
            if tried.state is DeliveryState.DEAD:
                log.warning(
                    "delivery %s of webhook %s is given up after %d tries: %s",
                    tried.delivery_id,
                    tried.webhook_id,
                    tried.tries + 1,
                    tried.error,
                )
            if tried.pause is not None:
                log.warning("webhook %s is paused: %s", tried.webhook_id, tried.pause)
        if tally["dead"] or any(t.pause for t in tries):
            controller.poke("events")
        return tally


def _name_jobs(hooks: list[Subscription], events: list[EventRecord]) -> set[str]:
    """Return the jobs of the events that some hook wants."""
    wanted = (e for e in events if e.job_id and any(values.is_wanted(hook, e) for hook in hooks))
    return {e.job_id for e in wanted if e.job_id}


class PruneDeliveriesLoop(Loop):
    """Delivered and dead deliveries older than `history_days` → deleted, in small batches."""

    name = "prune_deliveries"
    interval_seconds = 600.0

    async def run_once(self) -> Summary:
        return await prune_history(
            self._controller, self._controller.store.webhooks.prune_deliveries
        )
