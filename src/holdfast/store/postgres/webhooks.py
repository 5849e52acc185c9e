"""Webhooks in PostgreSQL."""

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec

from holdfast.core.transitions import step_unless_late
from holdfast.core.webhooks import values
from holdfast.core.webhooks.transitions import WEBHOOK, WebhookEvent
from holdfast.moves.events import dead_letter_event, hook_event, no_delivery, no_webhook
from holdfast.moves.rows import NewEvent
from holdfast.store.clock import Now
from holdfast.store.postgres.connection.parts import OnSession, reads, transacts
from holdfast.store.postgres.connection.session import Rows, Tx, to_json
from holdfast.store.postgres.moves import write_events


class NewWebhook(msgspec.Struct, frozen=True, kw_only=True):
    """A hook to be written (checked by the caller)."""

    id: str
    url: str
    secret: str
    events: tuple[str, ...] = ()
    project: str | None = None
    name: str = ""


class WebhookChange(msgspec.Struct, frozen=True, kw_only=True):
    """The changes of a hook; UNSET leaves a field as it is."""

    url: str | msgspec.UnsetType = msgspec.UNSET
    events: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET
    project: str | msgspec.UnsetType | None = msgspec.UNSET
    name: str | msgspec.UnsetType = msgspec.UNSET


class SignedTarget(msgspec.Struct, frozen=True, kw_only=True):
    """The url of a hook's deliveries, and every secret that signs them now, the present one
    first."""

    url: str
    secrets: tuple[str, ...]


class PostgresWebhooks(OnSession):
    """Hooks and their deliveries.

    Every change of a hook writes its event (webhook.created, .changed, .paused, …). Methods that
    take a webhook's or a delivery's id raise NotFound.
    """

    @transacts
    async def create_webhook(
        self, tx: Tx, new: NewWebhook, *, now: Now = None
    ) -> values.WebhookRecord:
        """Write a webhook. It gets every event that is committed after this call, and no event that
        a reader saw before it. A repeated id returns the webhook that is on record."""
        at = await tx.now(now)
        params = {**msgspec.structs.asdict(new), "events": list(new.events), "now": at}
        made = await tx.one("insert_webhook", **params)
        hook = await _read(tx, new.id)
        if made is not None:
            await write_events(
                tx, [hook_event("created", hook, "was created", events=list(new.events))], at
            )
        return hook

    async def list_webhooks(self) -> list[values.WebhookRecord]:
        """Return every hook, oldest first."""
        return await self.session.list_of(
            values.WebhookRecord, "list_webhooks", id=None, notices=False
        )

    async def get_webhook(self, webhook_id: str) -> values.WebhookRecord:
        """Return a hook."""
        return await self.session.single(lambda tx: _read(tx, webhook_id))

    async def get_webhook_target(self, webhook_id: str, *, now: Now = None) -> SignedTarget:
        """Return the url of a hook's deliveries and the secrets that sign them."""
        rows = await self.session.rows("read_webhook_target", id=webhook_id, notice=False, now=now)
        if not rows:
            raise no_webhook(webhook_id)
        return SignedTarget(url=rows[0]["url"], secrets=_secrets(rows[0]))

    @transacts
    async def change_webhook(
        self, tx: Tx, webhook_id: str, change: WebhookChange, *, now: Now = None
    ) -> values.WebhookRecord:
        """Change a hook. Deliveries that are pending go to the new url too."""
        before = await _lock(tx, webhook_id)
        fields = {
            n: v for n in change.__struct_fields__ if (v := getattr(change, n)) is not msgspec.UNSET
        }
        after = msgspec.structs.replace(before, **fields)
        if after != before:
            params = {**msgspec.structs.asdict(after), "events": list(after.events)}
            await tx.run("write_webhook", **params)
            text = f"was changed: {', '.join(sorted(fields))}"
            await write_events(
                tx, [hook_event("changed", after, text, changed=sorted(fields))], await tx.now(now)
            )
        return await _read(tx, webhook_id)

    @transacts
    async def rotate_webhook(
        self, tx: Tx, webhook_id: str, secret: str, grace_seconds: float, *, now: Now = None
    ) -> values.WebhookRecord:
        """Give a webhook a new secret. The old secret signs deliveries too for `grace_seconds`."""
        at = await tx.now(now)
        hook = await _lock(tx, webhook_id)
        await tx.run("rotate_webhook", id=webhook_id, secret=secret, grace=grace_seconds, now=at)
        event = hook_event(
            "changed", hook, "has a new secret", changed=["secret"], grace_seconds=grace_seconds
        )
        await write_events(tx, [event], at)
        return await _read(tx, webhook_id)

    @transacts
    async def pause_webhook(
        self, tx: Tx, webhook_id: str, reason: str, *, now: Now = None
    ) -> values.WebhookRecord:
        """Pause a webhook: nothing is sent, and its cursor stays. A webhook that is paused already
        keeps its first reason."""
        hook = await _lock(tx, webhook_id)
        events = await _pause(tx, hook, reason)
        await write_events(tx, events, await tx.now(now))
        return await _read(tx, webhook_id)

    @transacts
    async def resume_webhook(
        self, tx: Tx, webhook_id: str, *, now: Now = None
    ) -> values.WebhookRecord:
        """Resume a hook where it stopped; pending deliveries are due at once."""
        at = await tx.now(now)
        hook = await _lock(tx, webhook_id)
        if step_unless_late(WEBHOOK, hook.state, WebhookEvent.RESUME) is not None:
            await tx.run("resume_webhook", id=webhook_id)
            await tx.run("hurry_deliveries", id=webhook_id, now=at)
            await write_events(tx, [hook_event("resumed", hook, "was resumed")], at)
        return await _read(tx, webhook_id)

    @transacts
    async def delete_webhook(self, tx: Tx, webhook_id: str, *, now: Now = None) -> None:
        """Forget a hook and its deliveries."""
        hook = await _lock(tx, webhook_id)
        await tx.run("delete_webhook", id=webhook_id)
        await write_events(tx, [hook_event("deleted", hook, "was deleted")], await tx.now(now))

    # ---- collecting

    async def list_subscriptions(self, max_pending: int) -> list[values.Subscription]:
        """Return active hooks with fewer than `max_pending` pending deliveries."""
        return await self.session.list_of(
            values.Subscription, "list_subscriptions", max=max_pending
        )

    async def summarize_jobs(self, job_ids: Collection[str]) -> dict[str, values.JobSummary]:
        """Return the summaries of these jobs for deliveries; deleted jobs are missing."""
        if not job_ids:
            return {}
        params = {"ids": sorted(job_ids)}
        return {
            j.id: j
            for j in await self.session.list_of(values.JobSummary, "summarize_jobs", **params)
        }

    @transacts
    async def write_deliveries(
        self, tx: Tx, batches: Sequence[values.DeliveryBatch], *, now: Now = None
    ) -> list[str]:
        """Write deliveries and cursors in one transaction, those of a webhook only where it is
        active and its cursor still stands at `before`. A webhook never gets two deliveries of one
        event. Return the ids of the webhooks whose cursor moved."""
        steps = [
            {"webhook_id": b.webhook_id, "before": b.before, "after": b.after} for b in batches
        ]
        if not steps:
            return []
        moved = {row["id"] for row in await tx.rows("move_cursors", rows=to_json(steps))}
        rows = [
            {"webhook_id": b.webhook_id, **msgspec.structs.asdict(d)}
            for b in batches
            if b.webhook_id in moved
            for d in b.deliveries
        ]
        if rows:
            at = await tx.now(now)
            made = await tx.rows("insert_deliveries", rows=to_json(rows), now=at)
            await tx.run("promote_sequences", **_sequences(made), now=at)
        return sorted(moved)

    # ---- sending

    async def list_due(
        self, per_hook: int, flying: Collection[str], *, now: Now = None
    ) -> list[values.DueDelivery]:
        """Return pending deliveries of active hooks whose time has come, only the oldest of each
        sequence (HOOK-1), without the ids in `flying`."""
        rows = await self.session.rows("list_due", per_hook=per_hook, flying=list(flying), now=now)
        found = []
        for row in rows:
            secrets = _secrets(row)
            del row["secret"], row["old_secret"]
            found.append(values.DueDelivery(secrets=secrets, **row))
        return found

    @transacts
    async def record_tries(
        self, tx: Tx, tries: Sequence[values.Tried], *, now: Now = None
    ) -> list[str]:
        """Write the results of tries, each only where the delivery is still pending after as many
        tries as when it was sent, so that of two senders one counts. A dead delivery leaves event
        webhook.dead_letter (HOOK-3), a pause webhook.paused. Returns the delivery ids applied."""
        if not tries:
            return []
        at = await tx.now(now)
        ids = sorted({tried.webhook_id for tried in tries})
        hooks = {
            hook.id: hook
            for hook in await tx.list_of(values.WebhookRecord, "lock_webhooks", ids=ids)
        }
        applied = await tx.rows("record_tries", rows=to_json(list(tries)), now=at)
        over = [row for row in applied if row["state"] != values.DeliveryState.PENDING]
        if over:
            await tx.run("promote_sequences", **_sequences(over), now=at)
        events = [
            dead_letter_event(
                hooks[row["webhook_id"]], row["id"], row["event_id"], row["tries"], row["error"]
            )
            for row in applied
            if row["state"] == values.DeliveryState.DEAD
            and not row["event_kind"].startswith(values.ABOUT_HOOKS)  # HOOK-3
        ]
        done = {row["id"] for row in applied}
        reasons = {
            t.webhook_id: t.pause for t in tries if t.pause is not None and t.delivery_id in done
        }
        for hook_id, reason in sorted(reasons.items()):
            events += await _pause(tx, hooks[hook_id], reason)
        await write_events(tx, events, at)
        return sorted(done)

    # ---- looking, and sending again

    @reads
    async def list_deliveries(
        self,
        tx: Tx,
        webhook_id: str,
        *,
        states: Sequence[values.DeliveryState] = (),
        before: str | None = None,
        limit: int = 100,
    ) -> list[values.DeliveryRecord]:
        """Return a hook's deliveries with ids under `before`, newest first."""
        params = {
            "webhook_id": webhook_id,
            "states": [str(s) for s in states] or None,
            "before": before,
            "limit": limit,
        }
        await _read(tx, webhook_id)
        return await tx.list_of(values.DeliveryRecord, "list_deliveries", **params)

    async def get_delivery(
        self, webhook_id: str, delivery_id: str
    ) -> tuple[values.DeliveryRecord, str]:
        """Return a delivery and its body."""
        rows = await self.session.rows("get_delivery", webhook_id=webhook_id, id=delivery_id)
        if not rows:
            raise no_delivery(webhook_id, delivery_id)
        body = rows[0].pop("body")
        return msgspec.convert(rows[0], values.DeliveryRecord), body

    @transacts
    async def redeliver(
        self, tx: Tx, webhook_id: str, delivery_id: str, *, now: Now = None
    ) -> values.DeliveryRecord:
        """Make a delivery due at once. A dead or delivered one starts with no tries, at its old
        place in its sequence; a pending one merely waits no longer."""
        at = await tx.now(now)
        hook = await _lock(tx, webhook_id)
        params = {"webhook_id": webhook_id, "id": delivery_id}
        row = await tx.one("redeliver", **params, now=at)
        if row is None:
            raise no_delivery(webhook_id, delivery_id)
        said = f"sends delivery {delivery_id} again"
        await write_events(tx, [hook_event("redelivered", hook, said, delivery=delivery_id)], at)
        await _settle_sequences(tx, webhook_id, [row], at)
        found = await tx.one("get_delivery", **params)
        assert found is not None
        del found["body"]
        return msgspec.convert(found, values.DeliveryRecord)

    @transacts
    async def redeliver_dead(self, tx: Tx, webhook_id: str, *, now: Now = None) -> int:
        """Redeliver every dead delivery as `redeliver` does. Return how many."""
        at, hook = await tx.now(now), await _lock(tx, webhook_id)
        rows = await tx.rows("redeliver_dead", webhook_id=webhook_id)
        await _settle_sequences(tx, webhook_id, rows, at)
        if rows:
            said = f"sends its {len(rows)} dead deliveries again"
            await write_events(tx, [hook_event("redelivered", hook, said, count=len(rows))], at)
        return len(rows)

    @transacts
    async def prune_deliveries(
        self, tx: Tx, history_days: float, *, limit: int = 1000, now: Now = None
    ) -> int:
        """Delete delivered and dead deliveries that were written more than `history_days` ago.
        Return how many."""
        before = await tx.now(now) - timedelta(days=history_days)
        return await tx.run("prune_deliveries", before=before, limit=limit)


async def _read(tx: Tx, webhook_id: str) -> values.WebhookRecord:
    hook = await tx.find(values.WebhookRecord, "list_webhooks", id=webhook_id, notices=False)
    if hook is None:
        raise no_webhook(webhook_id)
    return hook


async def _lock(tx: Tx, webhook_id: str) -> values.WebhookRecord:
    hook = await tx.find(values.WebhookRecord, "lock_webhooks", ids=[webhook_id])
    if hook is None or hook.service:
        raise no_webhook(webhook_id)
    return hook


async def _pause(tx: Tx, hook: values.WebhookRecord, reason: str) -> list[NewEvent]:
    """Pause a locked hook and return the event, unless it is paused."""
    if step_unless_late(WEBHOOK, hook.state, WebhookEvent.PAUSE) is None:
        return []
    await tx.run("pause_webhook", id=hook.id, reason=reason)
    return [hook_event("paused", hook, f"was paused: {reason}", reason=reason)]


async def _settle_sequences(tx: Tx, webhook_id: str, rows: Rows, at: datetime) -> None:
    """Make only the oldest pending delivery of each of these sequences due (HOOK-1), after older
    ones became pending again."""
    sequences = _sequences([{"webhook_id": webhook_id, **row} for row in rows])
    await tx.run("demote_sequences", **sequences)
    await tx.run("promote_sequences", **sequences, now=at)


def _sequences(rows: Rows) -> dict[str, Any]:
    return {
        "hooks": [row["webhook_id"] for row in rows],
        "sequences": [row["sequence"] for row in rows],
    }


def _secrets(row: dict[str, Any]) -> tuple[str, ...]:
    return tuple(secret for secret in (row["secret"], row["old_secret"]) if secret is not None)
