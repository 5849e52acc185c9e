"""Webhooks, as an operator keeps them. `holdfast.webhooks` is the other side, for receivers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

from holdfast.client.asynchronous.connection import AsyncRestConnection
from holdfast.client.calls import delete, get, get_pages, make_body, path_of, send
from holdfast.core.webhooks.values import DeliveryRecord, WebhookRecord
from holdfast.wire.webhooks import (
    DAY_SECONDS,
    DeliveryView,
    Redelivered,
    RotateRequest,
    TestResult,
    WebhookCreated,
    WebhookPatch,
    WebhookPause,
    WebhookRequest,
)

_COMPLAINT = "a webhook cannot be like this"


class AsyncWebhookMethods(AsyncRestConnection):
    """The client's methods about webhooks. All of them take an admin token."""

    async def webhooks(self) -> list[WebhookRecord]:
        """Return every webhook, without its secret."""
        return await self._list(get_pages(path_of("webhooks"), WebhookRecord))

    async def webhook(self, webhook_id: str) -> WebhookRecord:
        """Return one webhook."""
        return await self.call(get(path_of("webhooks", webhook_id), WebhookRecord))

    async def create_webhook(
        self,
        url: str,
        *,
        events: Sequence[str] = (),
        project: str | None = None,
        name: str = "",
        secret: str | None = None,
    ) -> WebhookCreated:
        """Send events to `url`: those that match a pattern ("job.*"), or all.

        The answer has the secret, this once; a lost answer is not asked for again.
        """
        given = {"url": url, "events": list(events), "project": project}
        given |= {"name": name, "secret": secret}
        body = make_body(given, WebhookRequest, _COMPLAINT)
        return await self.call(
            send("POST", path_of("webhooks"), WebhookCreated, body, repeatable=False)
        )

    async def change_webhook(self, webhook_id: str, **changes: Any) -> WebhookRecord:
        """Change `url`, `events`, `project` (None: every project) or `name`."""
        body = make_body(changes, WebhookPatch, _COMPLAINT)
        return await self.call(send("PATCH", path_of("webhooks", webhook_id), WebhookRecord, body))

    async def delete_webhook(self, webhook_id: str) -> None:
        """Forget a webhook and its deliveries."""
        await self.call(delete(path_of("webhooks", webhook_id)))

    async def rotate_webhook(
        self, webhook_id: str, *, secret: str | None = None, grace_seconds: float = DAY_SECONDS
    ) -> WebhookCreated:
        """Give it a new secret; the one before signs too for `grace_seconds`.

        A lost answer is not asked for again, because a second call would end that grace.
        """
        given = {"secret": secret, "grace_seconds": grace_seconds}
        body = make_body(given, RotateRequest, _COMPLAINT)
        path = path_of("webhooks", webhook_id, "rotate")
        return await self.call(send("POST", path, WebhookCreated, body, repeatable=False))

    async def pause_webhook(self, webhook_id: str, reason: str = "") -> WebhookRecord:
        """Send nothing more; events are kept for its resumption."""
        body = make_body({"reason": reason}, WebhookPause, _COMPLAINT)
        path = path_of("webhooks", webhook_id, "pause")
        return await self.call(send("POST", path, WebhookRecord, body))

    async def resume_webhook(self, webhook_id: str) -> WebhookRecord:
        """Send again, from the event at which it stopped."""
        path = path_of("webhooks", webhook_id, "resume")
        return await self.call(send("POST", path, WebhookRecord))

    async def test_webhook(self, webhook_id: str) -> TestResult:
        """Send one event `webhook.test` now, once, and return what came of it."""
        path = path_of("webhooks", webhook_id, "test")
        return await self.call(send("POST", path, TestResult, repeatable=False))

    def deliveries(
        self, webhook_id: str, *, states: Sequence[str] = (), page_size: int | None = None
    ) -> AsyncIterator[DeliveryRecord]:
        """Yield its deliveries, newest first; `states`: pending, delivered, dead."""
        path = path_of("webhooks", webhook_id, "deliveries")
        return self.pages(get_pages(path, DeliveryRecord, state=list(states), limit=page_size))

    async def delivery(self, webhook_id: str, delivery_id: str) -> DeliveryView:
        """Return one delivery with its body."""
        path = path_of("webhooks", webhook_id, "deliveries", delivery_id)
        return await self.call(get(path, DeliveryView))

    async def redeliver(self, webhook_id: str, delivery_id: str) -> DeliveryRecord:
        """Send a delivery again.

        A dead or delivered one begins its tries anew; a pending one waits no longer.
        """
        path = path_of("webhooks", webhook_id, "deliveries", delivery_id, "redeliver")
        return await self.call(send("POST", path, DeliveryRecord))

    async def redeliver_dead(self, webhook_id: str) -> int:
        """Send every dead delivery again, and return how many there were."""
        path = path_of("webhooks", webhook_id, "redeliver-dead")
        return (await self.call(send("POST", path, Redelivered, repeatable=False))).count
