"""Ids of events, and the events and errors about webhooks.

No event holds a url, because its path may be a secret (in chat services it is) and read tokens show
events. The url's host is enough.
"""

from urllib.parse import urlsplit

from holdfast.core.webhooks.values import ABOUT_HOOKS, WebhookRecord
from holdfast.errors import NotFound, ValidationError
from holdfast.moves.rows import NewEvent


def no_token(token_id: str) -> NotFound:
    """Return the error for an unknown token."""
    return NotFound(f"there is no token {token_id!r}; `holdfast token list` shows them")


def token_event(what: str, token_id: str, text: str) -> NewEvent:
    """Return the event `token.<what>`."""
    return NewEvent(kind=f"token.{what}", message=text, data={"token_id": token_id})


def sign_in_event(what: str, sign_in_id: str, text: str) -> NewEvent:
    """Return the event `sign_in.<what>`."""
    return NewEvent(kind=f"sign_in.{what}", message=text, data={"sign_in_id": sign_in_id})


def calls_event(what: str, set_id: str, project: str, text: str) -> NewEvent:
    """Return the event `calls.<what>`, of a person's change to the calls of a set."""
    return NewEvent(kind=f"calls.{what}", project=project, message=text, data={"set": set_id})


def format_event_id(tx: int, number: int) -> str:
    """Return the opaque id of an event: fixed width, so that text order is the readers' order."""
    return f"{tx:012x}-{number:012x}"


def parse_event_id(text: str | None) -> tuple[int, int]:
    """Return (transaction, number) of an id, zeros for None; raise ValidationError for other text."""
    if text is None:
        return 0, 0
    try:
        tx, number = (int(part, 16) for part in text.split("-"))
        if not (0 <= tx < 2**63 and 0 <= number < 2**63):
            raise ValueError
    except ValueError:
        raise ValidationError(f"{text[:80]!r} is not the id of an event", field="after") from None
    return tx, number


def hook_event(what: str, hook: WebhookRecord, message: str, **data: object) -> NewEvent:
    """Return the event `webhook.<what>`. It carries the hook's id, so that it is never sent to that
    hook (HOOK-3)."""
    noun = "notice target" if hook.service else "webhook"
    text, kind = f"{noun} {say_hook(hook)} {message}", ABOUT_HOOKS + what
    data = {"webhook_id": hook.id, **data}
    return NewEvent(kind=kind, project=hook.project, message=text, data=data)


def say_hook(hook: WebhookRecord) -> str:
    """Return a hook's name for people."""
    return hook.name or f"{hook.id} to {urlsplit(hook.url).hostname}"


def dead_letter_event(
    hook: WebhookRecord, delivery_id: str, event_id: str, tries: int, error: str
) -> NewEvent:
    """Return the event that reports a delivery that was given up."""
    text = (
        f"gave delivery {delivery_id} up after {tries} {'try' if tries == 1 else 'tries'}: {error}"
    )
    about = {"delivery_id": delivery_id, "event_id": event_id, "tries": tries}
    return hook_event("dead_letter", hook, text, **about)


def no_webhook(webhook_id: str) -> NotFound:
    """Return the error for an unknown hook."""
    return NotFound(f"there is no webhook {webhook_id[:64]!r}; `holdfast webhooks` lists them")


def no_target(name: str, project: str | None) -> NotFound:
    """Return the error for an unknown notice target."""
    whose = "the cluster has" if project is None else f"project {project[:64]} has"
    return NotFound(f"{whose} no notice target {name[:64]!r}; `holdfast notify list` lists them")


def no_delivery(webhook_id: str, delivery_id: str) -> NotFound:
    """Return the error for an unknown delivery of the hook."""
    none = f"webhook {webhook_id} has no delivery {delivery_id[:64]!r}"
    return NotFound(f"{none}; `holdfast webhooks deliveries {webhook_id}` lists them")
