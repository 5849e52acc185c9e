"""The routes of settings."""

from starlette.responses import Response

from holdfast.controller.api.settings.patch import read_settings_patch
from holdfast.controller.http.endpoints import ApiCall
from holdfast.controller.http.pages import answer_page
from holdfast.errors import NotFound
from holdfast.wire.operations.queries import ConfigQuery


async def get_config(call: ApiCall) -> Response:
    """List every setting in force and where it comes from."""
    query = call.query(ConfigQuery)
    settings = await call.controller.settings.refresh()
    if query.queue is not None and query.queue not in settings.queues:
        raise NotFound(f"there is no queue {query.queue!r}; `holdfast queues` lists them")
    return answer_page(list(settings.effective(query.queue, project=query.project).values()))


async def patch_config(call: ApiCall) -> Response:
    """Change the cluster's settings."""
    changes, unset = await read_settings_patch(call, "cluster")
    await call.store.settings.write_cluster_settings(changes, unset)
    settings = await call.controller.settings.refresh()
    call.controller.poke("admit", "due", "budgets", "events")
    return answer_page(list(settings.effective().values()))
