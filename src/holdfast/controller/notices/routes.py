"""The routes of notice targets. The cluster's are changed by admins, a project's also with any submit
token where the project is shared (OWNER-1)."""

import re

import msgspec
from starlette.responses import Response

from holdfast.controller.http.endpoints import ApiCall
from holdfast.controller.http.pages import answer_page
from holdfast.controller.http.problems import answer_json
from holdfast.controller.runtime.auth import make_new_id
from holdfast.core.webhooks.notice_urls import name_service
from holdfast.core.webhooks.notices import Notice
from holdfast.core.webhooks.values import WebhookRecord
from holdfast.errors import Forbidden, ValidationError
from holdfast.wire.operations.cluster.notices import TargetQuery
from holdfast.wire.webhooks import NoticeTarget, TargetRequest, TestResult

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


async def list_targets(call: ApiCall) -> Response:
    """List every notice target, without its url."""
    return answer_page([_show(hook) for hook in await call.store.notices.list_targets()])


async def get_target(call: ApiCall) -> Response:
    """Return one target, and the error of its last message."""
    hook, _, error = await call.store.notices.get_target(*_read_place(call))
    return answer_json(_show(hook, error))


async def put_target(call: ApiCall) -> Response:
    """Make a target, or give it another url. The url is checked, and never shown again."""
    name, project = _read_place(call)
    await _check_right(call, project)
    if not _NAME.fullmatch(name):
        raise ValidationError(
            f"{name[:64]!r} is no name of a target: letters, digits, dots, - and _", field="name"
        )
    request = await call.body(TargetRequest)
    settings = await call.controller.settings.refresh()
    private = settings.value("webhook_allow_private") is True
    service = name_service(request.url, allow_private=private)
    wrong = await call.controller.notices.check(request.url)
    if wrong:
        raise ValidationError(wrong, field="url")
    hook = await call.store.notices.put_target(make_new_id(), name, project, request.url, service)
    call.controller.poke("events")
    return answer_json(_show(hook))


async def delete_target(call: ApiCall) -> Response:
    """Forget a target and its messages."""
    name, project = _read_place(call)
    await _check_right(call, project)
    await call.store.notices.delete_target(name, project)
    call.controller.poke("events")
    return Response(status_code=204)


async def test_target(call: ApiCall) -> Response:
    """Send one message now, from this server, and return the outcome. Nothing is kept."""
    name, project = _read_place(call)
    await _check_right(call, project)
    _, url, _ = await call.store.notices.get_target(name, project)
    settings = await call.controller.settings.current()
    notice = Notice(title="Holdfast: a test", text=f"{call.caller_name} tries the target {name}.")
    answer = await call.controller.notices.send(
        url,
        msgspec.json.encode(notice),
        allow_private=settings.value("webhook_allow_private") is True,
        seconds=settings.number("webhook_timeout_seconds"),
    )
    result = TestResult(
        delivered=not answer.error,
        status=answer.status,
        error=answer.error,
        seconds=round(answer.seconds, 4),
    )
    return answer_json(result)


def _show(hook: WebhookRecord, error: str = "") -> NoticeTarget:
    return NoticeTarget(
        name=hook.name,
        project=hook.project,
        service=hook.service,
        state=hook.state,
        created_at=hook.created_at,
        pending=hook.pending,
        dead=hook.dead,
        error=error,
    )


def _read_place(call: ApiCall) -> tuple[str, str | None]:
    return call.params["name"], call.query(TargetQuery).project


async def _check_right(call: ApiCall, project: str | None) -> None:
    """Raise Forbidden where the caller may not change the targets of the project."""
    if call.caller.role == "admin":
        return
    if project is not None and (await call.controller.settings.refresh()).is_shared(project):
        return
    whose = "the cluster's targets are" if project is None else f"the targets of {project} are"
    raise Forbidden(
        f"{whose} an admin's to change"
        + (
            f", or every user's where it is shared: `holdfast projects set {project} shared=true`"
            if project
            else ""
        )
    )
