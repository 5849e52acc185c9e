"""The routes about the server itself: its pages, health, readiness, metrics."""

import asyncio
import base64
import hashlib
import re
from datetime import UTC, datetime
from functools import cache
from html import escape
from importlib import resources

from starlette.responses import Response

from holdfast.controller.http.endpoints import ApiCall
from holdfast.controller.http.problems import answer_json
from holdfast.controller.runtime.metrics import CONTENT_TYPE
from holdfast.errors import Unavailable
from holdfast.version import VERSION
from holdfast.wire.api import ServerView

_FRONT_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Holdfast</title></head><body>
<h1>Holdfast {version}</h1>
<p>This is a Holdfast controller. It keeps GPU work running until it is finished.</p>
<ul>
<li><a href="{dashboard}/">{dashboard}</a>: the dashboard; <code>holdfast dashboard</code> signs a browser in</li>
<li><a href="/v1/openapi.json">/v1/openapi.json</a>: the API, with a token
(<code>Authorization: Bearer …</code>)</li>
<li><a href="/healthz">/healthz</a>, <a href="/readyz">/readyz</a>: whether it works, without a token</li>
<li><code>holdfast --help</code>: the command line. The documents are in the folder <code>docs</code> of
the source.</li>
</ul>
</body></html>
"""


async def get_front_page(call: ApiCall) -> Response:
    """Return the page that a browser shows at the bare address."""
    headers = {"Content-Security-Policy": "default-src 'none'"}
    page = _FRONT_PAGE.format(version=VERSION, dashboard=escape(call.controller.origins[0]))
    return Response(page, 200, headers, "text/html")


@cache
def _read_question_page() -> tuple[bytes, dict[str, str]]:
    """Return the page and its headers, which let a browser run the page's own script and no
    other."""
    page = (resources.files("holdfast.controller.http") / "question.html").read_bytes()
    allowed = {}
    for kind in ("script", "style"):
        (inside,) = re.findall(rf"<{kind}>(.*?)</{kind}>".encode(), page, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(inside).digest()).decode()
        allowed[kind] = f"{kind}-src 'sha256-{digest}'"
    rest = "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    policy = f"default-src 'none'; {allowed['script']}; {allowed['style']}; {rest}"
    return page, {
        "Content-Security-Policy": policy,
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
    }


async def get_question_page(call: ApiCall) -> Response:
    """Return the page on which a person answers a workflow's question. The page is the same for all
    questions, and calls the API with the token that the person enters."""
    page, headers = _read_question_page()
    return Response(page, 200, headers, "text/html")


async def get_health(call: ApiCall) -> Response:
    """Answer that the process lives."""
    return answer_json({"status": "ok"})


async def get_readiness(call: ApiCall) -> Response:
    """Answer once the store has. Raises Unavailable, a 503, when it does not answer."""
    await call.store.ping()
    return answer_json({"status": "ready"})


async def get_server(call: ApiCall) -> Response:
    """Return the version and the clock of the controller that answers, and what is wrong with it."""
    problem = await call.controller.blob_place.find_problem()
    problems = [] if problem is None else [problem]
    return answer_json(ServerView(version=VERSION, clock=datetime.now(UTC), problems=problems))


async def get_metrics(call: ApiCall) -> Response:
    """Return the metrics. While the store is unavailable, the gauges that are read from the store
    are missing."""
    controller = call.controller
    try:
        gauges, waiting, feeds, running = await asyncio.gather(
            controller.store.read_gauges(),
            controller.store.jobs.count_waiting(),
            controller.store.calls.read_feeds(),
            controller.store.calls.read_running(),
        )
    except Unavailable as error:
        controller.outages.note_failure(error)
        gauges, waiting, feeds, running = None, {}, [], []
    controller.metrics.calls.show_feeds(feeds, running)
    page = controller.metrics.render(
        gauges, waiting, controller.wakes.waiting_polls, controller.leadership.since is not None
    )
    return Response(page, 200, None, CONTENT_TYPE)
