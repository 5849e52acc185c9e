"""The routes of settings."""

from __future__ import annotations

from collections.abc import Collection

from starlette.responses import Response

from holdfast.controller.api_queues import PATCH
from holdfast.controller.endpoints import Call
from holdfast.controller.pages import answer_page
from holdfast.controller.queries import ConfigQuery
from holdfast.core.settings import SETTINGS, check_layer
from holdfast.errors import NotFound, ValidationError


async def get_config(call: Call) -> Response:
    """Every setting in force and where it comes from."""
    query = call.query(ConfigQuery)
    settings = await call.controller.settings.refresh()
    if query.queue is not None and query.queue not in settings.queues:
        raise NotFound(f"there is no queue {query.queue!r}; `holdfast queues` lists them")
    return answer_page(list(settings.effective(query.queue, project=query.project).values()))


async def patch_config(call: Call) -> Response:
    """Change the cluster's settings."""
    patch = await call.body(PATCH)
    changes = check_layer(patch.set, "cluster")
    check_unset(patch.unset, patch.set.keys())
    await call.controller.store.write_cluster_settings(changes, patch.unset)
    settings = await call.controller.settings.refresh()
    call.controller.poke("admit", "due", "events")
    return answer_page(list(settings.effective().values()))


def check_unset(unset: list[str], changed: Collection[str]) -> None:
    """Refuse names nobody knows, and names that are set in the same call."""
    for name in unset:
        if name not in SETTINGS:
            raise ValidationError(f"there is no setting {name!r}; `holdfast config` lists them", field=f"unset.{name}")
        if name in changed:
            raise ValidationError(f"{name} is both in set and in unset", field="unset")
