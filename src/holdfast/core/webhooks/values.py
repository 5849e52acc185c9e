"""Webhooks, as values: the events a hook wants, what is sent and signed, and what an answer means.

HOOK-1  The deliveries of one hook about one job are a *sequence*, of which only the oldest pending
        one is under way. Later ones wait, even while it fails; deliveries about other jobs go on.
        Events that belong to no job are one sequence of their own.
HOOK-2  A delivery is pending until a receiver said 2xx or its tries are spent (dead). What was sent
        and not recorded is sent again: at least once, under the same delivery id.
HOOK-3  Events about webhooks are sent only to hooks that name them, never to the hook they are
        about, and a dead delivery of one leaves no event: two broken hooks cannot keep each other
        busy.
"""

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from enum import StrEnum

import msgspec

from holdfast.core.records import EventRecord, Record

MAX_PENDING = 10_000  # of one hook: beyond it, its cursor waits
HOOK_WINDOW = 8  # deliveries of one hook under way at once
TOTAL_WINDOW = 32  # of all hooks
JITTER_RATIO = 0.25
ABOUT_HOOKS = "webhook."
GONE = 410
_MAX_ERROR_CHARS = 300


class WebhookState(StrEnum):
    """The state of a hook. A paused hook sends nothing and keeps its cursor, so no event is
    lost."""

    ACTIVE = "active"
    PAUSED = "paused"


class DeliveryState(StrEnum):
    """The state of one delivery (HOOK-2)."""

    PENDING = "pending"
    DELIVERED = "delivered"
    DEAD = "dead"


class WebhookRecord(Record, frozen=True, kw_only=True):
    """A hook as it may be shown: never its secret.

    events: patterns of event kinds ("job.*"); none: all kinds. project: the project whose events it
    gets; None: events of the whole cluster. reason: why it is paused. old_secret_until: the time
    until which the secret before the last rotation signs too. pending, dead: number of deliveries.
    service: the service that a notice target sends to (`core.webhooks.notices`), whose url is a
    secret; "" for a webhook.
    """

    id: str
    name: str
    url: str
    events: tuple[str, ...]
    project: str | None
    state: WebhookState
    reason: str
    created_at: datetime
    old_secret_until: datetime | None = None
    pending: int = 0
    dead: int = 0
    service: str = ""


class DeliveryRecord(Record, frozen=True, kw_only=True):
    """One event on its way to one hook. tries: number of tries so far. status, error: HTTP status
    and error of the last try.

    next_at: the time of the next try, set only for the oldest pending one of its sequence (HOOK-1).
    """

    id: str
    webhook_id: str
    event_id: str
    event_kind: str
    job_id: str | None
    state: DeliveryState
    tries: int
    next_at: datetime | None = None
    status: int | None = None
    error: str = ""
    created_at: datetime
    delivered_at: datetime | None = None


class JobSummary(Record, frozen=True, kw_only=True):
    """The event's job in a delivery, as it was when the delivery was written."""

    id: str
    name: str
    project: str
    queue: str
    state: str
    reason: str
    attempt: int
    labels: dict[str, str]


class Payload(Record, frozen=True, kw_only=True):
    """The body of a delivery. job: None for an event of no job, or of one that was deleted."""

    delivery: str
    webhook: str
    event: EventRecord
    job: JobSummary | None = None


class Subscription(Record, frozen=True, kw_only=True):
    """The position of one hook in the record of events. cursor: id of the last event it was
    offered. room: number of further deliveries that may be pending. name, service: a notice
    target's."""

    webhook_id: str
    cursor: str
    events: tuple[str, ...]
    project: str | None
    room: int
    name: str = ""
    service: str = ""


class NewDelivery(Record, frozen=True, kw_only=True):
    """A delivery to be written. `body` is decided here, once: every try sends the same bytes."""

    id: str
    event_id: str
    event_kind: str
    job_id: str | None
    body: str


class DeliveryBatch(Record, frozen=True, kw_only=True):
    """A hook's new deliveries, and the move of its cursor from `before` to `after`; written only
    while the cursor stands at `before`."""

    webhook_id: str
    before: str
    after: str
    deliveries: tuple[NewDelivery, ...]


class DueDelivery(Record, frozen=True, kw_only=True):
    """A delivery to be sent now. secrets: every secret that signs it, the present one first."""

    id: str
    webhook_id: str
    sequence: str  # the job's id; empty: events of no job
    seq: int
    tries: int
    url: str
    secrets: tuple[str, ...]
    body: str
    service: str = ""


class DeliveryAnswer(Record, frozen=True, kw_only=True):
    """The result of one try. status: HTTP status, None without an answer. retry_after_seconds: the
    delay that the receiver asks for. seconds: how long the try took."""

    status: int | None = None
    error: str = ""
    retry_after_seconds: float | None = None
    seconds: float = 0.0


class BackOff(Record, frozen=True, kw_only=True):
    """How the wait between tries grows: doubling from `first_seconds` up to `ceiling_seconds`."""

    first_seconds: float = 5.0
    ceiling_seconds: float = 3600.0


class Tried(Record, frozen=True, kw_only=True):
    """The record of a try to deliver, written only while the delivery is pending. tries: number of
    tries, this one included. delay_seconds: time until the next try. pause: why the hook is paused,
    if it is."""

    delivery_id: str
    webhook_id: str
    tries: int
    state: DeliveryState
    delay_seconds: float = 0.0
    status: int | None = None
    error: str = ""
    pause: str | None = None


# ---- which events, and what is sent

Write = Callable[[Subscription, EventRecord, "JobSummary | None", str], str | None]


def is_wanted(hook: Subscription, event: EventRecord) -> bool:
    """Return whether a hook gets an event, by its patterns and its project (HOOK-3)."""
    if hook.project is not None and event.project != hook.project:
        return False
    patterns = hook.events or ("*",)
    if event.kind.startswith(ABOUT_HOOKS):
        if event.data.get("webhook_id") == hook.webhook_id:
            return False
        patterns = tuple(p for p in patterns if p.startswith(ABOUT_HOOKS))
    kind = event.kind
    return any(kind.startswith(p[:-1]) if p.endswith("*") else kind == p for p in patterns)


def write_payload(
    hook: Subscription, event: EventRecord, job: JobSummary | None, delivery: str
) -> str | None:
    """Return the body of a webhook's delivery; None for an event that it does not want."""
    if not is_wanted(hook, event):
        return None
    payload = Payload(delivery=delivery, webhook=hook.webhook_id, event=event, job=job)
    return msgspec.json.encode(payload).decode()


def plan_deliveries(
    hook: Subscription,
    events: Sequence[EventRecord],
    jobs: Mapping[str, JobSummary],
    ids: Iterator[str],
    write: Write = write_payload,
) -> DeliveryBatch:
    """Return the deliveries of the wanted events, in order, until the hook's room ends. write:
    returns the body of one, None for an event that is not wanted."""
    after, found, number = hook.cursor, list[NewDelivery](), ""
    for event in events:
        number = number or next(ids)
        body = write(hook, event, jobs.get(event.job_id or ""), number)
        if body is not None:
            if len(found) >= hook.room:
                break
            found.append(
                NewDelivery(
                    id=number,
                    event_id=event.id,
                    event_kind=event.kind,
                    job_id=event.job_id,
                    body=body,
                )
            )
            number = ""
        after = event.id
    step = {"before": hook.cursor, "after": after}
    return DeliveryBatch(webhook_id=hook.webhook_id, deliveries=tuple(found), **step)


def plan_sends(
    due: Sequence[DueDelivery],
    flying: Collection[DueDelivery],
    windows: Mapping[str, int],
    total: int,
) -> list[DueDelivery]:
    """Return the deliveries to send now: the oldest of each sequence (HOOK-1), within the windows,
    the hooks in turn.

    due: deliveries whose time has come. flying: deliveries under way. windows: hook → number of its
    deliveries that may be under way. total: the same over all hooks.
    """
    taken = {(d.webhook_id, d.sequence) for d in flying}
    used = Counter(d.webhook_id for d in flying)
    sequences: dict[tuple[str, str], DueDelivery] = {}
    for delivery in sorted(due, key=lambda d: d.seq):
        sequence = (delivery.webhook_id, delivery.sequence)
        if sequence not in taken:
            sequences.setdefault(sequence, delivery)
    of_hook: dict[str, list[DueDelivery]] = {}
    for delivery in sequences.values():
        waiting = of_hook.setdefault(delivery.webhook_id, [])
        if len(waiting) + used[delivery.webhook_id] < windows.get(delivery.webhook_id, HOOK_WINDOW):
            waiting.append(delivery)
    found: list[DueDelivery] = []
    room = total - len(flying)
    while room > len(found) and any(of_hook.values()):
        for waiting in of_hook.values():
            if waiting and len(found) < room:
                found.append(waiting.pop(0))
    return found


def sign(secret: str, timestamp: int, body: bytes) -> str:
    """Return the HMAC-SHA256 of `{timestamp}.{body}`, in hex."""
    signed = str(timestamp).encode() + b"." + body
    import hashlib
    import hmac

    return hmac.new(secret.encode(), signed, hashlib.sha256).hexdigest()


def make_headers(
    webhook_id: str, delivery_id: str, secrets: Sequence[str], timestamp: int, body: bytes
) -> dict[str, str]:
    """Return the headers of one try. While a rotated secret still holds, both sign."""
    return {
        "Content-Type": "application/json",
        "Holdfast-Webhook-Id": webhook_id,
        "Holdfast-Delivery": delivery_id,
        "Holdfast-Timestamp": str(timestamp),
        "Holdfast-Signature": ",".join(f"v1={sign(secret, timestamp, body)}" for secret in secrets),
    }


# ---- what an answer means


def back_off(policy: BackOff, tries: int, chance: float) -> float:
    """Return the seconds until the next try of a delivery, spread over a quarter of the doubled
    delay."""
    base = min(policy.first_seconds * 2.0 ** min(max(tries, 1) - 1, 60), policy.ceiling_seconds)
    return base * (1.0 - JITTER_RATIO * chance)


def judge_try(
    due: DueDelivery, answer: DeliveryAnswer, max_tries: int, policy: BackOff, chance: float
) -> Tried:
    """Return the record of one more try of a delivery, with the delivery's next state.

    Only 2xx is success. 410 pauses the hook, and the delivery waits until it is resumed.
    Retry-After is honoured between the back-off and its ceiling: a receiver may slow the sender
    down, but neither hurry nor stop it.
    """
    tried = due.tries + 1
    status, error = answer.status, answer.error[:_MAX_ERROR_CHARS]
    if status is not None and 200 <= status < 300:
        state, delay = DeliveryState.DELIVERED, 0.0
    elif tried >= max_tries and status != GONE:
        state, delay = DeliveryState.DEAD, 0.0
    else:
        state, delay = DeliveryState.PENDING, back_off(policy, tried, chance)
        if answer.retry_after_seconds is not None:
            delay = max(delay, min(answer.retry_after_seconds, policy.ceiling_seconds))
    gone = "the receiver answered 410 Gone: it does not want these events any more"
    pause = gone if status == GONE else None
    if state is not DeliveryState.DELIVERED and not error:
        error = f"the receiver answered {status}"
    return Tried(
        delivery_id=due.id,
        webhook_id=due.webhook_id,
        tries=due.tries,
        state=state,
        delay_seconds=delay,
        status=status,
        error=error,
        pause=pause,
    )


def next_window(window: int, answer: DeliveryAnswer) -> int:
    """Return how many deliveries of a hook may be under way: half after trouble, else one more.

    A receiver that is down is asked by one delivery at a time instead of by every job at once.
    """
    if answer.status is None or answer.status >= 500 or answer.status == 429:
        return max(1, window // 2)
    return min(HOOK_WINDOW, window + 1)


def read_retry_after(text: str, now: datetime) -> float | None:
    """Return the seconds that a Retry-After header (a number or an HTTP date) asks for, or None."""
    text = text.strip()
    if text.isascii() and text.isdigit():
        return float(text) if len(text) < 10 else math.inf
    from email.utils import parsedate_to_datetime  # it costs more than most commands have

    try:
        when = parsedate_to_datetime(text)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    when = when if when.tzinfo is not None else when.replace(tzinfo=UTC)
    return max(0.0, (when - now).total_seconds())
