"""The ASGI application: find the route, check the caller, run the handler, and turn its error into
a problem.

There is no framework between the socket and the handler, because msgspec decodes bodies and encodes
answers from the shared structs (measured: half the import time and 15 MB saved).

Every route has a role in the table, and it is checked here, in one place, before the handler runs.
"""

import asyncio
import functools
import logging
import secrets
from collections.abc import Iterable
from urllib.parse import unquote_to_bytes

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from holdfast.controller.api.arrays import resolve_member
from holdfast.controller.http.bodies import Gone, header
from holdfast.controller.http.callers import find_caller
from holdfast.controller.http.endpoints import ApiCall, Endpoint
from holdfast.controller.http.job_tokens import check_job_call
from holdfast.controller.http.owners import check_owner
from holdfast.controller.http.problems import MethodNotAllowed, UpgradeRequired, answer_problem
from holdfast.controller.http.sockets import Socket, SocketClosed
from holdfast.controller.http.sse import LET_IN
from holdfast.controller.routes import ENDPOINTS
from holdfast.controller.runtime.auth import check_role
from holdfast.controller.runtime.context import Controller
from holdfast.controller.sessions.relay import check_relayed
from holdfast.core.records import JobTokenRecord
from holdfast.errors import HoldfastError, NotFound, Unavailable
from holdfast.store.clock import ACTS_FOR
from holdfast.wire.operations.operation import Role
from holdfast.wire.operations.work.jobs import JOB

log = logging.getLogger("holdfast.controller")
LOOPBACK = ("127.0.0.1", "::1")
_MAX_PATH_CHARS = 2048
CHECKED_BY_STORE = "/v1/agent/sync"
"""The path of the hosts' sync. Its host key may be remembered for longer, because the sync's
transaction checks the host's row itself."""


class _Node:
    """A path template: its segments, None for a parameter, and its methods."""

    __slots__ = ("methods", "names", "path", "segments")

    def __init__(self, path: str) -> None:
        self.path = path
        parts = path.split("/")[1:]
        self.segments = tuple(None if p.startswith("{") else p for p in parts)
        self.names = tuple(p[1:-1] for p in parts if p.startswith("{"))
        self.methods: dict[str, Endpoint] = {}


class Router:
    """Finds the route of a request. Path segments are decoded one by one, so a name with an encoded
    slash (`%2F`) stays one segment."""

    def __init__(self, endpoints: Iterable[Endpoint]) -> None:
        nodes: dict[str, _Node] = {}
        for endpoint in endpoints:
            node = nodes.setdefault(endpoint.path, _Node(endpoint.path))
            node.methods[endpoint.method] = endpoint
        self._fixed = {path: node for path, node in nodes.items() if not node.names}
        self._templates = [node for node in nodes.values() if node.names]

    def find(self, raw_path: str) -> tuple[_Node, dict[str, str]]:
        """Return the node of the tree of routes that a path leads to, and the path's parameters.
        Raises NotFound."""
        node = self._fixed.get(raw_path)
        if node is not None:
            return node, {}
        if len(raw_path) <= _MAX_PATH_CHARS:
            parts = raw_path.split("/")[1:]
            for node in self._templates:
                if len(node.segments) != len(parts):
                    continue
                pairs = list(zip(node.segments, parts, strict=True))
                # A parameter is never empty.
                if all(part if want is None else want == part for want, part in pairs):
                    values = [_unquote(part) for want, part in pairs if want is None]
                    return node, dict(zip(node.names, values, strict=True))
        raise NotFound(
            f"there is nothing at {raw_path[:200]}; /v1/openapi.json lists what there is",
            code="unknown_path",
        )


def _unquote(segment: str) -> str:
    return unquote_to_bytes(segment).decode("utf-8", "replace") if "%" in segment else segment


def _is_being_cancelled() -> bool:
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


class App:
    """The application as uvicorn calls it."""

    def __init__(self, controller: Controller) -> None:
        self.controller = controller
        self._router = Router(ENDPOINTS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await self._serve_socket(scope, receive, send)
            return
        if scope["type"] != "http":
            return
        method: str = scope["method"]
        route, status = "(none)", 0

        async def counted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            node, params = self._router.find(scope["raw_path"].decode("latin-1"))
            route = node.path
            scope["path_params"] = params
            response = await self._answer(node, method, scope, receive)
        except Gone:
            return
        except HoldfastError as error:
            if isinstance(error, Unavailable):
                self.controller.outages.note_failure(error)
            response = answer_problem(error)
        except asyncio.CancelledError:
            # Cancelled at the end of the shutdown's patience, or because its connection was torn
            # down: tell the client to try again. Left alone, the server would answer a bare 500.
            if _is_being_cancelled() and not self.controller.wakes.closing:
                raise
            log.warning("%s %s was broken off", method, route)
            response = answer_problem(
                Unavailable("this call was broken off before it was done; try again")
            )
        except Exception:
            response = _answer_bug(method, route)
        try:
            await response(scope, receive, counted)
        except (OSError, TimeoutError):
            log.debug("a client went while it was answered")
        except asyncio.CancelledError:
            raise
        except Exception:
            if status == 0:
                await _answer_bug(method, route)(scope, receive, counted)
            else:
                log.exception("a stream broke off in its middle")
        finally:
            named = method if status != 405 else "(other)"
            self.controller.metrics.requests.labels(named, route, str(status)).inc()

    async def _serve_socket(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a WebSocket from its request to its end."""
        socket = Socket(scope, receive, send)
        route = "(none)"
        try:
            node, params = self._router.find(scope["raw_path"].decode("latin-1"))
            route = node.path
            scope["path_params"] = params
            endpoint = node.methods.get("GET")
            if endpoint is None or not endpoint.socket:
                raise NotFound(f"{node.path} is no WebSocket", code="unknown_path")
            call = ApiCall(self.controller, scope, receive)
            call.socket = socket
            await self._prepare(endpoint, call)
            await endpoint.handle(call)
        except HoldfastError as error:
            if isinstance(error, Unavailable):
                self.controller.outages.note_failure(error)
            await socket.refuse(error)
        except SocketClosed:
            pass
        except Exception:
            log.exception("a WebSocket of %s failed", route)
            await socket.refuse(HoldfastError("this is a bug in Holdfast", code="internal"))
        finally:
            self.controller.metrics.requests.labels("WEBSOCKET", route, "101").inc()

    async def _prepare(self, endpoint: Endpoint, call: ApiCall) -> None:
        """Check that the caller may make the call. Raises HoldfastError."""
        await self._let_in(endpoint, call)
        call.scope[LET_IN] = functools.partial(self._let_in, endpoint, call)  # streams ask again
        if "[" in call.params.get("id", "") and endpoint.path.startswith(JOB):
            call.params = {**call.params, "id": await resolve_member(call.store, call.params["id"])}
        if endpoint.owned is not None:
            await check_owner(call, endpoint.owned)

    async def _answer(self, node: _Node, method: str, scope: Scope, receive: Receive) -> Response:
        endpoint = node.methods.get(method)
        if endpoint is None and method == "HEAD":
            endpoint = node.methods.get("GET")
        if endpoint is None:
            methods = [*sorted(node.methods), *(["HEAD"] if "GET" in node.methods else [])]
            allowed = ", ".join(methods)
            raise MethodNotAllowed(f"{node.path} takes {allowed}, not {method}", allowed)
        call = ApiCall(self.controller, scope, receive)
        await self._prepare(endpoint, call)
        if endpoint.socket:
            raise UpgradeRequired(f"{node.path} is opened as a WebSocket")
        if call.token is None or endpoint.method == "GET":
            return await endpoint.handle(call)
        named = ACTS_FOR.set(call.user)
        try:
            return await endpoint.handle(call)
        finally:
            ACTS_FOR.reset(named)

    async def _let_in(self, endpoint: Endpoint, call: ApiCall) -> None:
        role = endpoint.role
        if role is Role.HOST:
            recent = endpoint.path != CHECKED_BY_STORE
            call.host = await self.controller.guard.find_host(
                header(call.scope, b"authorization"), recent=recent
            )
        elif role is Role.REPLICA:
            await check_relayed(call)
        elif role in (Role.ANYONE, Role.JOIN):
            return  # `register` looks its own credential up: a join token or a host key
        elif endpoint.path == "/metrics" and self._is_local_scrape(call):
            return
        else:
            call.token = await find_caller(call)
            check_role(call.token, role)
            if isinstance(call.token, JobTokenRecord):
                await check_job_call(call, endpoint)

    def _is_local_scrape(self, call: ApiCall) -> bool:
        """Return whether the caller is a scraper of metrics on this machine, which needs no token.
        A call that may come through a proxy is never local."""
        client = call.scope.get("client")
        proxied = call.header("x-forwarded-for") is not None or call.header("forwarded") is not None
        # A page in a browser here reaches this address under a name of its own.
        host = (call.header("host") or "").lower().rpartition(":")
        name = host[0] if host[0] and host[2].isdigit() else "".join(host)
        named = name.strip("[]") in (*LOOPBACK, "localhost")
        return bool(client and client[0] in LOOPBACK and named and not proxied)


def _answer_bug(method: str, route: str) -> Response:
    number = secrets.token_hex(6)
    log.exception("%s %s failed", method, route, extra={"request": number})
    error = HoldfastError(
        f"this is a bug in Holdfast; the server's log has it under request {number}",
        code="internal",
    )
    return answer_problem(error, instance=f"urn:holdfast:request:{number}")
