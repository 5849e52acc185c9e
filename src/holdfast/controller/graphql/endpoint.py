"""`POST /graphql`: one query at a time over the read side, with the tokens of REST.

The first query loads strawberry, which would double the time a controller takes to start. A bad
request is a problem, as on every route; a bad query is an error of GraphQL with a code.

GQL-3  A query is answered or given up within its seconds, and all queries together leave the store
       and the event loop to the agents: few run at once, each makes few calls at a time, and none
       after it was given up.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import msgspec
from starlette.responses import Response

from holdfast.controller.http.bodies import decode_body, read_body
from holdfast.controller.http.endpoints import ApiCall
from holdfast.controller.http.problems import answer_json
from holdfast.controller.runtime.context import Controller
from holdfast.errors import HoldfastError, Unavailable, ValidationError
from holdfast.version import name_install
from holdfast.wire.operations.cluster.graphql import GraphqlRequest

if TYPE_CHECKING:
    from graphql import GraphQLError

    from holdfast.controller.graphql.limits import Limits
    from holdfast.controller.graphql.schema import Prepared

log = logging.getLogger("holdfast.controller")
GRAPHQL_TYPE = "application/graphql-response+json"


class NotInstalled(HoldfastError, code="graphql_not_installed", status=501):
    """The controller was installed without GraphQL."""


class UnsupportedMedia(HoldfastError, code="unsupported_media_type", status=415):
    """The body has a media type that the route does not take."""


_REQUEST = msgspec.json.Decoder(GraphqlRequest)
_services: WeakKeyDictionary[Controller, Service] = WeakKeyDictionary()


async def answer_query(call: ApiCall) -> Response:
    """Answer one query."""
    service = await find_service(call.controller)
    kind = (call.header("content-type") or "application/json").split(";")[0].strip().lower()
    if kind != "application/json":
        raise UnsupportedMedia(
            "a query is sent as a JSON object, with Content-Type: application/json"
        )
    body = await read_body(call.scope, call.receive, service.limits.body_bytes)
    if body.lstrip()[:1] == b"[":
        raise ValidationError(
            "queries are taken one at a time, not in a list; use aliases", code="batch_refused"
        )
    request = decode_body(body, _REQUEST)
    if request.extensions and "persistedQuery" in request.extensions:
        raise ValidationError(
            "PersistedQueryNotSupported: send the query's text",
            code="persisted_query_not_supported",
            field="extensions",
        )
    answer = await service.answer(request)
    media = call.header("accept") or ""
    if GRAPHQL_TYPE in media:
        response = answer_json(answer, 400 if "data" not in answer else 200)
        response.headers["content-type"] = GRAPHQL_TYPE + "; charset=utf-8"
        return response
    return answer_json(answer)


async def find_service(controller: Controller, limits: Limits | None = None) -> Service:
    """Return the service of `controller`, made at its first query or for new `limits`. Raises
    NotInstalled where the controller was installed without GraphQL."""
    found = _services.get(controller)
    if found is None or limits is not None:
        try:
            prepared = await asyncio.to_thread(_load)
        except ModuleNotFoundError as error:
            if (error.name or "").split(".")[0] not in ("strawberry", "graphql"):
                raise
            raise NotInstalled(
                "GraphQL is an optional part that this controller does not have: install it where "
                f"the controller runs ({name_install('server', 'graphql')}), and start it again"
            ) from None
        from holdfast.controller.graphql.limits import Limits as Defaults

        found = _services[controller] = Service(controller, prepared, limits or Defaults())
    return found


def _load() -> Prepared:
    from holdfast.controller.graphql.schema import load_schema

    return load_schema()


class Service:
    """Carries queries out for one controller."""

    def __init__(self, controller: Controller, prepared: Prepared, limits: Limits) -> None:
        self._controller = controller
        self._prepared = prepared
        self.limits = limits
        self._room = asyncio.Semaphore(limits.at_once)

    async def answer(self, request: GraphqlRequest) -> dict[str, Any]:
        """Return the body of the answer, which also holds the errors of the query and of the
        store."""
        from graphql import GraphQLError

        try:
            async with asyncio.timeout(self.limits.seconds), self._room:
                return await self._answer(request)
        except TimeoutError:
            late = HoldfastError(
                f"the query was given up after {self.limits.seconds:g} s; ask for less, or again "
                "later",
                code="query_timeout",
            )
            return {"errors": [self._tell_own(late)], "data": None}
        except GraphQLError as error:
            return {"errors": [self._tell(error, "graphql_syntax")]}
        except HoldfastError as error:
            return {"errors": [self._tell_own(error)]}

    async def _answer(self, request: GraphqlRequest) -> dict[str, Any]:
        from holdfast.controller.graphql.reads import Reads
        from holdfast.controller.graphql.schema import GraphqlContext

        variables = request.variables or {}
        limits = self.limits
        document, _ = self._prepared.read_query(
            request.query, variables, request.operationName, limits
        )
        reads = Reads(self._controller, limits.calls_at_once, limits.answer_bytes)
        try:
            result = await self._prepared.strawberry.execute(
                request.query,
                variable_values=variables,
                operation_name=request.operationName,
                context_value=GraphqlContext(reads, document),
            )
        finally:
            reads.close()
        data: Mapping[str, Any] | None = getattr(result, "data", None)
        errors = result.errors or []
        answer: dict[str, Any] = {}
        if errors:
            answer["errors"] = [self._tell(error, "graphql_validation") for error in errors]
        if data is not None or any(error.path for error in errors):
            answer["data"] = data
        return answer

    def _tell(self, error: GraphQLError, code: str) -> dict[str, Any]:
        """Return an error in GraphQL's form. An unexpected one is logged, and its text is not
        sent."""
        cause = error.original_error
        told: dict[str, Any]
        if isinstance(cause, HoldfastError):
            told = self._tell_own(cause)
        elif cause is None or not error.path:
            told = {"message": error.message, "extensions": {"code": code}}
        else:
            number = secrets.token_hex(6)
            log.error("a field of a query failed", exc_info=cause, extra={"request": number})
            message = f"this is a bug in Holdfast; the server's log has it under request {number}"
            told = {"message": message, "extensions": {"code": "internal"}}
        if error.locations:
            told["locations"] = [
                {"line": place.line, "column": place.column} for place in error.locations
            ]
        if error.path:
            told["path"] = error.path
        return told

    def _tell_own(self, error: HoldfastError) -> dict[str, Any]:
        if isinstance(error, Unavailable):
            self._controller.outages.note_failure(error)
        extensions = {"code": error.code} | ({"field": error.field} if error.field else {})
        return {"message": error.message, "extensions": extensions}
