"""The routes of queues."""

from datetime import timedelta

from msgspec.structs import replace
from starlette.responses import Response

from holdfast.controller.api.settings.patch import read_name, read_settings_patch
from holdfast.controller.http.endpoints import ApiCall
from holdfast.controller.http.pages import answer_page
from holdfast.controller.http.problems import answer_json
from holdfast.errors import NotFound
from holdfast.wire.api import PauseRequest, SettingsPatch
from holdfast.wire.operations.queries import DepthsQuery, QueuesQuery, is_on


async def list_queues(call: ApiCall) -> Response:
    """List every queue and the counts of its jobs."""
    if is_on(call.query(QueuesQuery).waiting):
        return answer_page(await call.controller.queue_counts.list_queues())
    return answer_page(await call.store.settings.list_live_queues())


async def list_depths(call: ApiCall) -> Response:
    """List how full queues were, each queue in the order of time."""
    query = call.query(DepthsQuery)
    since = await call.store.now() - timedelta(seconds=query.seconds)
    return answer_page(await call.store.settings.read_queue_depths(since, query.step))


async def get_queue(call: ApiCall) -> Response:
    """Return one queue."""
    return answer_json(await call.store.settings.get_queue(_name(call)))


async def put_queue(call: ApiCall) -> Response:
    """Make or change a queue."""
    name = read_name(call, "queue")
    changes, unset = await read_settings_patch(call, "queue", default=SettingsPatch())
    queue = await call.store.settings.put_queue(name, changes, unset)
    await call.controller.settings.refresh()
    call.controller.poke("admit", "events")
    return answer_json(queue)


async def delete_queue(call: ApiCall) -> Response:
    """Delete an empty queue."""
    await call.store.settings.delete_queue(_name(call))
    await call.controller.settings.refresh()
    call.controller.poke("events")
    return Response(status_code=204)


async def pause_queue(call: ApiCall) -> Response:
    """Start no more jobs of the queue; `hard` also stops those that run."""
    controller, name = call.controller, _name(call)
    request = await call.body(PauseRequest, default=PauseRequest())
    reason = request.reason or f"paused by {call.caller_name}"
    await controller.store.settings.pause_queue(name, reason, hard=request.hard)
    controller.poke("drain", "events")
    return answer_json(await controller.store.settings.get_queue(name))


async def resume_queue(call: ApiCall) -> Response:
    """Let jobs of the queue start again. The answer counts the queue's jobs as they were before the
    call."""
    name = _name(call)
    # Counted first, because counting many jobs later would delay their start.
    queue = await call.store.settings.get_queue(name)
    await call.store.settings.resume_queue(name)
    call.controller.poke("admit", "events")
    return answer_json(replace(queue, paused_at=None, paused_reason="", hard=False))


def _name(call: ApiCall) -> str:
    name = call.params["name"]
    if "\x00" in name or len(name) > 128:
        raise NotFound(f"there is no queue {name[:64]!r}".replace("\\x00", "?"))
    return name
