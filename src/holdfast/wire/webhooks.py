"""The bodies of the routes of webhooks, for admin tokens only: a hook's url may itself be a secret; and
of notice targets, whose urls are secrets that no answer has."""

from datetime import datetime
from typing import Annotated

from msgspec import UNSET, Meta, UnsetType

from holdfast.core.spec import Name
from holdfast.core.webhooks.targets import MAX_URL_CHARS
from holdfast.core.webhooks.values import DeliveryRecord, WebhookRecord, WebhookState
from holdfast.wire.api import ApiBody

MAX_GRACE_SECONDS = 30 * 86_400.0
DAY_SECONDS = 86_400.0

Url = Annotated[str, Meta(min_length=1, max_length=MAX_URL_CHARS)]
Pattern = Annotated[str, Meta(min_length=1, max_length=64, pattern=r"^([a-z_.]+\*?|\*)$(?!\n)")]
Patterns = Annotated[list[Pattern], Meta(max_length=32)]
Secret = Annotated[str, Meta(min_length=16, max_length=256, pattern=r"^[\x21-\x7e]+$(?!\n)")]
Label = Annotated[str, Meta(max_length=128, pattern=r"^[^\x00-\x1f\x7f]*$(?!\n)")]


class WebhookRequest(ApiBody, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A new hook. events: kinds of events, or patterns ("job.*"); none: all kinds but webhooks'
    own."""

    url: Url
    events: Patterns = []  # noqa: RUF012  msgspec copies an empty default
    project: Name | None = None
    name: Label = ""
    secret: Secret | None = None


class WebhookPatch(ApiBody, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Changes; a field that is left out stays. project null: every project."""

    url: Url | UnsetType = UNSET
    events: Patterns | UnsetType = UNSET
    project: Name | UnsetType | None = UNSET
    name: Label | UnsetType = UNSET


class RotateRequest(ApiBody, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A new secret. The old one signs too for `grace_seconds`, so that receivers can change over."""

    secret: Secret | None = None
    grace_seconds: Annotated[float, Meta(ge=0, le=MAX_GRACE_SECONDS)] = DAY_SECONDS


class WebhookPause(ApiBody, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The reason, shown with the hook."""

    reason: Label = ""


class WebhookCreated(WebhookRecord, frozen=True, kw_only=True):
    """A hook with its secret, shown this once."""

    secret: str


class TestResult(ApiBody, frozen=True, kw_only=True):
    """The result of one try. status: HTTP status, None without an answer. error: why it failed."""

    delivered: bool
    status: int | None
    error: str
    seconds: float


class DeliveryView(DeliveryRecord, frozen=True, kw_only=True):
    """A delivery with the body it sends."""

    body: str


class Redelivered(ApiBody, frozen=True, kw_only=True):
    """How many dead deliveries are pending again."""

    count: int


class TargetRequest(ApiBody, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The address of a target's messages: a URL as Apprise writes it, of a service on the list."""

    url: Url


class NoticeTarget(ApiBody, frozen=True, kw_only=True):
    """A notice target, without its url. project: whose jobs may name it; None: all. pending, dead:
    numbers of messages that wait and that were given up. error: of the last message, where it did not
    arrive; only one target's own answer has it."""

    name: str
    project: str | None
    service: str
    state: WebhookState
    created_at: datetime
    pending: int = 0
    dead: int = 0
    error: str = ""
