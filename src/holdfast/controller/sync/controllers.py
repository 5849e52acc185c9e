"""The agents' route that names the controllers of the cluster (LEARN-1)."""

from starlette.responses import Response

from holdfast.controller.http.endpoints import ApiCall
from holdfast.controller.http.problems import answer_json
from holdfast.wire.agent import ControllersAnswer


async def list_controllers(call: ApiCall) -> Response:
    """Return the addresses at which the controllers serve."""
    return answer_json(ControllersAnswer(urls=await call.store.hosts.list_controllers()))
