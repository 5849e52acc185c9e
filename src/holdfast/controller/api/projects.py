"""The routes of projects: who pays, what they may have at once, and their retry defaults."""

from __future__ import annotations

import msgspec
from starlette.responses import Response

from holdfast.controller.api.settings_patch import read_settings_patch
from holdfast.controller.http.endpoints import ApiCall
from holdfast.controller.http.pages import answer_page
from holdfast.controller.http.problems import answer_json
from holdfast.core.spec import Name
from holdfast.errors import NotFound, ValidationError
from holdfast.wire.api import SettingsPatch


async def list_projects(call: ApiCall) -> Response:
    """Every project that has settings or unfinished jobs."""
    return answer_page(await call.controller.store.settings.list_projects())


async def get_project(call: ApiCall) -> Response:
    """One project; one that nobody has named yet is an empty one."""
    return answer_json(await call.controller.store.settings.get_project(_find_name(call)))


async def put_project(call: ApiCall) -> Response:
    """Make or change a project."""
    name = _name(call)
    changes, unset = await read_settings_patch(call, "project", default=SettingsPatch())
    project = await call.controller.store.settings.put_project(name, changes, unset)
    await call.controller.settings.refresh()
    call.controller.poke("admit", "due", "events")
    return answer_json(project)


async def delete_project(call: ApiCall) -> Response:
    """Forget a project's settings."""
    await call.controller.store.settings.delete_project(_find_name(call))
    await call.controller.settings.refresh()
    call.controller.poke("admit", "due", "events")
    return Response(status_code=204)


def _find_name(call: ApiCall) -> str:
    """The name in the path; what can be no project's name is not found, as with every other kind of
    thing."""
    try:
        return _name(call)
    except ValidationError as error:
        raise NotFound(f"there can be no such project: {error.message}") from None


def _name(call: ApiCall) -> str:
    try:
        return msgspec.convert(call.params["name"], Name)
    except msgspec.ValidationError:
        raise ValidationError(
            "a project's name is 1 to 128 letters, digits and ._/-, and starts with a letter or "
            "digit",
            field="name",
        ) from None
