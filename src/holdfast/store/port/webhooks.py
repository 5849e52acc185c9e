"""Webhooks and their deliveries."""

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

import msgspec

from holdfast.core.webhooks import values
from holdfast.store.port.clock import Now


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


class WebhookStore(Protocol):
    """Hooks and their deliveries.

    Every change of a hook writes its event (webhook.created, .changed, .paused, …). Methods that
    take a webhook's or a delivery's id raise NotFound.
    """

    async def create_webhook(self, new: NewWebhook, *, now: Now = None) -> values.WebhookRecord:
        """Write a hook. It gets every event that is committed after this call, and none that a
        reader saw before it. A repeated id returns the hook that is there."""

    async def list_webhooks(self) -> list[values.WebhookRecord]:
        """Return every hook, oldest first."""

    async def get_webhook(self, webhook_id: str) -> values.WebhookRecord:
        """Return a hook."""

    async def get_webhook_target(self, webhook_id: str, *, now: Now = None) -> SignedTarget:
        """Return the url of a hook's deliveries and the secrets that sign them."""

    async def change_webhook(
        self, webhook_id: str, change: WebhookChange, *, now: Now = None
    ) -> values.WebhookRecord:
        """Change a hook. Deliveries that are pending go to the new url too."""

    async def rotate_webhook(
        self, webhook_id: str, secret: str, grace_seconds: float, *, now: Now = None
    ) -> values.WebhookRecord:
        """Give a hook a new secret; the one before signs too for `grace_seconds`."""

    async def pause_webhook(
        self, webhook_id: str, reason: str, *, now: Now = None
    ) -> values.WebhookRecord:
        """Pause a hook: nothing is sent, and its cursor stays. A paused hook keeps its first
        reason."""

    async def resume_webhook(self, webhook_id: str, *, now: Now = None) -> values.WebhookRecord:
        """Resume a hook where it stopped; pending deliveries are due at once."""

    async def delete_webhook(self, webhook_id: str, *, now: Now = None) -> None:
        """Forget a hook and its deliveries."""

    async def list_subscriptions(self, max_pending: int) -> list[values.Subscription]:
        """Return active hooks with fewer than `max_pending` pending deliveries."""

    async def summarize_jobs(self, job_ids: Collection[str]) -> dict[str, values.JobSummary]:
        """Return the summaries of these jobs for deliveries; deleted jobs are missing."""

    async def write_deliveries(
        self, batches: Sequence[values.DeliveryBatch], *, now: Now = None
    ) -> list[str]:
        """Write deliveries and cursors in one transaction, each hook's only where it is active and
        its cursor stands at `before`. A hook never gets two deliveries of one event. Return the ids
        of the hooks whose cursor moved."""

    async def list_due(
        self, per_hook: int, flying: Collection[str], *, now: Now = None
    ) -> list[values.DueDelivery]:
        """Return pending deliveries of active hooks whose time has come, only the oldest of each
        sequence (HOOK-1), without the ids in `flying`."""

    async def record_tries(self, tries: Sequence[values.Tried], *, now: Now = None) -> list[str]:
        """Write the results of tries, each only where the delivery is still pending after as many
        tries as when it was sent, so that of two senders one counts. A dead delivery leaves event
        webhook.dead_letter (HOOK-3), a pause webhook.paused. Returns the delivery ids applied."""

    async def list_deliveries(
        self,
        webhook_id: str,
        *,
        states: Sequence[values.DeliveryState] = (),
        before: str | None = None,
        limit: int = 100,
    ) -> list[values.DeliveryRecord]:
        """Return a hook's deliveries with ids under `before`, newest first."""

    async def get_delivery(
        self, webhook_id: str, delivery_id: str
    ) -> tuple[values.DeliveryRecord, str]:
        """Return a delivery and its body."""

    async def redeliver(
        self, webhook_id: str, delivery_id: str, *, now: Now = None
    ) -> values.DeliveryRecord:
        """Make a delivery due at once: a dead or delivered one with its tries fresh and in its old
        place of its sequence; a pending one without waiting longer."""

    async def redeliver_dead(self, webhook_id: str, *, now: Now = None) -> int:
        """Redeliver every dead delivery as `redeliver` does. Return how many."""

    async def count_deliveries(self) -> Mapping[str, int]:
        """Return the number of deliveries over all hooks, by the keys "pending" and "dead"."""

    async def prune_deliveries(
        self, history_days: float, *, limit: int = 1000, now: Now = None
    ) -> int:
        """Delete delivered and dead deliveries written longer ago than that. Return how many."""
