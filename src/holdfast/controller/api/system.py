"""The routes about the server itself: health, readiness, metrics."""

from __future__ import annotations

import asyncio

from starlette.responses import Response

from holdfast.controller.http.endpoints import ApiCall
from holdfast.controller.http.problems import answer_json
from holdfast.controller.runtime.metrics import CONTENT_TYPE
from holdfast.errors import Unavailable


async def get_health(call: ApiCall) -> Response:
    """Answer, which shows that the process lives."""
    return answer_json({"status": "ok"})


async def get_readiness(call: ApiCall) -> Response:
    """Answer once the store has. Raises Unavailable, a 503, when it does not answer."""
    await call.store.ping()
    return answer_json({"status": "ready"})


async def get_metrics(call: ApiCall) -> Response:
    """Return the metrics: without the gauges where the store is away."""
    controller = call.controller
    try:
        gauges, waiting = await asyncio.gather(
            controller.store.read_gauges(), controller.store.jobs.count_waiting()
        )
    except Unavailable as error:
        controller.outages.note_failure(error)
        gauges, waiting = None, {}
    page = controller.metrics.render(
        gauges, waiting, controller.wakes.waiting_polls, controller.leadership.since is not None
    )
    return Response(page, 200, None, CONTENT_TYPE)
