"""The routes of queues."""

from __future__ import annotations

import msgspec
from starlette.responses import Response

from holdfast.controller.api.settings_patch import read_settings_patch
from holdfast.controller.http.endpoints import ApiCall
from holdfast.controller.http.pages import answer_page
from holdfast.controller.http.problems import answer_json
from holdfast.core.spec import Name
from holdfast.errors import NotFound, ValidationError
from holdfast.wire.api import PauseRequest, SettingsPatch

_PAUSE = msgspec.json.Decoder(PauseRequest)


async def list_queues(call: ApiCall) -> Response:
    """Every queue and what is in it."""
    return answer_page(await call.controller.store.settings.list_queues())


async def get_queue(call: ApiCall) -> Response:
    """One queue."""
    return answer_json(await call.controller.store.settings.get_queue(_name(call)))


async def put_queue(call: ApiCall) -> Response:
    """Make or change a queue."""
    try:
        name = msgspec.convert(call.params["name"], Name)
    except msgspec.ValidationError:
        raise ValidationError(
            "a queue's name is 1 to 128 letters, digits and ._/-, and starts with a letter or "
            "digit",
            field="name",
        ) from None
    changes, unset = await read_settings_patch(call, "queue", default=SettingsPatch())
    queue = await call.controller.store.settings.put_queue(name, changes, unset)
    await call.controller.settings.refresh()
    call.controller.poke("admit", "events")
    return answer_json(queue)


async def delete_queue(call: ApiCall) -> Response:
    """Delete an empty queue."""
    await call.controller.store.settings.delete_queue(_name(call))
    await call.controller.settings.refresh()
    call.controller.poke("events")
    return Response(status_code=204)


async def pause_queue(call: ApiCall) -> Response:
    """No new starts; `hard` also stops what runs."""
    controller, name = call.controller, _name(call)
    request = await call.body(_PAUSE, default=PauseRequest())
    reason = request.reason or f"paused by {call.caller.name or call.caller.id}"
    await controller.store.settings.pause_queue(name, reason, hard=request.hard)
    controller.poke("drain", "events")
    return answer_json(await controller.store.settings.get_queue(name))


async def resume_queue(call: ApiCall) -> Response:
    """Starts again."""
    name = _name(call)
    await call.controller.store.settings.resume_queue(name)
    call.controller.poke("admit", "events")
    return answer_json(await call.controller.store.settings.get_queue(name))


def _name(call: ApiCall) -> str:
    name = call.params["name"]
    if "\x00" in name or len(name) > 128:
        raise NotFound(f"there is no queue {name[:64]!r}".replace("\\x00", "?"))
    return name
