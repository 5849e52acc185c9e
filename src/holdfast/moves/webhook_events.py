"""What both stores say of webhooks: their events and their errors.

No url in an event: its path may be a secret (chat services do that), and events are shown to read
tokens. Its host is enough.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from holdfast.core.webhooks.values import ABOUT_HOOKS, WebhookRecord
from holdfast.errors import NotFound
from holdfast.moves.rows import NewEvent


def hook_event(what: str, hook: WebhookRecord, message: str, **data: object) -> NewEvent:
    """The event `webhook.<what>`; it carries the hook's id, by which HOOK-3 keeps it from the hook
    itself."""
    return NewEvent(
        kind=ABOUT_HOOKS + what,
        project=hook.project,
        message=f"webhook {say_hook(hook)} {message}",
        data={"webhook_id": hook.id, **data},
    )


def say_hook(hook: WebhookRecord) -> str:
    """A hook's name for people."""
    return hook.name or f"{hook.id} to {urlsplit(hook.url).hostname}"


def dead_letter_event(
    hook: WebhookRecord, delivery_id: str, event_id: str, tries: int, error: str
) -> NewEvent:
    """The event of a delivery nobody took."""
    return hook_event(
        "dead_letter",
        hook,
        f"gave delivery {delivery_id} up after {tries} tries: {error}",
        delivery_id=delivery_id,
        event_id=event_id,
        tries=tries,
    )


def no_webhook(webhook_id: str) -> NotFound:
    """The error for an id no hook has."""
    return NotFound(f"there is no webhook {webhook_id[:64]!r}; `holdfast webhooks` lists them")


def no_delivery(webhook_id: str, delivery_id: str) -> NotFound:
    """The error for an id no delivery of the hook has."""
    return NotFound(
        f"webhook {webhook_id} has no delivery {delivery_id[:64]!r}; `holdfast webhooks "
        f"deliveries {webhook_id}` lists them"
    )
