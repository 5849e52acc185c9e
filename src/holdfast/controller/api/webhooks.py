"""The routes of webhooks."""

import msgspec
from starlette.responses import Response

from holdfast.controller.http.endpoints import ApiCall
from holdfast.controller.http.pages import answer_page, make_cursor, read_cursor
from holdfast.controller.http.problems import answer_json
from holdfast.controller.runtime.auth import make_new_id, make_secret
from holdfast.core.ids import ID_PATTERN
from holdfast.core.records import EventRecord
from holdfast.core.webhooks.values import Payload, WebhookRecord
from holdfast.errors import NotFound
from holdfast.store.postgres.webhooks import NewWebhook, WebhookChange
from holdfast.wire.operations.cluster.webhooks import DeliveriesQuery
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

CHECK_SECONDS = 3.0
TEST_KIND = "webhook.test"


async def list_webhooks(call: ApiCall) -> Response:
    """List every hook, without its secret."""
    return answer_page(await call.store.webhooks.list_webhooks())


async def create_webhook(call: ApiCall) -> Response:
    """Make a hook. This answer alone shows its secret."""
    request = await call.body(WebhookRequest)
    await _check_url(call, request.url)
    secret = request.secret or make_secret("w")
    new = NewWebhook(
        id=make_new_id(),
        url=request.url,
        secret=secret,
        events=tuple(dict.fromkeys(request.events)),
        project=request.project,
        name=request.name,
    )
    hook = await call.store.webhooks.create_webhook(new)
    call.controller.poke("events")
    return answer_json(_with_secret(hook, secret), 201)


async def get_webhook(call: ApiCall) -> Response:
    """Return one hook."""
    return answer_json(await call.store.webhooks.get_webhook(_hook_id(call)))


async def patch_webhook(call: ApiCall) -> Response:
    """Change a hook. Deliveries that are pending already go to the new URL."""
    hook_id = _hook_id(call)
    patch = await call.body(WebhookPatch)
    if patch.url is not msgspec.UNSET:
        await _check_url(call, patch.url)
    events = msgspec.UNSET if patch.events is msgspec.UNSET else tuple(dict.fromkeys(patch.events))
    change = WebhookChange(url=patch.url, events=events, project=patch.project, name=patch.name)
    hook = await call.store.webhooks.change_webhook(hook_id, change)
    call.controller.poke("events")
    return answer_json(hook)


async def delete_webhook(call: ApiCall) -> Response:
    """Forget a hook and its deliveries."""
    await call.store.webhooks.delete_webhook(_hook_id(call))
    call.controller.poke("events")
    return Response(status_code=204)


async def rotate_webhook(call: ApiCall) -> Response:
    """Make a new secret for the hook; its earlier secret also signs for a while."""
    hook_id = _hook_id(call)
    request = await call.body(RotateRequest, default=RotateRequest())
    secret = request.secret or make_secret("w")
    hook = await call.store.webhooks.rotate_webhook(hook_id, secret, request.grace_seconds)
    call.controller.poke("events")
    return answer_json(_with_secret(hook, secret))


async def pause_webhook(call: ApiCall) -> Response:
    """Send nothing more to the hook until it resumes; its events are kept."""
    hook_id = _hook_id(call)
    request = await call.body(WebhookPause, default=WebhookPause())
    reason = request.reason or f"paused by {call.caller_name}"
    hook = await call.store.webhooks.pause_webhook(hook_id, reason)
    call.controller.poke("events")
    return answer_json(hook)


async def resume_webhook(call: ApiCall) -> Response:
    """Send to the hook again, from the event at which it was paused."""
    hook = await call.store.webhooks.resume_webhook(_hook_id(call))
    call.controller.poke("events")
    return answer_json(hook)


async def test_webhook(call: ApiCall) -> Response:
    """Send one signed event `webhook.test` now, from this server, and return the outcome. Nothing
    is kept or tried again."""
    hook_id, controller = _hook_id(call), call.controller
    target = await controller.store.webhooks.get_webhook_target(hook_id)
    settings = await controller.settings.current()
    delivery_id = make_new_id()
    event = EventRecord(
        id="",
        at=await controller.store.now(),
        kind=TEST_KIND,
        message="a test by " + call.caller_name,
    )
    body = msgspec.json.encode(Payload(delivery=delivery_id, webhook=hook_id, event=event))
    answer = await controller.webhooks.send(
        target.url,
        hook_id,
        delivery_id,
        target.secrets,
        body,
        allow_private=settings.value("webhook_allow_private") is True,
        seconds=settings.number("webhook_timeout_seconds"),
    )
    delivered = answer.status is not None and 200 <= answer.status < 300
    result = TestResult(
        delivered=delivered,
        status=answer.status,
        error=answer.error,
        seconds=round(answer.seconds, 4),
    )
    return answer_json(result)


async def list_deliveries(call: ApiCall) -> Response:
    """List a hook's deliveries, newest first."""
    query = call.query(DeliveriesQuery)
    before = None if query.cursor is None else read_cursor(query.cursor)
    page = await call.store.webhooks.list_deliveries(
        _hook_id(call), states=query.state, before=before, limit=query.limit
    )
    return answer_page(page, make_cursor(page[-1].id) if len(page) == query.limit else None)


async def get_delivery(call: ApiCall) -> Response:
    """Return one delivery with its body."""
    record, body = await call.store.webhooks.get_delivery(*_delivery_ids(call))
    return answer_json(DeliveryView(body=body, **msgspec.structs.asdict(record)))


async def redeliver(call: ApiCall) -> Response:
    """Send a delivery again: a dead or delivered one with all its tries, a pending one at once."""
    record = await call.store.webhooks.redeliver(*_delivery_ids(call))
    call.controller.poke("events")
    return answer_json(record)


async def redeliver_dead(call: ApiCall) -> Response:
    """Send every dead delivery of a hook again."""
    count = await call.store.webhooks.redeliver_dead(_hook_id(call))
    call.controller.poke("events")
    return answer_json(Redelivered(count=count))


async def _check_url(call: ApiCall, url: str) -> None:
    settings = await call.controller.settings.refresh()
    await call.controller.webhooks.check_target(
        url, allow_private=settings.value("webhook_allow_private") is True, seconds=CHECK_SECONDS
    )


def _with_secret(hook: WebhookRecord, secret: str) -> WebhookCreated:
    return WebhookCreated(secret=secret, **msgspec.structs.asdict(hook))


def _hook_id(call: ApiCall) -> str:
    return _check_id("webhook", call.params["id"])


def _delivery_ids(call: ApiCall) -> tuple[str, str]:
    delivery_id = _check_id("delivery", call.params["delivery"])
    return _hook_id(call), delivery_id


def _check_id(what: str, given: str) -> str:
    if not ID_PATTERN.fullmatch(given):
        raise NotFound(
            f"there is no {what} {given[:64]!r}; its id is 20 letters and digits, "
            "as `holdfast webhooks` shows it"
        )
    return given
