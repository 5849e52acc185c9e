"""The routes of projects: their quotas and their retry defaults."""

from starlette.responses import Response

from holdfast.controller.api.settings.patch import find_name, read_name, read_settings_patch
from holdfast.controller.http.endpoints import ApiCall
from holdfast.controller.http.pages import answer_page
from holdfast.controller.http.problems import answer_json
from holdfast.controller.notices.targets import check_wishes
from holdfast.wire.api import SettingsPatch
from holdfast.wire.operations.queries import ProjectsQuery, is_on


async def list_projects(call: ApiCall) -> Response:
    """List every project that has settings or unfinished jobs."""
    settings = call.store.settings
    whole = is_on(call.query(ProjectsQuery).waiting)
    return answer_page(await (settings.list_projects() if whole else settings.list_live_projects()))


async def get_project(call: ApiCall) -> Response:
    """Return one project; an empty record for a project that no job has named yet."""
    return answer_json(await call.store.settings.get_project(find_name(call, "project")))


async def put_project(call: ApiCall) -> Response:
    """Make or change a project."""
    name = read_name(call, "project")
    changes, unset = await read_settings_patch(call, "project", default=SettingsPatch())
    await check_wishes(call.controller, name, (), str(changes.get("notify") or ""))
    project = await call.store.settings.put_project(name, changes, unset)
    await call.controller.settings.refresh()
    call.controller.poke("admit", "due", "budgets", "events")
    return answer_json(project)


async def delete_project(call: ApiCall) -> Response:
    """Forget a project's settings."""
    await call.store.settings.delete_project(find_name(call, "project"))
    await call.controller.settings.refresh()
    call.controller.poke("admit", "due", "budgets", "events")
    return Response(status_code=204)
