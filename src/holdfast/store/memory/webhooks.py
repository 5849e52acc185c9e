"""Webhooks in the memory store."""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta

import msgspec

from holdfast.core.records import shared_fields
from holdfast.core.webhooks import values
from holdfast.moves.events import (
    dead_letter_event,
    format_event_id,
    hook_event,
    no_delivery,
    no_webhook,
)
from holdfast.moves.rows import NewEvent
from holdfast.store.memory.state import InMemory, MemoryState
from holdfast.store.port.clock import Now
from holdfast.store.port.webhooks import NewWebhook, SignedTarget, WebhookChange

PENDING, DELIVERED, DEAD = (
    values.DeliveryState.PENDING,
    values.DeliveryState.DELIVERED,
    values.DeliveryState.DEAD,
)


class MemoryHook(msgspec.Struct, kw_only=True):
    """A hook and its hidden fields."""

    record: values.WebhookRecord
    secret: str
    cursor: str
    old_secret: str | None = None


class MemoryDelivery(msgspec.Struct, kw_only=True):
    """A delivery, its body, and its place in the order of events."""

    record: values.DeliveryRecord
    body: str
    seq: int

    @property
    def sequence(self) -> str:
        """Return the delivery's sequence; deliveries of one sequence are sent in order (HOOK-1)."""
        return self.record.job_id or ""


class MemoryWebhooks(InMemory):
    """`WebhookStore` in memory."""

    def __init__(self, state: MemoryState) -> None:
        super().__init__(state)
        self._hooks: dict[str, MemoryHook] = {}
        self._deliveries: dict[str, MemoryDelivery] = {}
        self._seq = 0

    async def create_webhook(self, new: NewWebhook, *, now: Now = None) -> values.WebhookRecord:
        if new.id not in self._hooks:
            at = self.state.at(now)
            fields = shared_fields(new, values.WebhookRecord)
            record = values.WebhookRecord(
                **fields, state=values.WebhookState.ACTIVE, reason="", created_at=at
            )
            cursor = self.state.events[-1].id if self.state.events else format_event_id(0, 0)
            self._hooks[new.id] = MemoryHook(record=record, secret=new.secret, cursor=cursor)
            self.state.log(
                [hook_event("created", record, "was created", events=list(new.events))], at
            )
        return await self.get_webhook(new.id)

    async def list_webhooks(self) -> list[values.WebhookRecord]:
        found = [await self.get_webhook(hook_id) for hook_id in self._hooks]
        return sorted(found, key=lambda hook: (hook.created_at, hook.id))

    async def get_webhook(self, webhook_id: str) -> values.WebhookRecord:
        record = self._hook(webhook_id).record
        states = [
            d.record.state for d in self._deliveries.values() if d.record.webhook_id == webhook_id
        ]
        return msgspec.structs.replace(
            record, pending=states.count(PENDING), dead=states.count(DEAD)
        )

    async def get_webhook_target(self, webhook_id: str, *, now: Now = None) -> SignedTarget:
        hook = self._hook(webhook_id)
        return SignedTarget(url=hook.record.url, secrets=_secrets(hook, self.state.at(now)))

    async def change_webhook(
        self, webhook_id: str, change: WebhookChange, *, now: Now = None
    ) -> values.WebhookRecord:
        hook = self._hook(webhook_id)
        fields = {
            n: v for n in change.__struct_fields__ if (v := getattr(change, n)) is not msgspec.UNSET
        }
        after = msgspec.structs.replace(hook.record, **fields)
        if after != hook.record:
            hook.record = after
            text = f"was changed: {', '.join(sorted(fields))}"
            self.state.log(
                [hook_event("changed", after, text, changed=sorted(fields))], self.state.at(now)
            )
        return await self.get_webhook(webhook_id)

    async def rotate_webhook(
        self, webhook_id: str, secret: str, grace_seconds: float, *, now: Now = None
    ) -> values.WebhookRecord:
        hook, at = self._hook(webhook_id), self.state.at(now)
        until = at + timedelta(seconds=grace_seconds) if grace_seconds > 0 else None
        hook.old_secret = hook.secret if grace_seconds > 0 else None
        hook.secret = secret
        hook.record = msgspec.structs.replace(hook.record, old_secret_until=until)
        event = hook_event(
            "changed",
            hook.record,
            "has a new secret",
            changed=["secret"],
            grace_seconds=grace_seconds,
        )
        self.state.log([event], at)
        return await self.get_webhook(webhook_id)

    async def pause_webhook(
        self, webhook_id: str, reason: str, *, now: Now = None
    ) -> values.WebhookRecord:
        self._pause(self._hook(webhook_id), reason, self.state.at(now))
        return await self.get_webhook(webhook_id)

    def _pause(self, hook: MemoryHook, reason: str, at: datetime) -> None:
        if hook.record.state is values.WebhookState.ACTIVE:
            hook.record = msgspec.structs.replace(
                hook.record, state=values.WebhookState.PAUSED, reason=reason
            )
            self.state.log(
                [hook_event("paused", hook.record, f"was paused: {reason}", reason=reason)], at
            )

    async def resume_webhook(self, webhook_id: str, *, now: Now = None) -> values.WebhookRecord:
        hook, at = self._hook(webhook_id), self.state.at(now)
        if hook.record.state is values.WebhookState.PAUSED:
            hook.record = msgspec.structs.replace(
                hook.record, state=values.WebhookState.ACTIVE, reason=""
            )
            for delivery in self._of(webhook_id, PENDING):
                if delivery.record.next_at is not None:
                    next_at = min(at, delivery.record.next_at)
                    delivery.record = msgspec.structs.replace(delivery.record, next_at=next_at)
            self.state.log([hook_event("resumed", hook.record, "was resumed")], at)
        return await self.get_webhook(webhook_id)

    async def delete_webhook(self, webhook_id: str, *, now: Now = None) -> None:
        hook = self._hook(webhook_id)
        del self._hooks[webhook_id]
        self._deliveries = {
            i: d for i, d in self._deliveries.items() if d.record.webhook_id != webhook_id
        }
        self.state.log([hook_event("deleted", hook.record, "was deleted")], self.state.at(now))

    # ---- collecting

    async def list_subscriptions(self, max_pending: int) -> list[values.Subscription]:
        found = []
        for hook_id, hook in sorted(self._hooks.items()):
            room = max_pending - len(self._of(hook_id, PENDING))
            if hook.record.state is values.WebhookState.ACTIVE and room > 0:
                found.append(
                    values.Subscription(
                        webhook_id=hook_id,
                        cursor=hook.cursor,
                        events=hook.record.events,
                        project=hook.record.project,
                        room=room,
                    )
                )
        return found

    async def summarize_jobs(self, job_ids: Collection[str]) -> dict[str, values.JobSummary]:
        found = {}
        for job_id in job_ids:
            job = self.state.jobs.get(job_id)
            if job is not None:
                fields = shared_fields(self.state.job_record(job_id), values.JobSummary)
                found[job_id] = values.JobSummary(**fields, attempt=job.row.attempts)
        return found

    async def write_deliveries(
        self, batches: Sequence[values.DeliveryBatch], *, now: Now = None
    ) -> list[str]:
        at, moved = self.state.at(now), []
        for batch in batches:
            hook = self._hooks.get(batch.webhook_id)
            if (
                hook is None
                or hook.record.state is not values.WebhookState.ACTIVE
                or hook.cursor != batch.before
            ):
                continue
            hook.cursor = batch.after
            moved.append(batch.webhook_id)
            known = {
                d.record.event_id
                for d in self._deliveries.values()
                if d.record.webhook_id == batch.webhook_id
            }
            for new in batch.deliveries:
                if new.event_id in known:
                    continue
                self._seq += 1
                fields = shared_fields(new, values.DeliveryRecord) | {
                    "webhook_id": batch.webhook_id
                }
                record = values.DeliveryRecord(**fields, state=PENDING, tries=0, created_at=at)
                self._deliveries[new.id] = MemoryDelivery(
                    record=record, body=new.body, seq=self._seq
                )
                self._settle_sequence(self._deliveries[new.id], at)
        return sorted(moved)

    # ---- sending

    async def list_due(
        self, per_hook: int, flying: Collection[str], *, now: Now = None
    ) -> list[values.DueDelivery]:
        at, found = self.state.at(now), list[MemoryDelivery]()
        for hook_id, hook in self._hooks.items():
            if hook.record.state is not values.WebhookState.ACTIVE:
                continue
            due = [
                d
                for d in self._of(hook_id, PENDING)
                if d.record.next_at is not None
                and d.record.next_at <= at
                and d.record.id not in flying
            ]
            found += sorted(due, key=_due_order)[:per_hook]
        return [
            values.DueDelivery(
                id=d.record.id,
                webhook_id=d.record.webhook_id,
                sequence=d.sequence,
                seq=d.seq,
                tries=d.record.tries,
                body=d.body,
                url=self._hooks[d.record.webhook_id].record.url,
                secrets=_secrets(self._hooks[d.record.webhook_id], at),
            )
            for d in sorted(found, key=_due_order)
        ]

    async def record_tries(self, tries: Sequence[values.Tried], *, now: Now = None) -> list[str]:
        at, done = self.state.at(now), []
        events: list[NewEvent] = []
        for tried in tries:
            delivery = self._deliveries.get(tried.delivery_id)
            if (
                delivery is None
                or delivery.record.state is not PENDING
                or delivery.record.tries != tried.tries
            ):
                continue
            done.append(tried.delivery_id)
            # A delivery without a time was moved behind an older one while it was under way.
            waits = delivery.record.next_at is not None
            delivery.record = after = msgspec.structs.replace(
                delivery.record,
                state=tried.state,
                tries=tried.tries + 1,
                status=tried.status,
                error=tried.error,
                next_at=at + timedelta(seconds=tried.delay_seconds)
                if tried.state is PENDING and waits
                else None,
                delivered_at=at if tried.state is DELIVERED else None,
            )
            if tried.state is not PENDING:
                self._settle_sequence(delivery, at)
            if tried.state is DEAD and not after.event_kind.startswith(
                values.ABOUT_HOOKS
            ):  # HOOK-3
                hook = self._hooks[after.webhook_id].record
                events.append(
                    dead_letter_event(hook, after.id, after.event_id, after.tries, after.error)
                )
        self.state.log(events, at)
        for tried in tries:
            if tried.pause is not None and tried.delivery_id in done:
                self._pause(self._hooks[tried.webhook_id], tried.pause, at)
        return sorted(done)

    # ---- looking, and sending again

    async def list_deliveries(
        self,
        webhook_id: str,
        *,
        states: Sequence[values.DeliveryState] = (),
        before: str | None = None,
        limit: int = 100,
    ) -> list[values.DeliveryRecord]:
        self._hook(webhook_id)
        found = [
            d.record
            for d in self._of(webhook_id, *states)
            if before is None or d.record.id < before
        ]
        return sorted(found, key=lambda d: d.id, reverse=True)[:limit]

    async def get_delivery(
        self, webhook_id: str, delivery_id: str
    ) -> tuple[values.DeliveryRecord, str]:
        found = self._delivery(webhook_id, delivery_id)
        return found.record, found.body

    async def redeliver(
        self, webhook_id: str, delivery_id: str, *, now: Now = None
    ) -> values.DeliveryRecord:
        found, at = self._delivery(webhook_id, delivery_id), self.state.at(now)
        tries = found.record.tries if found.record.state is PENDING else 0
        next_at = at if found.record.next_at is not None else None
        found.record = msgspec.structs.replace(
            found.record, state=PENDING, tries=tries, next_at=next_at, delivered_at=None
        )
        self._settle_sequence(found, at)
        return found.record

    async def redeliver_dead(self, webhook_id: str, *, now: Now = None) -> int:
        self._hook(webhook_id)
        dead = self._of(webhook_id, DEAD)
        for delivery in dead:
            await self.redeliver(webhook_id, delivery.record.id, now=now)
        return len(dead)

    async def count_deliveries(self) -> Mapping[str, int]:
        states = [d.record.state for d in self._deliveries.values()]
        return {"pending": states.count(PENDING), "dead": states.count(DEAD)}

    async def prune_deliveries(
        self, history_days: float, *, limit: int = 1000, now: Now = None
    ) -> int:
        before = self.state.at(now) - timedelta(days=history_days)
        old = [d.record for d in self._deliveries.values() if d.record.state is not PENDING]
        gone = sorted((d.created_at, d.id) for d in old if d.created_at < before)[:limit]
        for _, delivery_id in gone:
            del self._deliveries[delivery_id]
        return len(gone)

    def _hook(self, webhook_id: str) -> MemoryHook:
        hook = self._hooks.get(webhook_id)
        if hook is None:
            raise no_webhook(webhook_id)
        return hook

    def _settle_sequence(self, one: MemoryDelivery, at: datetime) -> None:
        """Make only the oldest pending delivery of the sequence of `one` due (HOOK-1)."""
        sequence = sorted(
            (d for d in self._of(one.record.webhook_id, PENDING) if d.sequence == one.sequence),
            key=lambda d: d.seq,
        )
        for place, delivery in enumerate(sequence):
            if (delivery.record.next_at is None) is (place == 0):
                delivery.record = msgspec.structs.replace(
                    delivery.record, next_at=None if place else at
                )

    def _of(self, webhook_id: str, *states: values.DeliveryState) -> list[MemoryDelivery]:
        return [
            d
            for d in self._deliveries.values()
            if d.record.webhook_id == webhook_id and (not states or d.record.state in states)
        ]

    def _delivery(self, webhook_id: str, delivery_id: str) -> MemoryDelivery:
        found = self._deliveries.get(delivery_id)
        if found is None or found.record.webhook_id != webhook_id:
            raise no_delivery(webhook_id, delivery_id)
        return found


def _due_order(delivery: MemoryDelivery) -> tuple[datetime, int]:
    assert delivery.record.next_at is not None
    return delivery.record.next_at, delivery.seq


def _secrets(hook: MemoryHook, at: datetime) -> tuple[str, ...]:
    until = hook.record.old_secret_until
    old = hook.old_secret if until is not None and until > at else None
    return (hook.secret,) if old is None else (hook.secret, old)
