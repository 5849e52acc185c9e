"""What both clients do with webhooks. `holdfast.webhooks` is the other side: what a receiver
needs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any, Protocol, TypeVar

from holdfast.client import webhook_calls as calls
from holdfast.client.calls import Call, Page
from holdfast.core.webhooks.values import DeliveryRecord, WebhookRecord
from holdfast.wire.webhooks import DAY_SECONDS, DeliveryView, TestResult, WebhookCreated

T = TypeVar("T")


class _Sends(Protocol):
    def call(self, call: Call[T]) -> T: ...

    def pages(self, call: Call[Page[T]]) -> Iterator[T]: ...


class _AsyncSends(Protocol):
    async def call(self, call: Call[T]) -> T: ...

    def pages(self, call: Call[Page[T]]) -> AsyncIterator[T]: ...


class WebhookMethods:
    """The blocking client's part. All of it takes an admin token."""

    def webhooks(self: _Sends) -> list[WebhookRecord]:
        """Every webhook, without its secret."""
        return list(self.pages(calls.webhooks()))

    def webhook(self: _Sends, webhook_id: str) -> WebhookRecord:
        """One webhook."""
        return self.call(calls.webhook(webhook_id))

    def create_webhook(
        self: _Sends,
        url: str,
        *,
        events: Sequence[str] = (),
        project: str | None = None,
        name: str = "",
        secret: str | None = None,
    ) -> WebhookCreated:
        """Send events to `url`: those that match a pattern ("job.*"), or all. The answer has the
        secret, this once."""
        return self.call(
            calls.create_webhook(url, events=events, project=project, name=name, secret=secret)
        )

    def change_webhook(self: _Sends, webhook_id: str, **changes: Any) -> WebhookRecord:
        """Change `url`, `events`, `project` (None: every project) or `name`."""
        return self.call(calls.change_webhook(webhook_id, changes))

    def delete_webhook(self: _Sends, webhook_id: str) -> None:
        """Forget a webhook and its deliveries."""
        self.call(calls.delete_webhook(webhook_id))

    def rotate_webhook(
        self: _Sends,
        webhook_id: str,
        *,
        secret: str | None = None,
        grace_seconds: float = DAY_SECONDS,
    ) -> WebhookCreated:
        """A new secret; the one before signs too for `grace_seconds`."""
        return self.call(calls.rotate_webhook(webhook_id, secret, grace_seconds))

    def pause_webhook(self: _Sends, webhook_id: str, reason: str = "") -> WebhookRecord:
        """Send nothing more; events are kept for its resumption."""
        return self.call(calls.pause_webhook(webhook_id, reason))

    def resume_webhook(self: _Sends, webhook_id: str) -> WebhookRecord:
        """Go on where it stopped."""
        return self.call(calls.resume_webhook(webhook_id))

    def test_webhook(self: _Sends, webhook_id: str) -> TestResult:
        """Send one event `webhook.test` now, and say what came of it."""
        return self.call(calls.test_webhook(webhook_id))

    def deliveries(
        self: _Sends, webhook_id: str, *, states: Sequence[str] = (), page_size: int | None = None
    ) -> Iterator[DeliveryRecord]:
        """Its deliveries, newest first, page by page as they are asked for. states: pending,
        delivered, dead."""
        return self.pages(calls.deliveries(webhook_id, states=states, limit=page_size))

    def delivery(self: _Sends, webhook_id: str, delivery_id: str) -> DeliveryView:
        """One delivery with its body."""
        return self.call(calls.delivery(webhook_id, delivery_id))

    def redeliver(self: _Sends, webhook_id: str, delivery_id: str) -> DeliveryRecord:
        """Send a delivery again: a dead or delivered one with its tries fresh, a pending one
        without waiting longer."""
        return self.call(calls.redeliver(webhook_id, delivery_id))

    def redeliver_dead(self: _Sends, webhook_id: str) -> int:
        """Send every dead delivery again. Returns how many."""
        return self.call(calls.redeliver_dead(webhook_id)).count


class AsyncWebhookMethods:
    """The asyncio client's part: the same, awaited."""

    async def webhooks(self: _AsyncSends) -> list[WebhookRecord]:
        """Every webhook, without its secret."""
        return [hook async for hook in self.pages(calls.webhooks())]

    async def webhook(self: _AsyncSends, webhook_id: str) -> WebhookRecord:
        """One webhook."""
        return await self.call(calls.webhook(webhook_id))

    async def create_webhook(
        self: _AsyncSends,
        url: str,
        *,
        events: Sequence[str] = (),
        project: str | None = None,
        name: str = "",
        secret: str | None = None,
    ) -> WebhookCreated:
        """Send events to `url`: those that match a pattern ("job.*"), or all. The answer has the
        secret, this once."""
        return await self.call(
            calls.create_webhook(url, events=events, project=project, name=name, secret=secret)
        )

    async def change_webhook(self: _AsyncSends, webhook_id: str, **changes: Any) -> WebhookRecord:
        """Change `url`, `events`, `project` (None: every project) or `name`."""
        return await self.call(calls.change_webhook(webhook_id, changes))

    async def delete_webhook(self: _AsyncSends, webhook_id: str) -> None:
        """Forget a webhook and its deliveries."""
        await self.call(calls.delete_webhook(webhook_id))

    async def rotate_webhook(
        self: _AsyncSends,
        webhook_id: str,
        *,
        secret: str | None = None,
        grace_seconds: float = DAY_SECONDS,
    ) -> WebhookCreated:
        """A new secret; the one before signs too for `grace_seconds`."""
        return await self.call(calls.rotate_webhook(webhook_id, secret, grace_seconds))

    async def pause_webhook(self: _AsyncSends, webhook_id: str, reason: str = "") -> WebhookRecord:
        """Send nothing more; events are kept for its resumption."""
        return await self.call(calls.pause_webhook(webhook_id, reason))

    async def resume_webhook(self: _AsyncSends, webhook_id: str) -> WebhookRecord:
        """Go on where it stopped."""
        return await self.call(calls.resume_webhook(webhook_id))

    async def test_webhook(self: _AsyncSends, webhook_id: str) -> TestResult:
        """Send one event `webhook.test` now, and say what came of it."""
        return await self.call(calls.test_webhook(webhook_id))

    def deliveries(
        self: _AsyncSends,
        webhook_id: str,
        *,
        states: Sequence[str] = (),
        page_size: int | None = None,
    ) -> AsyncIterator[DeliveryRecord]:
        """Its deliveries, newest first, page by page as they are asked for. states: pending,
        delivered, dead."""
        return self.pages(calls.deliveries(webhook_id, states=states, limit=page_size))

    async def delivery(self: _AsyncSends, webhook_id: str, delivery_id: str) -> DeliveryView:
        """One delivery with its body."""
        return await self.call(calls.delivery(webhook_id, delivery_id))

    async def redeliver(self: _AsyncSends, webhook_id: str, delivery_id: str) -> DeliveryRecord:
        """Send a delivery again: a dead or delivered one with its tries fresh, a pending one
        without waiting longer."""
        return await self.call(calls.redeliver(webhook_id, delivery_id))

    async def redeliver_dead(self: _AsyncSends, webhook_id: str) -> int:
        """Send every dead delivery again. Returns how many."""
        return (await self.call(calls.redeliver_dead(webhook_id))).count
