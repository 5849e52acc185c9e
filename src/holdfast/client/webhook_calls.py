"""The calls about webhooks, as values. See `client.calls`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from holdfast.client.calls import Call, Page, _encode, _nothing, _part, _query, _reader
from holdfast.core.webhooks.values import DeliveryRecord, WebhookRecord
from holdfast.errors import ValidationError
from holdfast.wire.webhooks import (
    DeliveryView,
    Redelivered,
    RotateRequest,
    TestResult,
    WebhookCreated,
    WebhookPatch,
    WebhookPause,
    WebhookRequest,
)

_HOOK = _reader(WebhookRecord)


def webhooks() -> Call[Page[WebhookRecord]]:
    """Every hook."""
    return Call("GET", "/v1/webhooks", _reader(Page[WebhookRecord]))


def webhook(webhook_id: str) -> Call[WebhookRecord]:
    """One hook."""
    return Call("GET", _path(webhook_id), _HOOK)


def create_webhook(
    url: str,
    *,
    events: Sequence[str] = (),
    project: str | None = None,
    name: str = "",
    secret: str | None = None,
) -> Call[WebhookCreated]:
    """Not repeatable: every call makes another hook."""
    given = {"url": url, "events": list(events), "project": project, "name": name, "secret": secret}
    body = _checked(given, WebhookRequest)
    return Call("POST", "/v1/webhooks", _reader(WebhookCreated), body=body, repeatable=False)


def change_webhook(webhook_id: str, changes: Mapping[str, Any]) -> Call[WebhookRecord]:
    """`changes`: url, events, project or name."""
    return Call("PATCH", _path(webhook_id), _HOOK, body=_checked(dict(changes), WebhookPatch))


def delete_webhook(webhook_id: str) -> Call[None]:
    """Not repeatable: the second would find nothing."""
    return Call("DELETE", _path(webhook_id), _nothing, repeatable=False)


def rotate_webhook(
    webhook_id: str, secret: str | None, grace_seconds: float
) -> Call[WebhookCreated]:
    """Not repeatable: a second one would end the grace of the first secret."""
    body = _checked({"secret": secret, "grace_seconds": grace_seconds}, RotateRequest)
    return Call(
        "POST", _path(webhook_id, "rotate"), _reader(WebhookCreated), body=body, repeatable=False
    )


def pause_webhook(webhook_id: str, reason: str) -> Call[WebhookRecord]:
    """Send nothing more."""
    return Call(
        "POST", _path(webhook_id, "pause"), _HOOK, body=_checked({"reason": reason}, WebhookPause)
    )


def resume_webhook(webhook_id: str) -> Call[WebhookRecord]:
    """Send again."""
    return Call("POST", _path(webhook_id, "resume"), _HOOK, body=b"{}")


def test_webhook(webhook_id: str) -> Call[TestResult]:
    """One try now. Not repeatable: the receiver would have two."""
    return Call(
        "POST", _path(webhook_id, "test"), _reader(TestResult), body=b"{}", repeatable=False
    )


def deliveries(
    webhook_id: str, *, states: Sequence[str] = (), limit: int | None = None
) -> Call[Page[DeliveryRecord]]:
    """A hook's deliveries, newest first."""
    query = _query(state=list(states), limit=limit)
    return Call("GET", _path(webhook_id, "deliveries"), _reader(Page[DeliveryRecord]), query)


def delivery(webhook_id: str, delivery_id: str) -> Call[DeliveryView]:
    """One delivery with its body."""
    return Call(
        "GET", f"{_path(webhook_id, 'deliveries')}/{_part(delivery_id)}", _reader(DeliveryView)
    )


def redeliver(webhook_id: str, delivery_id: str) -> Call[DeliveryRecord]:
    """Send a delivery again."""
    path = f"{_path(webhook_id, 'deliveries')}/{_part(delivery_id)}/redeliver"
    return Call("POST", path, _reader(DeliveryRecord), body=b"{}")


def redeliver_dead(webhook_id: str) -> Call[Redelivered]:
    """Not repeatable: the second would count none."""
    return Call(
        "POST",
        _path(webhook_id, "redeliver-dead"),
        _reader(Redelivered),
        body=b"{}",
        repeatable=False,
    )


def _path(webhook_id: str, more: str = "") -> str:
    return f"/v1/webhooks/{_part(webhook_id)}" + (f"/{more}" if more else "")


def _checked(given: dict[str, Any], kind: type[msgspec.Struct]) -> bytes:
    try:
        return _encode(msgspec.convert(given, kind))
    except msgspec.ValidationError as error:
        raise ValidationError(f"a webhook cannot be like this: {error}") from error
