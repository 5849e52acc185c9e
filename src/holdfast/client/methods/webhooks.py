"""Webhooks and notice targets, as an operator keeps them. `holdfast.webhooks` is the other side, for receivers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from holdfast.client.late import LateModule, on_notices, on_webhooks
from holdfast.client.rest import PageCall, RestCall, ask, make_body, query_of
from holdfast.client.scripts import Script, gives_each, gives_list, gives_one, runs, take_answer

if TYPE_CHECKING:
    from holdfast.core.webhooks import values
    from holdfast.wire import webhooks as wire
else:
    values = LateModule("holdfast.core.webhooks.values")
    wire = LateModule("holdfast.wire.webhooks")


T = TypeVar("T")
_COMPLAINT = "a webhook cannot be like this"


class WebhookMethods:
    """The client's methods about webhooks, which all need an admin token, and about notice targets."""

    @gives_list
    def webhooks(self) -> PageCall[values.WebhookRecord]:
        """Return every webhook, without its secret."""
        return ask(on_webhooks.LIST_WEBHOOKS)

    @gives_one
    def webhook(self, webhook_id: str) -> RestCall[values.WebhookRecord]:
        """Return one webhook."""
        return ask(on_webhooks.GET_WEBHOOK, webhook_id)

    @gives_one
    def create_webhook(
        self,
        url: str,
        *,
        events: Sequence[str] = (),
        project: str | None = None,
        name: str = "",
        secret: str | None = None,
    ) -> RestCall[wire.WebhookCreated]:
        """Send events to `url`: those that match a pattern ("job.*"), or all.

        The answer alone has the secret; the call is not repeated after a lost answer.
        """
        given = {"url": url, "events": list(events), "project": project}
        given |= {"name": name, "secret": secret}
        body = make_body(given, wire.WebhookRequest, _COMPLAINT)
        return ask(on_webhooks.CREATE_WEBHOOK, body=body)

    @gives_one
    def change_webhook(self, /, webhook_id: str, **changes: Any) -> RestCall[values.WebhookRecord]:
        """Change `url`, `events`, `project` (None: every project) or `name`."""
        body = make_body(changes, wire.WebhookPatch, _COMPLAINT)
        return ask(on_webhooks.PATCH_WEBHOOK, webhook_id, body=body)

    @gives_one
    def delete_webhook(self, webhook_id: str) -> RestCall[None]:
        """Forget a webhook and its deliveries."""
        return ask(on_webhooks.DELETE_WEBHOOK, webhook_id)

    @gives_one
    def rotate_webhook(
        self, webhook_id: str, *, secret: str | None = None, grace_seconds: float = 86_400.0
    ) -> RestCall[wire.WebhookCreated]:
        """Give the webhook a new secret; the old one also signs for `grace_seconds`.

        The call is not repeated after a lost answer, because a second call would end that grace.
        """
        given = {"secret": secret, "grace_seconds": grace_seconds}
        body = make_body(given, wire.RotateRequest, _COMPLAINT)

        return ask(on_webhooks.ROTATE_WEBHOOK, webhook_id, body=body)

    @gives_one
    def pause_webhook(self, webhook_id: str, reason: str = "") -> RestCall[values.WebhookRecord]:
        """Send nothing more to the webhook; its events are kept until it is resumed."""
        body = make_body({"reason": reason}, wire.WebhookPause, _COMPLAINT)

        return ask(on_webhooks.PAUSE_WEBHOOK, webhook_id, body=body)

    @gives_one
    def resume_webhook(self, webhook_id: str) -> RestCall[values.WebhookRecord]:
        """Send again, from the event at which the webhook was paused."""

        return ask(on_webhooks.RESUME_WEBHOOK, webhook_id)

    @gives_one
    def test_webhook(self, webhook_id: str) -> RestCall[wire.TestResult]:
        """Send one event `webhook.test` now, once, and return the outcome."""

        return ask(on_webhooks.TEST_WEBHOOK, webhook_id)

    @gives_each
    def deliveries(
        self, webhook_id: str, *, states: Sequence[str] = (), page_size: int | None = None
    ) -> PageCall[values.DeliveryRecord]:
        """Yield the webhook's deliveries, newest first. states: pending, delivered, dead."""

        return ask(on_webhooks.LIST_DELIVERIES, webhook_id, state=list(states), limit=page_size)

    @gives_one
    def delivery(self, webhook_id: str, delivery_id: str) -> RestCall[wire.DeliveryView]:
        """Return one delivery with its body."""

        return ask(on_webhooks.GET_DELIVERY, webhook_id, delivery_id)

    @gives_one
    def redeliver(self, webhook_id: str, delivery_id: str) -> RestCall[values.DeliveryRecord]:
        """Send a delivery again.

        A dead or delivered one has all its tries again; a pending one is sent at once.
        """

        return ask(on_webhooks.REDELIVER, webhook_id, delivery_id)

    @runs
    def redeliver_dead(self, webhook_id: str) -> Script[int]:
        """Send every dead delivery again, and return how many there were."""

        sent: wire.Redelivered = yield from take_answer(ask(on_webhooks.REDELIVER_DEAD, webhook_id))
        return sent.count

    @gives_list
    def notice_targets(self) -> PageCall[wire.NoticeTarget]:
        """Return every notice target, without its url."""
        return ask(on_notices.LIST_TARGETS)

    @gives_one
    def notice_target(self, name: str, project: str | None = None) -> RestCall[wire.NoticeTarget]:
        """Return one target, the cluster's or a project's, with the error of its last message."""
        return ask(on_notices.GET_TARGET, name, project=project)

    @gives_one
    def set_notice_target(
        self, name: str, url: str, project: str | None = None
    ) -> RestCall[wire.NoticeTarget]:
        """Make a notice target, or give it another url; no answer shows the url again."""
        body = make_body({"url": url}, wire.TargetRequest, "a notice target cannot be like this")
        call = ask(on_notices.PUT_TARGET, name, body=body)
        return _of_project(call, project)

    @gives_one
    def delete_notice_target(self, name: str, project: str | None = None) -> RestCall[None]:
        """Forget a target and its messages."""
        return _of_project(ask(on_notices.DELETE_TARGET, name), project)

    @gives_one
    def test_notice_target(
        self, name: str, project: str | None = None
    ) -> RestCall[wire.TestResult]:
        """Send one message now, once, and return the outcome."""

        return _of_project(ask(on_notices.TEST_TARGET, name), project)


def _of_project(call: RestCall[T], project: str | None) -> RestCall[T]:
    return msgspec.structs.replace(call, query=query_of(project=project))
