"""The table of all routes: each operation with its handler."""

import functools
from collections.abc import Iterator
from types import ModuleType

import msgspec
from starlette.responses import Response

from holdfast.controller.api import (
    arrays,
    events,
    hosts,
    jobs,
    logs,
    pools,
    projects,
    queues,
    retries,
    schedules,
    sign_ins,
    system,
    tokens,
    webhooks,
)
from holdfast.controller.api.checkpoints import routes as checkpoints
from holdfast.controller.api.ledger import routes as ledger
from holdfast.controller.api.readings import routes as readings
from holdfast.controller.api.settings import config, rules
from holdfast.controller.bundles import downloads, uploads
from holdfast.controller.bundles import outputs as job_outputs
from holdfast.controller.calls import call_poll, outputs, sets, values
from holdfast.controller.calls import checkpoints as call_checkpoints
from holdfast.controller.graphql import endpoint as graphql
from holdfast.controller.http.endpoints import ApiCall, Endpoint, Handler, bind
from holdfast.controller.logs import errors, search
from holdfast.controller.notices import routes as notice_routes
from holdfast.controller.openapi import build_openapi
from holdfast.controller.report import routes as reports
from holdfast.controller.sessions import dials
from holdfast.controller.sessions import routes as session_routes
from holdfast.controller.sessions.open import open_session
from holdfast.controller.sync import caches as host_caches
from holdfast.controller.sync import controllers, route
from holdfast.controller.sync import health as host_health
from holdfast.controller.workflows import workflows
from holdfast.wire.operations.cluster import events as on_events
from holdfast.wire.operations.cluster import graphql as on_graphql
from holdfast.wire.operations.cluster import notices as on_notices
from holdfast.wire.operations.cluster import projects as on_projects
from holdfast.wire.operations.cluster import queues as on_queues
from holdfast.wire.operations.cluster import reports as on_reports
from holdfast.wire.operations.cluster import server as on_server
from holdfast.wire.operations.cluster import settings as on_settings
from holdfast.wire.operations.cluster import tokens as on_tokens
from holdfast.wire.operations.cluster import webhooks as on_webhooks
from holdfast.wire.operations.fleet import agents as on_agents
from holdfast.wire.operations.fleet import hosts as on_hosts
from holdfast.wire.operations.fleet import pools as on_pools
from holdfast.wire.operations.operation import Operation
from holdfast.wire.operations.work import arrays as on_arrays
from holdfast.wire.operations.work import bundles as on_bundles
from holdfast.wire.operations.work import calls as on_calls
from holdfast.wire.operations.work import jobs as on_jobs
from holdfast.wire.operations.work import outputs as on_outputs
from holdfast.wire.operations.work import schedules as on_schedules
from holdfast.wire.operations.work import sessions as on_sessions
from holdfast.wire.operations.work import workflows as on_workflows


@functools.cache
def _render_openapi() -> bytes:
    return msgspec.json.encode(build_openapi(ENDPOINTS))


async def get_openapi(call: ApiCall) -> Response:
    """Describe every route. Here and not in `api/`, because it needs the table below."""
    return Response(_render_openapi(), 200, None, "application/json")


def bind_all(operations: ModuleType, *rooms: ModuleType, **handlers: Handler) -> Iterator[Endpoint]:
    """Yield the operations of a module, each with its handler: the function with its name in one of
    these modules, or among `handlers`."""
    for constant, operation in vars(operations).items():
        if isinstance(operation, Operation):
            name = constant.lower()
            found = {vars(room)[name] for room in rooms if name in vars(room)}
            (handle,) = found or {handlers[name]}
            yield bind(operation, handle)


ENDPOINTS: tuple[Endpoint, ...] = (
    *bind_all(
        on_agents, route, checkpoints, controllers, host_health, host_caches, call_checkpoints,
        values, downloads, job_outputs, exchange=call_poll.poll_calls,
    ),
    *bind_all(on_outputs, job_outputs),
    *bind_all(on_bundles, uploads, downloads),
    *bind_all(on_sessions, session_routes, dials, open_session=open_session),
    *bind_all(on_jobs, jobs, retries, readings, logs, errors, search, checkpoints),
    *bind_all(on_arrays, arrays),
    *bind_all(on_schedules, schedules),
    *bind_all(on_workflows, workflows),
    *bind_all(on_calls, sets, outputs, values),
    *bind_all(on_queues, queues),
    *bind_all(on_projects, projects, retries),
    *bind_all(on_hosts, hosts, readings),
    *bind_all(on_reports, ledger, reports),
    *bind_all(on_pools, pools),
    *bind_all(on_settings, config, rules),
    *bind_all(on_events, events),
    *bind_all(on_tokens, tokens, sign_ins, system),
    *bind_all(on_notices, notice_routes),
    *bind_all(on_webhooks, webhooks),
    *bind_all(on_graphql, graphql),
    *bind_all(on_server, system, get_openapi=get_openapi),
)  # fmt: skip
