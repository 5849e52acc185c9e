"""The operations on webhooks."""

from holdfast.core.webhooks.values import DeliveryRecord, DeliveryState, WebhookRecord
from holdfast.wire.operations.operation import Operation, PageOf, Query, Role
from holdfast.wire.operations.queries import Limit, Text
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

HOOK = "/v1/webhooks/{id}"


class DeliveriesQuery(Query, frozen=True, kw_only=True):
    """The deliveries to list, newest first. `state` may be repeated."""

    state: tuple[DeliveryState, ...] = ()
    limit: Limit = 100
    cursor: Text | None = None


LIST_WEBHOOKS = Operation(
    "GET", "/v1/webhooks", Role.ADMIN, "Every webhook, without its secret.",
    answers={200: PageOf(WebhookRecord)}
)  # fmt: skip
CREATE_WEBHOOK = Operation(
    "POST", "/v1/webhooks", Role.ADMIN, "A new webhook; its secret is shown this once.",
    body=WebhookRequest, answers={201: WebhookCreated}, repeatable=False
)  # fmt: skip
GET_WEBHOOK = Operation("GET", HOOK, Role.ADMIN, "One webhook.", answers={200: WebhookRecord})
PATCH_WEBHOOK = Operation(
    "PATCH", HOOK, Role.ADMIN, "Change a webhook.", body=WebhookPatch, answers={200: WebhookRecord}
)  # fmt: skip
DELETE_WEBHOOK = Operation(
    "DELETE", HOOK, Role.ADMIN, "Forget a webhook and its deliveries.", answers={204: None},
    repeatable=False
)  # fmt: skip
ROTATE_WEBHOOK = Operation(
    "POST", HOOK + "/rotate", Role.ADMIN, "A new secret; both sign during the grace.",
    body=RotateRequest, optional_body=True, answers={200: WebhookCreated}, repeatable=False
)  # fmt: skip
PAUSE_WEBHOOK = Operation(
    "POST", HOOK + "/pause", Role.ADMIN, "Send nothing more; events are kept.", body=WebhookPause,
    optional_body=True, answers={200: WebhookRecord}
)  # fmt: skip
RESUME_WEBHOOK = Operation(
    "POST", HOOK + "/resume", Role.ADMIN, "Go on where it stopped.", answers={200: WebhookRecord}
)  # fmt: skip
TEST_WEBHOOK = Operation(
    "POST", HOOK + "/test", Role.ADMIN, "Send one test event now; nothing is kept.",
    answers={200: TestResult}, repeatable=False
)  # fmt: skip
REDELIVER_DEAD = Operation(
    "POST", HOOK + "/redeliver-dead", Role.ADMIN, "Send every dead delivery again.",
    answers={200: Redelivered}, repeatable=False
)  # fmt: skip
LIST_DELIVERIES = Operation(
    "GET", HOOK + "/deliveries", Role.ADMIN, "Its deliveries, newest first.",
    query=DeliveriesQuery, answers={200: PageOf(DeliveryRecord)}
)  # fmt: skip
GET_DELIVERY = Operation(
    "GET", HOOK + "/deliveries/{delivery}", Role.ADMIN, "One delivery with its body.",
    answers={200: DeliveryView}
)  # fmt: skip
REDELIVER = Operation(
    "POST", HOOK + "/deliveries/{delivery}/redeliver", Role.ADMIN, "Send a delivery again.",
    answers={200: DeliveryRecord}
)  # fmt: skip
